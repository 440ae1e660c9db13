"""Soft-target KL and hard-target cross-entropy (Paper A, section on objectives).

Both are one formula. At a prefix the target gives probabilities q to a few tokens and the loss is
``sum_k q_k (log q_k - log p_k)`` with p the softmax over the whole vocabulary, so probability that
the model puts off the trie is penalised. A hard target is the one-hot q of the drawn value, whose
KL is the cross-entropy. A packed batch is therefore a flat list of (row, token, weight, log q).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from calibration_tuning.packing import PackedTree, pack
from calibration_tuning.trie import PrefixTrie

TARGET_FLOOR = 1e-8
"""Target probabilities are floored here inside the logarithm (Paper A's code)."""


def soft_target_kl(
    logits: torch.Tensor, token_ids: Sequence[int], probabilities: Sequence[float]
) -> torch.Tensor:
    """KL divergence from the target to the model at one position.

    Parameters
    ----------
    logits : tensor (vocabulary,)
    token_ids : int64 (k,)
        Tokens with a target probability.
    probabilities : float (k,)
        Their target probabilities; they sum to 1.

    Returns
    -------
    scalar tensor, nats
    """
    token_ids = torch.as_tensor(np.asarray(token_ids), device=logits.device)
    q = torch.as_tensor(np.asarray(probabilities), device=logits.device, dtype=logits.dtype)
    log_p = torch.log_softmax(logits, dim=-1)[token_ids]
    return (q * (q.clamp_min(TARGET_FLOOR).log() - log_p)).sum()


def soft_targets(trie: PrefixTrie, path: tuple[int, ...]) -> list[tuple[np.ndarray, np.ndarray]]:
    """The target distribution at every prefix of a path: a list of (token ids, probabilities)."""
    return [trie.next_tokens(path[:depth]) for depth in range(len(path))]


def hard_targets(trie: PrefixTrie, path: tuple[int, ...]) -> list[tuple[np.ndarray, np.ndarray]]:
    """The one-hot targets of a drawn path, in the form of `soft_targets`."""
    return [(np.array([token]), np.ones(1)) for token in path]


OBJECTIVES: dict[str, Callable] = {"soft_target": soft_targets, "hard_target": hard_targets}
"""What a method's `objective` may name: trie and path -> targets along the path."""


class PackedBatch(NamedTuple):
    """A packed tree with the targets of its completions, all int64 or float32 arrays.

    Attributes
    ----------
    token_ids, positions, subtree_end : int64 (nodes,)
        The tree, see `calibration_tuning.packing`.
    rows : int64 (rows,)
        Nodes at which the next token has a target.
    target_row, target_token : int64 (targets,)
        Index into `rows` and token id of each target entry.
    target_weight : float32 (targets,)
        q_k times the summed weight of the paths through the node; a path weighs 1 / its length
        within its prompt's mean, a prompt 1 / the number of prompts.
    target_log : float32 (targets,)
        log q_k.
    """

    token_ids: np.ndarray
    positions: np.ndarray
    subtree_end: np.ndarray
    rows: np.ndarray
    target_row: np.ndarray
    target_token: np.ndarray
    target_weight: np.ndarray
    target_log: np.ndarray


class Example(NamedTuple):
    """One visit of a prompt: its tokens and the completions drawn for it, with their targets."""

    prompt_ids: list[int]
    paths: list[tuple[int, ...]]
    targets: list[list[tuple[np.ndarray, np.ndarray]]]


def pack_examples(examples: Sequence[Example]) -> PackedBatch:
    """Pack visits into one tree; the loss is a mean over prompts, of paths, of tokens.

    A target that several paths meet at the same node appears once, with their weights added.
    """
    sequences = [
        [*example.prompt_ids, *path[:-1]] for example in examples for path in example.paths
    ]
    tree = pack(sequences)
    node, token, weight, log_q = _flat_targets(examples, tree)
    rows, row = np.unique(node, return_inverse=True)
    # Paths that meet a node meet the same target there, so (row, token) is a key.
    entries = np.stack([row, token])
    merged, first, inverse = np.unique(entries, axis=1, return_index=True, return_inverse=True)
    return PackedBatch(
        token_ids=tree.token_ids,
        positions=tree.positions,
        subtree_end=tree.subtree_end,
        rows=rows,
        target_row=merged[0],
        target_token=merged[1],
        target_weight=np.bincount(inverse.ravel(), weights=weight).astype(np.float32),
        target_log=log_q[first].astype(np.float32),
    )


def _flat_targets(examples: Sequence[Example], tree: PackedTree) -> tuple[np.ndarray, ...]:
    """Node, token, weight and log q of every target of every path, one entry each."""
    nodes, weights, ids, probabilities = [], [], [], []
    sequence = 0
    for example in examples:
        start = len(example.prompt_ids) - 1
        for path, targets in zip(example.paths, example.targets, strict=True):
            path_weight = 1.0 / (len(path) * len(example.paths) * len(examples))
            for depth, (token_ids, q) in enumerate(targets):
                nodes.append(np.full(len(token_ids), tree.nodes[sequence, start + depth]))
                weights.append(np.full(len(token_ids), path_weight))
                ids.append(token_ids)
                probabilities.append(q)
            sequence += 1
    q = np.concatenate(probabilities)
    log_q = np.log(np.maximum(q, TARGET_FLOOR))
    return np.concatenate(nodes), np.concatenate(ids), np.concatenate(weights) * q, log_q


def packed_loss(
    logits: torch.Tensor,
    target_row: torch.Tensor,
    target_token: torch.Tensor,
    target_weight: torch.Tensor,
    target_log: torch.Tensor,
) -> torch.Tensor:
    """Weighted sum over targets of ``log q - log p``, in float32.

    Parameters
    ----------
    logits : tensor (rows, vocabulary)
    target_row, target_token, target_weight, target_log : tensors (targets,)
        As in `PackedBatch`.

    Returns
    -------
    scalar tensor, nats per token
    """
    logits = logits.float()
    log_p = logits[target_row, target_token] - torch.logsumexp(logits, dim=-1)[target_row]
    return (target_weight * (target_log - log_p)).sum()
