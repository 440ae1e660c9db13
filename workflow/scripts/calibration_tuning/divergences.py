"""How far the model is from the target, in nats, by packed passes over the trie.

The papers average the soft loss over four random paths of a prompt. Here the average runs over
every path of the trie, weighted by its probability, where the trie is small enough, and over many
paths with a standard error where it is not.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from calibration_tuning.objectives import TARGET_FLOOR
from calibration_tuning.packing import pack, packed_logits
from calibration_tuning.trie import PrefixTrie


class Divergence(NamedTuple):
    """Divergence of a model from the target of one prompt.

    Attributes
    ----------
    logit_kl : float
        Mean over target paths of the mean over a path's tokens of the soft loss, nats per token
        (Paper A's logit KL).
    sequence_kl : float
        KL divergence of the model's distribution over canonical texts from the target, nats.
    logit_kl_standard_error, sequence_kl_standard_error : float
        0 where every path was used.
    space_mass : float or None
        The probability that the model puts on the output space; None where paths were sampled.
    paths : int or None
        Number of sampled paths; None where every path was used.
    """

    logit_kl: float
    sequence_kl: float
    logit_kl_standard_error: float
    sequence_kl_standard_error: float
    space_mass: float | None
    paths: int | None


@torch.inference_mode()
def path_terms(
    model: torch.nn.Module,
    prompt_ids: list[int],
    trie: PrefixTrie,
    paths: Sequence[tuple[int, ...]],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Soft loss and log-probability along paths, by one packed forward pass.

    Parameters
    ----------
    model : causal language model in evaluation mode
    prompt_ids : list of int
    trie : the target
    paths : token sequences on the trie, each ending in its end token

    Returns
    -------
    mean_loss, sum_loss, log_probability : float64 arrays (paths,)
        The soft loss averaged and summed over the prefixes of each path, and the model's
        log-probability of the whole path; nats.
    """
    row_of: dict[tuple[int, ...], int] = {}
    for path in paths:
        for depth in range(len(path)):
            row_of.setdefault(path[:depth], len(row_of))
    tree = pack([[*prompt_ids, *prefix] for prefix in row_of])
    last = np.array([len(prompt_ids) + len(prefix) - 1 for prefix in row_of])
    nodes = tree.nodes[np.arange(len(row_of)), last]
    arrays = (tree.token_ids, tree.positions, tree.subtree_end, nodes)
    logits = packed_logits(model, *(torch.from_numpy(a).to(model.device) for a in arrays)).float()
    normaliser = torch.logsumexp(logits, dim=-1)

    def log_p(rows: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        rows, tokens = (torch.from_numpy(a).to(model.device) for a in (rows, tokens))
        return (logits[rows, tokens] - normaliser[rows]).double().cpu().numpy()

    targets = [trie.next_tokens(prefix) for prefix in row_of]
    rows = np.repeat(np.arange(len(targets)), [len(tokens) for tokens, _ in targets])
    tokens = np.concatenate([tokens for tokens, _ in targets])
    q = np.concatenate([q for _, q in targets])
    terms = q * (np.log(np.maximum(q, TARGET_FLOOR)) - log_p(rows, tokens))
    row_loss = np.bincount(rows, weights=terms)

    lengths = np.array([len(path) for path in paths])
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    path_rows = np.array([row_of[path[:depth]] for path in paths for depth in range(len(path))])
    sum_loss = np.add.reduceat(row_loss[path_rows], starts)
    log_probability = np.add.reduceat(log_p(path_rows, np.concatenate(paths)), starts)
    return sum_loss / lengths, sum_loss, log_probability


def divergence(
    model: torch.nn.Module,
    prompt_ids: list[int],
    trie: PrefixTrie,
    *,
    exact_paths: int,
    sampled_paths: int,
    seed: int | list[int],
    max_paths: int = 256,
) -> Divergence:
    """Divergence of the model from a target: exact on a small trie, estimated on a large one.

    Parameters
    ----------
    model, prompt_ids, trie : see `path_terms`
    exact_paths : int
        Up to this many canonical texts, every path is used.
    sampled_paths : int
        Paths drawn from the target where there are more.
    seed : of the drawn paths
    max_paths : int
        Paths in one forward pass; bounds memory.
    """
    exact = len(trie.sequences) <= exact_paths
    if exact:
        paths = sorted(trie.sequences)  # neighbours share prefixes, so passes share nodes
        weight_of = dict(zip(trie.sequences, trie.probabilities, strict=True))
        weights = np.array([weight_of[path] for path in paths])
    else:
        rng = np.random.default_rng(seed)
        paths = sorted(trie.sample(rng) for _ in range(sampled_paths))
        weights = np.full(sampled_paths, 1.0 / sampled_paths)
    parts = [
        path_terms(model, prompt_ids, trie, paths[start : start + max_paths])
        for start in range(0, len(paths), max_paths)
    ]
    mean_loss, sum_loss, log_probability = (
        np.concatenate(part) for part in zip(*parts, strict=True)
    )
    logit_kl, sequence_kl = float(weights @ mean_loss), float(weights @ sum_loss)
    if exact:
        mass = float(np.exp(log_probability).sum())
        return Divergence(logit_kl, sequence_kl, 0.0, 0.0, mass, None)
    errors = (float(x.std(ddof=1) / np.sqrt(sampled_paths)) for x in (mean_loss, sum_loss))
    return Divergence(logit_kl, sequence_kl, *errors, None, sampled_paths)
