"""Soft-target KL and hard-target cross-entropy (Paper A, section on objectives).

Both are one formula. At a prefix the target gives probabilities q to a few tokens and the loss is
``sum_k q_k (log q_k - log p_k)`` with p the softmax over the whole vocabulary, so probability that
the model puts off the trie is penalised. A hard target is the one-hot q of the drawn value, whose
KL is the cross-entropy. A packed batch is therefore a flat list of (row, token, weight, log q).

A retention-aware method (ours; the paper leaves it open) adds a penalty for leaving the untuned
model elsewhere: KL(untuned || tuned) along answers that the untuned model gave to general
instructions. These ride in the same token tree.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from calibration_tuning.packing import PackedTree, pack
from calibration_tuning.trie import CdfTrie, PathTargets, PrefixTrie, path_targets

TARGET_FLOOR = 1e-8
"""Target probabilities are floored here inside the logarithm (Paper A's code)."""

ROWS_AT_A_TIME = 8
"""Rows of logits for which softmax values are held at once."""


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


def hard_targets(trie: PrefixTrie | CdfTrie, paths: Sequence[tuple[int, ...]]) -> PathTargets:
    """One-hot targets of drawn paths, in the form of `path_targets`."""
    lengths = np.array([len(path) for path in paths])
    numbers = np.full((len(paths), lengths.max()), -1, dtype=np.int64)
    tokens = np.concatenate([np.asarray(path, dtype=np.int64) for path in paths])
    numbers[np.arange(lengths.max()) < lengths[:, None]] = np.arange(len(tokens))
    return PathTargets(numbers, np.arange(len(tokens)), tokens, np.ones(len(tokens)))


OBJECTIVES: dict[str, Callable] = {"soft_target": path_targets, "hard_target": hard_targets}
"""What a method's `objective` may name: trie and paths -> targets along the paths."""


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
    token_target : int64 (completion tokens,)
        Which target is each token of each completion.
    token_sequence : int64 (completion tokens,)
        The number of its completion.
    replay_rows : int64 (replayed,)
        Nodes of replayed answers at which the untuned model says what should come next.
    replay_weight : float32 (replayed,)
        1 / (length of the answer times the number of prompts with one).
    replay_nodes : int64 (kept,)
        The nodes of replayed sequences, ascending: all that the untuned model has to run on.
    """

    token_ids: np.ndarray
    positions: np.ndarray
    subtree_end: np.ndarray
    rows: np.ndarray
    target_row: np.ndarray
    target_token: np.ndarray
    target_weight: np.ndarray
    target_log: np.ndarray
    token_target: np.ndarray
    token_sequence: np.ndarray
    replay_rows: np.ndarray
    replay_weight: np.ndarray
    replay_nodes: np.ndarray


class Replayed(NamedTuple):
    """An answer of the untuned model: the instruction's tokens and its own, none of them empty."""

    prompt_ids: list[int]
    answer_ids: list[int]


class Example(NamedTuple):
    """One visit of a prompt: its tokens and the completions drawn for it, with their targets.

    With a retention-aware method, also an answer to replay.
    """

    prompt_ids: list[int]
    paths: list[tuple[int, ...]]
    targets: PathTargets
    replay: Replayed | None = None


def pack_examples(examples: Sequence[Example]) -> PackedBatch:
    """Pack visits into one tree; the loss is a mean over prompts, of paths, of tokens.

    A target that several paths meet at the same node appears once, with their weights added.
    """
    sequences = [
        [*example.prompt_ids, *path[:-1]] for example in examples for path in example.paths
    ]
    replayed = [example.replay for example in examples if example.replay is not None]
    tree = pack([*sequences, *([*r.prompt_ids, *r.answer_ids[:-1]] for r in replayed)])
    node, token, weight, log_q = _flat_targets(examples, tree)
    # Paths that meet a node meet the same target there, so (node, token) is a key.
    tokens = token.max() + 1
    keys, first, inverse = np.unique(node * tokens + token, return_index=True, return_inverse=True)
    drawn, drawn_node, sequence = _drawn_tokens(examples, tree)
    rows, row = np.unique(node[first], return_inverse=True)
    return PackedBatch(
        token_ids=tree.token_ids,
        positions=tree.positions,
        subtree_end=tree.subtree_end,
        rows=rows,
        target_row=row,
        target_token=token[first],
        target_weight=np.bincount(inverse, weights=weight).astype(np.float32),
        target_log=log_q[first].astype(np.float32),
        token_target=np.searchsorted(keys, drawn_node * tokens + drawn),
        token_sequence=sequence,
        **_replay_rows(replayed, tree.nodes[len(sequences) :]),
    )


def _drawn_tokens(
    examples: Sequence[Example], tree: PackedTree
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each token of each completion: itself, the node that it follows, its completion's number."""
    paths = [path for example in examples for path in example.paths]
    starts = [len(example.prompt_ids) - 1 for example in examples for _ in example.paths]
    nodes = [
        tree.nodes[number, start : start + len(path)]
        for number, (path, start) in enumerate(zip(paths, starts, strict=True))
    ]
    tokens = np.concatenate([np.asarray(path, dtype=np.int64) for path in paths])
    return tokens, np.concatenate(nodes), np.repeat(np.arange(len(paths)), [*map(len, paths)])


def _replay_rows(replayed: Sequence[Replayed], nodes: np.ndarray) -> dict[str, np.ndarray]:
    """Where answers are replayed: rows, weights and nodes of a `PackedBatch`.

    A node that two answers pass appears once for each.
    """
    rows, weights = [np.zeros(0, np.int64)], [np.zeros(0, np.float32)]
    for answer, path in zip(replayed, nodes, strict=True):
        length, start = len(answer.answer_ids), len(answer.prompt_ids) - 1
        rows.append(path[start : start + length])
        weights.append(np.full(length, 1 / (length * len(replayed)), np.float32))
    return {
        "replay_rows": np.concatenate(rows),
        "replay_weight": np.concatenate(weights),
        "replay_nodes": np.unique(nodes[nodes >= 0]),
    }


def _flat_targets(examples: Sequence[Example], tree: PackedTree) -> tuple[np.ndarray, ...]:
    """Node, token, weight and log q of every target of every prefix, one entry each."""
    parts = []
    sequence = 0
    for example in examples:
        numbers = example.targets.prefix
        is_token = numbers >= 0
        start = len(example.prompt_ids) - 1
        block = tree.nodes[sequence : sequence + len(numbers), start : start + numbers.shape[1]]
        sequence += len(numbers)
        node_of = np.zeros(numbers.max() + 1, dtype=np.int64)
        node_of[numbers[is_token]] = block[is_token]
        path_weight = 1.0 / (is_token.sum(axis=1) * len(numbers) * len(examples))
        weight_of = np.bincount(
            numbers[is_token], np.broadcast_to(path_weight[:, None], numbers.shape)[is_token]
        )
        _, row, token, q = example.targets
        parts.append((node_of[row], token, weight_of[row] * q, np.log(np.maximum(q, TARGET_FLOOR))))
    return tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True))


