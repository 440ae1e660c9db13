"""Many independent samples of one prompt, each distinct prefix evaluated once.

n samples of one prompt repeat the same prefixes. The branching sampler keeps the distinct ones:
the prompt runs once, and at every step each live prefix runs once and its count is split over the
next tokens by a multinomial draw. n independent samples are exchangeable, and the counts of the
next tokens among the samples that share a prefix are multinomial given that prefix, so the result
is distributed exactly as n separate runs.
"""

import copy
from collections.abc import Callable, Collection
from typing import NamedTuple

import numpy as np
import torch
from transformers import DynamicCache

from calibration_tuning import chat


class Sample(NamedTuple):
    """One completion: the ids as drawn (the stop token included), and whether it stopped."""

    token_ids: tuple[int, ...]
    text: str
    finished: bool


class _Branches(NamedTuple):
    """Prefixes of equal length: token ids (rows, depth) and their sample counts (rows,)."""

    prefixes: np.ndarray
    counts: np.ndarray

    def take(self, rows: np.ndarray) -> "_Branches":
        return _Branches(self.prefixes[rows], self.counts[rows])


def split_counts(
    probabilities: np.ndarray, counts: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Split each row's count over its next tokens by a multinomial draw.

    Parameters
    ----------
    probabilities : float (rows, vocabulary)
        Next-token probabilities, up to a constant a row.
    counts : int64 (rows,)
    rng : numpy Generator

    Returns
    -------
    parents, tokens, children : int64 arrays (children,)
        The row each child comes from, its token, and its count (all positive).
    """
    parents, tokens, children = [], [], []
    for row, count in enumerate(counts):
        # Inverse transform: one uniform a sample. The sum is in float64, since float32 loses the
        # tail of a vocabulary of 262,144.
        cumulative = np.cumsum(probabilities[row], dtype=np.float64)
        uniform = rng.random(count) * cumulative[-1]
        drawn = np.searchsorted(cumulative, uniform, side="right")
        token, number = np.unique(np.minimum(drawn, len(cumulative) - 1), return_counts=True)
        parents.append(np.full(len(token), row))
        tokens.append(token)
        children.append(number)
    return np.concatenate(parents), np.concatenate(tokens), np.concatenate(children)


def _forward(model, token_ids: np.ndarray, cache: DynamicCache) -> np.ndarray:
    """Extend the cache by token ids (rows, new) and return probabilities (rows, vocabulary)."""
    output = model(
        input_ids=torch.as_tensor(token_ids, device=model.device),
        cache=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    return torch.softmax(output.logits[:, -1].float(), dim=-1).cpu().numpy()


@torch.inference_mode()
def sample_completions(
    model: torch.nn.Module,
    tokenizer,
    prompt_ids: list[int],
    n: int,
    *,
    stop_ids: Collection[int] | None = None,
    max_new_tokens: int = 32,
    max_rows: int = 256,
    seed: int | list[int] = 0,
    viable: Callable[[str], bool] | None = None,
) -> list[Sample]:
    """Draw n independent completions of one prompt at temperature 1 from the full vocabulary.

    Parameters
    ----------
    model : causal language model in evaluation mode
    tokenizer : decodes the samples (special tokens dropped)
    prompt_ids : list of int
    n : int
    stop_ids : collection of int, optional
        Tokens that end a completion; by default those of the chat template and the model's
        generation config, see `calibration_tuning.chat.stop_ids`.
    max_new_tokens : int
        Longest completion, the stop token included.
    max_rows : int
        Most prefixes in one forward pass. It bounds memory: the cache never holds more than
        ``max_rows * (len(prompt_ids) + max_new_tokens)`` tokens. Where more prefixes are live, the
        rest wait as token ids and their cache is computed anew.
    seed : int or list of int
        The same seed gives the same samples on the same machine.
    viable : callable, optional
        Takes the text so far; where it answers False the completion is cut there, unfinished.
        An evaluation that could only call such a text invalid need not pay for the rest of it.

    Returns
    -------
    list of Sample, length n
        In random order, so that any part of it is a set of independent samples too.
    """
    if stop_ids is None:
        stop_ids = chat.stop_ids(tokenizer, model.generation_config, {})
    rng = np.random.default_rng(seed)
    prompt_cache = DynamicCache(config=model.config)
    first = _forward(model, np.array([prompt_ids]), prompt_cache)
    ended_branches: list[_Branches] = []
    waiting = [_Branches(np.zeros((1, 0), dtype=np.int64), np.array([n]))]
    while waiting:
        branches = waiting.pop()
        cache = copy.deepcopy(prompt_cache)
        cache.batch_repeat_interleave(len(branches.counts))
        at_root = branches.prefixes.shape[1] == 0
        probabilities = first if at_root else _forward(model, branches.prefixes, cache)
        while True:
            parents, tokens, counts = split_counts(probabilities, branches.counts, rng)
            children = _Branches(np.hstack([branches.prefixes[parents], tokens[:, None]]), counts)
            ended = np.isin(tokens, list(stop_ids))
            ended |= children.prefixes.shape[1] == max_new_tokens
            if viable is not None:
                texts = tokenizer.batch_decode(children.prefixes, skip_special_tokens=True)
                ended |= ~np.array([viable(text) for text in texts])
            ended_branches.append(children.take(np.flatnonzero(ended)))
            live = np.flatnonzero(~ended)
            if live.size == 0:
                break
            for start in range(max_rows, live.size, max_rows):
                waiting.append(children.take(live[start : start + max_rows]))
            live = live[:max_rows]
            cache.batch_select_indices(torch.as_tensor(parents[live], device=model.device))
            branches = children.take(live)
            probabilities = _forward(model, branches.prefixes[:, -1:], cache)
    return _as_samples(ended_branches, tokenizer, stop_ids, rng)


def _as_samples(
    ended: list[_Branches], tokenizer, stop_ids: Collection[int], rng: np.random.Generator
) -> list[Sample]:
    """Decode each distinct completion once, repeat it by its count and shuffle."""
    paths = [tuple(prefix) for branches in ended for prefix in branches.prefixes.tolist()]
    counts = np.concatenate([branches.counts for branches in ended])
    finished = [path[-1] in stop_ids for path in paths]
    bodies = [path[:-1] if stop else path for path, stop in zip(paths, finished, strict=True)]
    texts = tokenizer.batch_decode(bodies, skip_special_tokens=True)
    distinct = [Sample(*sample) for sample in zip(paths, texts, finished, strict=True)]
    return [distinct[index] for index in rng.permutation(np.repeat(range(len(paths)), counts))]
