"""Many independent samples of prompts, each distinct prefix evaluated once.

n samples of one prompt repeat the same prefixes. The branching sampler keeps the distinct ones:
the prompt runs once, and at every step each live prefix runs once and its count is split over the
next tokens by a multinomial draw. n independent samples are exchangeable, and the counts of the
next tokens among the samples that share a prefix are multinomial given that prefix, so the result
is distributed exactly as n separate runs.

Where prefixes rarely meet, as in long free text, this is batched generation whose finished rows
leave the batch. Prompts with few samples each are run together.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from calibration_tuning import chat
from calibration_tuning.branch_cache import BatchRows, TokenTree

MAX_TREE_NODES = 2048
"""Nodes up to which prompts, and then their branches, are one token tree."""

ROWS_AT_A_TIME = 32
"""Rows whose cumulative probabilities are held at once, in float64."""


class Sample(NamedTuple):
    """One completion: the ids as drawn (the stop token included), and whether it stopped."""

    token_ids: tuple[int, ...]
    text: str
    finished: bool


@dataclass(frozen=True)
class Decoding:
    """How tokens are drawn and where a completion ends.

    Parameters
    ----------
    temperature, top_k, top_p, min_p : as transformers defines them
        The defaults change nothing: samples come from the model's own distribution.
    max_new_tokens : int
        Longest completion, the stop token included.
    stop_strings : sequence of str
        A completion that contains one of them has finished; it keeps the string, as transformers
        does.
    viable : callable, optional
        Takes the text so far; where it answers False the completion is cut there, unfinished.
        An evaluation that could only call such a text invalid need not pay for the rest of it.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    max_new_tokens: int = 32
    stop_strings: Sequence[str] = ()
    viable: Callable[[str], bool] | None = None

    def warpers(self) -> LogitsProcessorList:
        """What transformers applies to logits, in its order."""
        warpers = LogitsProcessorList()
        if self.temperature != 1.0:
            warpers.append(TemperatureLogitsWarper(float(self.temperature)))
        if self.top_k:
            warpers.append(TopKLogitsWarper(self.top_k))
        if self.top_p < 1.0:
            warpers.append(TopPLogitsWarper(self.top_p))
        if self.min_p:
            warpers.append(MinPLogitsWarper(self.min_p))
        return warpers


class _Branches(NamedTuple):
    """Prefixes of equal length: ids (rows, depth), the prompt and sample count of each (rows,)."""

    prefixes: np.ndarray
    prompts: np.ndarray
    counts: np.ndarray

    def take(self, rows: np.ndarray) -> "_Branches":
        return _Branches(*(array[rows] for array in self))