class _PackedLoss(torch.autograd.Function):
    """The loss of `packed_loss` with the gradient computed in the logits' own memory.

    Autograd would keep the softmax and allocate two more arrays of the logits' size: with a
    vocabulary of 262,144 they, not the model, would be most of a step's memory. Rows are taken a
    few at a time, so that what is computed of them stays in the processor's cache.
    """

    @staticmethod
    def forward(ctx, logits, target_row, target_token, target_weight, target_log):
        normaliser = torch.cat([_log_sum_exp(part) for part in logits.split(ROWS_AT_A_TIME)])
        log_p = logits[target_row, target_token].float() - normaliser[target_row]
        ctx.save_for_backward(logits, normaliser, target_row, target_token, target_weight)
        return (target_weight * (target_log - log_p)).sum()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        logits, normaliser, target_row, target_token, target_weight = ctx.saved_tensors
        row_weight = torch.zeros_like(normaliser).index_add_(0, target_row, target_weight)
        # Of log p: softmax times the row's weight, less the weight at the targets.
        in_place = logits.detach()
        for part, shift, weight in zip(
            in_place.split(ROWS_AT_A_TIME),
            normaliser.split(ROWS_AT_A_TIME),
            (gradient * row_weight).split(ROWS_AT_A_TIME),
            strict=True,
        ):
            softmax = part.float()  # the same memory where the logits are float32
            softmax.sub_(shift[:, None]).exp_().mul_(weight[:, None])
            if softmax.dtype != part.dtype:
                part.copy_(softmax)
        change = (-gradient * target_weight).to(logits.dtype)
        in_place.index_put_((target_row, target_token), change, accumulate=True)
        return in_place, None, None, None, None


def _log_sum_exp(logits: torch.Tensor) -> torch.Tensor:
    """Log of the sum of exponentials of each row, in float32, with one array of their size."""
    largest = logits.amax(dim=-1, keepdim=True).float()
    return (logits - largest).exp_().sum(dim=-1).log_() + largest[:, 0]


def packed_loss(
    logits: torch.Tensor,
    target_row: torch.Tensor,
    target_token: torch.Tensor,
    target_weight: torch.Tensor,
    target_log: torch.Tensor,
) -> torch.Tensor:
    """Weighted sum over targets of ``log q - log p``, in float32.

    The backward pass overwrites the logits with their gradient, so it can run only once.

    Parameters
    ----------
    logits : tensor (rows, vocabulary)
    target_row, target_token, target_weight, target_log : tensors (targets,)
        As in `PackedBatch`; no (row, token) twice.

    Returns
    -------
    scalar tensor, nats per token
    """
    return _PackedLoss.apply(logits, target_row, target_token, target_weight, target_log)


def replay_kl(
    logits: torch.Tensor, untuned_logits: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor:
    """Weighted sum over rows of KL(untuned || tuned) over the whole vocabulary, in float32.

    Parameters
    ----------
    logits, untuned_logits : tensors (replayed, vocabulary)
    weight : tensor (replayed,)

    Returns
    -------
    scalar tensor, nats per token
    """
    log_p = torch.log_softmax(logits.float(), dim=-1)
    log_q = torch.log_softmax(untuned_logits.float(), dim=-1)
    return weight @ torch.nn.functional.kl_div(log_p, log_q, reduction="none", log_target=True).sum(
        dim=-1
    )
