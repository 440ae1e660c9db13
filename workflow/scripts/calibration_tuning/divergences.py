"""How far the model is from the target, in nats, by packed passes over the trie.

The papers average the soft loss over four random paths of a prompt. The sequence KL is a sum over
prefixes, ``sum of mass(prefix) * KL(q(. | prefix), p(. | prefix))``, so here the prefixes that
carry most mass are evaluated exactly, each once. On a trie with no more prefixes than asked for
that is everything, and the result is exact; on a larger one, paths drawn among those that go beyond
these prefixes estimate the rest, with a standard error.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from calibration_tuning.objectives import TARGET_FLOOR
from calibration_tuning.packing import next_token_logits
from calibration_tuning.prefix_trie import Branches
from calibration_tuning.trie import CdfTrie, PrefixTrie, prefixes_of


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
        0 where every prefix was used.
    space_mass : float or None
        The probability that the model puts on the output space; None where paths were sampled.
    space_mass_bound : float
        The most that it can be, from the prefixes evaluated exactly.
    space_wasserstein : float or None
        1-Wasserstein distance between the target and the model's distribution given that it
        answers with a canonical text, in units of the values; None where paths were sampled.
    prefixes : int
        Number of prefixes evaluated exactly.
    paths : int or None
        Number of sampled paths; None where every prefix was used.
    """

    logit_kl: float
    sequence_kl: float
    logit_kl_standard_error: float
    sequence_kl_standard_error: float
    space_mass: float | None
    space_mass_bound: float
    space_wasserstein: float | None
    prefixes: int
    paths: int | None