def split_counts(
    probabilities: torch.Tensor, counts: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Split each row's count over its next tokens by a multinomial draw.

    Parameters
    ----------
    probabilities : tensor (rows, vocabulary)
        Next-token probabilities, up to a constant a row.
    counts : int64 (rows,)
    rng : numpy Generator

    Returns
    -------
    parents, tokens, children : int64 arrays (children,)
        The row each child comes from, its token, and its count (all positive).
    """
    vocabulary = probabilities.shape[1]
    keys = []
    for start in range(0, len(counts), ROWS_AT_A_TIME):
        part = counts[start : start + ROWS_AT_A_TIME]
        # Inverse transform: one uniform a sample. The sum is in float64, since float32 loses the
        # tail of a vocabulary of 262,144.
        cumulative = probabilities[start : start + len(part)].double().cumsum(dim=-1)
        wanted = np.arange(part.max()) < part[:, None]
        uniform = np.zeros(wanted.shape)
        uniform[wanted] = rng.random(part.sum())
        points = torch.from_numpy(uniform).to(cumulative.device) * cumulative[:, -1:]
        # Below the total even where the product was rounded up to it.
        points = torch.minimum(points, torch.nextafter(cumulative[:, -1:], points.new_zeros(())))
        drawn = torch.searchsorted(cumulative, points, right=True).cpu().numpy()
        row = np.broadcast_to(np.arange(start, start + len(part))[:, None], wanted.shape)
        keys.append(row[wanted] * vocabulary + drawn[wanted])
    key, children = np.unique(np.concatenate(keys), return_counts=True)
    return key // vocabulary, key % vocabulary, children


def sample_completions(
    model: torch.nn.Module, tokenizer, prompt_ids: list[int], n: int, **options
) -> list[Sample]:
    """Draw n independent completions of one prompt.

    Parameters
    ----------
    prompt_ids : list of int
    model, tokenizer, n, options : see `sample_prompts`

    Returns
    -------
    list of Sample, length n
        In random order, so that any part of it is a set of independent samples too.
    """
    return sample_prompts(model, tokenizer, [prompt_ids], n, **options)[0]


@torch.inference_mode()
def sample_prompts(
    model: torch.nn.Module,
    tokenizer,
    prompts: Sequence[list[int]],
    n: int,
    *,
    stop_ids: Collection[int] | None = None,
    max_rows: int = 256,
    seed: int | list[int] = 0,
    progress: Callable[[int], object] | None = None,
    **decoding,
) -> list[list[Sample]]:
    """Draw n independent completions of each of several prompts.

    Prompts run together where their samples fit into one forward pass: one prompt's first steps
    have few rows, and a pass with few rows takes nearly as long as one with many.

    Parameters
    ----------
    model : causal language model in evaluation mode
    tokenizer : decodes the samples (special tokens dropped)
    prompts : token ids of each prompt
    n : int
        Samples of each.
    stop_ids : collection of int, optional
        Tokens that end a completion; by default those of the chat template and the model's
        generation config, see `calibration_tuning.chat.stop_ids`.
    max_rows : int
        Most prefixes in one forward pass. It bounds memory: the cache holds no more than
        ``max_rows * (longest prompt + max_new_tokens + 32)`` tokens, and the prompts themselves.
        Where more prefixes are live, the rest wait as token ids and their cache is computed anew.
    seed : int or list of int
        The same seed gives the same samples on the same machine.
    progress : callable, optional
        Told the number of samples that have ended, as they end.
    decoding : see `Decoding`

    Returns
    -------
    list of list of Sample
        n samples of each prompt, each list in random order.
    """
    how = Decoding(**decoding)
    if stop_ids is None:
        stop_ids = chat.stop_ids(tokenizer, model.generation_config, {})
    stop_ids = frozenset(stop_ids)
    rng = np.random.default_rng(seed)
    results: list[list[Sample]] = [[] for _ in prompts]
    for group in group_prompts([len(prompt) for prompt in prompts], n, max_rows):
        ended = _sample_group(
            model, tokenizer, [prompts[i] for i in group], n, how, stop_ids, max_rows, rng, progress
        )
        for number, index in enumerate(group):
            own = [branches.take(branches.prompts == number) for branches in ended]
            results[index] = _as_samples(own, tokenizer, stop_ids, how.stop_strings, rng)
    return results


def group_prompts(lengths: Sequence[int], n: int, max_rows: int) -> list[list[int]]:
    """Prompts that run together, of like length: their samples fill one pass, at most.

    Returns
    -------
    list of lists of indices
        Every prompt is in one of them.
    """
    groups: list[list[int]] = []
    tokens = 0
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        tokens += lengths[index]
        full = not groups or (len(groups[-1]) + 1) * n > max_rows or tokens > MAX_TREE_NODES
        if full:
            groups.append([])
            tokens = lengths[index]
        groups[-1].append(index)
    return groups


def _sample_group(
    model, tokenizer, prompts, n, how: Decoding, stop_ids, max_rows, rng, progress
) -> list[_Branches]:
    """The completions of prompts that run together, as counts of distinct ones."""
    tree = TokenTree(model, prompts)
    warpers = how.warpers()
    count = len(prompts)
    root = _Branches(np.zeros((count, 0), np.int64), np.arange(count), np.full(count, n))
    ended_branches, waiting = [], [root]
    while waiting:
        branches = waiting.pop()
        tree.restart(branches.prompts, branches.prefixes)
        live: TokenTree | BatchRows = tree
        while True:
            probabilities = torch.softmax(warpers(None, live.logits.float()), dim=-1)
            parents, tokens, counts = split_counts(probabilities, branches.counts, rng)
            children = _Branches(
                np.hstack([branches.prefixes[parents], tokens[:, None]]),
                branches.prompts[parents],
                counts,
            )
            ended = has_ended(children.prefixes, tokenizer, how, stop_ids)
            ended_branches.append(children.take(np.flatnonzero(ended)))
            if progress is not None:
                progress(int(counts[ended].sum()))
            going_on = np.flatnonzero(~ended)
            if going_on.size == 0:
                break
            for start in range(max_rows, going_on.size, max_rows):
                waiting.append(children.take(going_on[start : start + max_rows]))
            going_on = going_on[:max_rows]
            live.keep(parents[going_on])
            branches = children.take(going_on)
            if live is tree and tree.new_nodes + len(going_on) > MAX_TREE_NODES:
                live = BatchRows(tree)
            live.extend(tokens[going_on])
    return ended_branches


def has_ended(
    prefixes: np.ndarray, tokenizer, how: Decoding, stop_ids: Collection[int]
) -> np.ndarray:
    """Which completions end with their last token; bool (rows,)."""
    ended = np.isin(prefixes[:, -1], list(stop_ids))
    ended |= prefixes.shape[1] == how.max_new_tokens
    if how.stop_strings:
        # A string of b bytes lies within the last b tokens, if none of them is empty; a few more
        # keep the space that some tokenizers drop at the start of a text.
        tail = prefixes[:, -(max(len(text.encode()) for text in how.stop_strings) + 4) :]
        ended |= contains_any(tokenizer.batch_decode(tail), how.stop_strings)
    if how.viable is not None:
        texts = tokenizer.batch_decode(prefixes, skip_special_tokens=True)
        ended |= ~np.array([how.viable(text) for text in texts])
    return ended


def contains_any(texts: Sequence[str], strings: Sequence[str]) -> np.ndarray:
    """Which texts contain one of some strings; bool (texts,)."""
    return np.array([any(string in text for string in strings) for text in texts], dtype=bool)


def _as_samples(
    ended: list[_Branches],
    tokenizer,
    stop_ids: Collection[int],
    stop_strings: Sequence[str],
    rng: np.random.Generator,
) -> list[Sample]:
    """Decode each distinct completion once, repeat it by its count and shuffle."""
    paths = [tuple(prefix) for branches in ended for prefix in branches.prefixes.tolist()]
    counts = np.concatenate([branches.counts for branches in ended])
    stopped = [path[-1] in stop_ids for path in paths]
    bodies = [path[:-1] if stop else path for path, stop in zip(paths, stopped, strict=True)]
    texts = tokenizer.batch_decode(bodies, skip_special_tokens=True)
    finished = np.array(stopped)
    if stop_strings:  # as `has_ended` reads them, with special tokens
        finished |= contains_any(tokenizer.batch_decode(bodies), stop_strings)
    distinct = [Sample(*sample) for sample in zip(paths, texts, finished.tolist(), strict=True)]
    return [distinct[index] for index in rng.permutation(np.repeat(range(len(paths)), counts))]