def heaviest_prefixes(
    trie: PrefixTrie | CdfTrie, count: int
) -> tuple[list[tuple[int, ...]], Branches, list[tuple[float, tuple[int, ...]]]]:
    """The prefixes that carry most mass, each after its own prefixes.

    Returns
    -------
    prefixes : list of tuple of int, at most `count`
    branches : their children
    beyond : list of (mass, prefix)
        The children that are prefixes themselves but not among these: none if these are all.
    """
    prefixes: list[tuple[int, ...]] = []
    parts: list[Branches] = []
    waiting: list[tuple[float, tuple[int, ...]]] = [(1.0, ())]
    while waiting and len(prefixes) < count:
        # A child is no heavier than its parent: the heavier half of the waiting ones go first.
        waiting.sort(reverse=True)
        bound = waiting[0][0] / 2
        number = sum(mass >= bound for mass, _ in waiting[: count - len(prefixes)])
        batch = [prefix for _, prefix in waiting[:number]]
        found = trie.branches(batch)
        waiting = waiting[number:] + [
            (mass, (*batch[row], token))
            for row, token, mass in zip(
                found.row.tolist(), found.token.tolist(), found.mass.tolist(), strict=True
            )
            if token != trie.end_id
        ]
        parts.append(found._replace(row=found.row + len(prefixes)))
        prefixes += batch
    branches = Branches(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
    return prefixes, branches, waiting


def complete_paths(
    trie: PrefixTrie | CdfTrie, starts: Sequence[tuple[int, ...]], rng: np.random.Generator
) -> list[tuple[int, ...]]:
    """Continue prefixes to whole paths, drawn from the target."""
    paths = list(starts)
    unfinished = list(range(len(paths)))
    while unfinished:
        found = trie.branches([paths[number] for number in unfinished])
        edges = np.searchsorted(found.row, np.arange(len(unfinished) + 1))
        cumulative = np.concatenate([[0.0], np.cumsum(found.mass)])
        low, high = cumulative[edges[:-1]], cumulative[edges[1:]]
        drawn = low + rng.random(len(unfinished)) * (high - low)
        child = np.searchsorted(cumulative, drawn, side="right") - 1
        token = found.token[np.clip(child, edges[:-1], edges[1:] - 1)].tolist()
        for number, next_token in zip(unfinished, token, strict=True):
            paths[number] = (*paths[number], next_token)
        unfinished = [n for n in unfinished if paths[n][-1] != trie.end_id]
    return paths


@torch.inference_mode()
def branch_log_probabilities(
    model: torch.nn.Module,
    prompt_ids: list[int],
    prefixes: Sequence[tuple[int, ...]],
    branches: Branches,
    max_prefixes: int,
    temperature: float = 1.0,
) -> np.ndarray:
    """The model's log-probability of the children of prefixes of a completion.

    Parameters
    ----------
    model : causal language model in evaluation mode
    prompt_ids : list of int
    prefixes : sequence of tuple of int
    branches : the children wanted, by prefix
    max_prefixes : int
        Prefixes in one forward pass; bounds memory.
    temperature : float
        At which the model is sampled; it divides the logits.

    Returns
    -------
    float64 array (children,), nats
    """
    log_p = np.empty(len(branches.row))
    order = sorted(range(len(prefixes)), key=prefixes.__getitem__)  # neighbours share their start
    place = np.empty(len(prefixes), dtype=np.int64)
    place[order] = np.arange(len(order))
    for start in range(0, len(order), max_prefixes):
        chunk = order[start : start + max_prefixes]
        logits = next_token_logits(model, [[*prompt_ids, *prefixes[number]] for number in chunk])
        logits = logits.float() / temperature
        normaliser = torch.logsumexp(logits, dim=-1)
        row = place[branches.row] - start
        wanted = np.flatnonzero((row >= 0) & (row < len(chunk)))
        rows = torch.from_numpy(row[wanted]).to(model.device)
        tokens = torch.from_numpy(branches.token[wanted]).to(model.device)
        log_p[wanted] = (logits[rows, tokens] - normaliser[rows]).double().cpu().numpy()
    return log_p


def prefix_divergences(branches: Branches, log_p: np.ndarray) -> np.ndarray:
    """The soft loss at every prefix: KL of the target's next token from the model's, nats."""
    q = branches.mass / np.bincount(branches.row, branches.mass)[branches.row]
    return np.bincount(branches.row, q * (np.log(np.maximum(q, TARGET_FLOOR)) - log_p))


def divergence(
    model: torch.nn.Module,
    prompt_ids: list[int],
    trie: PrefixTrie | CdfTrie,
    *,
    exact_prefixes: int,
    sampled_paths: int,
    seed: int | list[int],
    max_prefixes: int = 256,
    temperature: float = 1.0,
) -> Divergence:
    """Divergence of the model from a target.

    Parameters
    ----------
    model, prompt_ids, max_prefixes, temperature : see `branch_log_probabilities`
    trie : the target
    exact_prefixes : int
        Prefixes to evaluate exactly, at least 1; the heaviest are taken.
    sampled_paths : int
        Paths drawn where the target has more prefixes, at least 2.
    seed : of the drawn paths
    """
    prefixes, branches, waiting = heaviest_prefixes(trie, exact_prefixes)
    total = branches.mass[branches.row == 0].sum()
    paths = _paths_beyond(trie, waiting, sampled_paths, seed) if waiting else []
    on_paths, numbers = prefixes_of(paths)
    known = set(prefixes)
    beyond = [prefix for prefix in on_paths if prefix not in known]
    everything = branches
    if beyond:
        more = trie.branches(beyond)
        more = more._replace(row=more.row + len(prefixes))
        everything = Branches(*map(np.concatenate, zip(branches, more, strict=True)))
    log_p = branch_log_probabilities(
        model, prompt_ids, [*prefixes, *beyond], everything, max_prefixes, temperature
    )
    kl = prefix_divergences(everything, log_p)
    number = len(prefixes)
    sequence_kl = float(np.bincount(branches.row, branches.mass) @ kl[:number] / total)
    logit_kl = float(np.bincount(branches.row, branches.mass_over_length) @ kl[:number] / total)
    p = np.exp(log_p[: len(branches.row)])
    reached, bound = model_masses(prefixes, branches, p, trie.end_id)
    if not waiting:
        mass = float(sum(reached.values()))
        distance = space_wasserstein(trie, prefixes, branches, reached) if mass > 0 else None
        return Divergence(logit_kl, sequence_kl, 0.0, 0.0, mass, bound, distance, number, None)
    # What the drawn paths meet beyond the exact prefixes, times the share of such paths.
    share = sum(mass for mass, _ in waiting) / total
    kl_of = dict(zip(beyond, kl[number:].tolist(), strict=True))
    along = np.array([kl_of.get(prefix, 0.0) for prefix in on_paths] + [0.0])[numbers]
    rest = share * along.sum(axis=1)
    rest_over_length = rest / (numbers >= 0).sum(axis=1)
    errors = (float(x.std(ddof=1) / np.sqrt(len(paths))) for x in (rest_over_length, rest))
    logit_kl, sequence_kl = logit_kl + rest_over_length.mean(), sequence_kl + rest.mean()
    return Divergence(
        float(logit_kl), float(sequence_kl), *errors, None, bound, None, number, len(paths)
    )


def _paths_beyond(
    trie: PrefixTrie | CdfTrie,
    waiting: Sequence[tuple[float, tuple[int, ...]]],
    n: int,
    seed: int | list[int],
) -> list[tuple[int, ...]]:
    """Paths drawn from the target among those through some prefixes, given with their masses."""
    rng = np.random.default_rng(seed)
    mass = np.array([mass for mass, _ in waiting])
    starts = rng.choice(len(waiting), size=n, p=mass / mass.sum())
    return complete_paths(trie, [waiting[start][1] for start in starts], rng)


def model_masses(
    prefixes: Sequence[tuple[int, ...]], branches: Branches, p: np.ndarray, end_id: int
) -> tuple[dict[tuple[int, ...], float], float]:
    """What the model's probability amounts to along the evaluated prefixes.

    Parameters
    ----------
    prefixes : each after its own prefixes
    branches : their children
    p : float64 array (children,)
        The model's probability of each child at its prefix.

    Returns
    -------
    complete : dict
        The model's probability of every text that was evaluated to its end, by its tokens before
        the end token.
    bound : float
        Of those and of all prefixes where the evaluation stopped: no output space text can have
        more.
    """
    mass = {(): 1.0}
    complete = {}
    for row, token, probability in zip(
        branches.row.tolist(), branches.token.tolist(), p.tolist(), strict=True
    ):
        prefix = prefixes[row]
        if token == end_id:
            complete[prefix] = mass[prefix] * probability
        else:
            mass[(*prefix, token)] = mass[prefix] * probability
    stopped = sum(mass[prefix] for prefix in mass.keys() - set(prefixes))
    return complete, float(sum(complete.values()) + stopped)


def space_wasserstein(
    trie: PrefixTrie | CdfTrie,
    prefixes: Sequence[tuple[int, ...]],
    branches: Branches,
    complete: dict[tuple[int, ...], float],
) -> float:
    """1-Wasserstein distance between the target and the model given the output space.

    Parameters
    ----------
    trie : a target whose texts are numbers
    prefixes, branches : all of them
    complete : as `model_masses` returns it

    Returns
    -------
    float
        In units of the values.
    """
    ends = np.flatnonzero(branches.token == trie.end_id)
    texts = [prefixes[row] for row in branches.row[ends]]
    values = np.array([float(trie.text((*text, trie.end_id))) for text in texts])
    p, q = np.array([complete[text] for text in texts]), branches.mass[ends]
    order = np.argsort(values)
    gap = np.cumsum((p / p.sum() - q / q.sum())[order])
    return float(np.abs(gap[:-1]) @ np.diff(values[order]))
