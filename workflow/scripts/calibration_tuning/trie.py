"""Tries: the target distribution of the next token after every prefix of a canonical text.

`PrefixTrie` is built from a list of texts, `CdfTrie` straight from a distribution function. Both
have `branches`, `next_tokens`, `sample` and `sample_paths`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from calibration_tuning.cdf_trie import CdfTrie
from calibration_tuning.errors import InputError
from calibration_tuning.families import Distribution
from calibration_tuning.prefix_trie import PrefixTrie

FULL_RESOLUTION = "full"
"""What `max_bins` says where no grid is thinned."""


class PathTargets(NamedTuple):
    """Target distributions at every prefix of some paths, each prefix once.

    Attributes
    ----------
    prefix : int64 array (paths, longest)
        Number of the prefix before each token of each path; -1 past a path's end.
    row : int64 array (targets,)
        Number of the prefix of each target entry.
    token : int64 array (targets,)
    probability : float64 array (targets,)
        Sums to 1 over the entries of a prefix.
    """

    prefix: np.ndarray
    row: np.ndarray
    token: np.ndarray
    probability: np.ndarray


def prefixes_of(
    paths: Sequence[tuple[int, ...]],
) -> tuple[list[tuple[int, ...]], np.ndarray]:
    """Every prefix of some paths once, and which of them precedes each token of each path.

    Returns
    -------
    prefixes : list of tuple of int
    numbers : int64 array (paths, longest)
        -1 past a path's end.
    """
    number_of: dict[tuple[int, ...], int] = {}
    numbers = np.full((len(paths), max(map(len, paths), default=0)), -1, dtype=np.int64)
    for row, path in enumerate(paths):
        for depth in range(len(path)):
            numbers[row, depth] = number_of.setdefault(path[:depth], len(number_of))
    return list(number_of), numbers


def path_targets(trie: PrefixTrie | CdfTrie, paths: Sequence[tuple[int, ...]]) -> PathTargets:
    """The target distribution at every prefix of some paths of a trie."""
    prefixes, numbers = prefixes_of(paths)
    found = trie.branches(prefixes)
    total = np.bincount(found.row, found.mass)
    return PathTargets(numbers, found.row, found.token, found.mass / total[found.row])


def build_trie(
    distribution: Distribution,
    decimals: int,
    max_bins: int | str,
    encode: Callable[[str], list[int]],
    end_id: int,
) -> PrefixTrie | CdfTrie:
    """The trie of a distribution's canonical texts.

    Parameters
    ----------
    distribution, decimals, encode, end_id : see `CdfTrie`
    max_bins : int or "full"
        A number lists and thins the texts (the papers' way); "full" takes the CDF.

    Raises
    ------
    InputError
        If the output space has no text or too many, or "full" meets a tokenizer that writes
        numbers neither digit by digit nor in groups from the left.
    """
    if max_bins == FULL_RESOLUTION:
        try:
            return CdfTrie(distribution, decimals, encode, end_id)
        except ValueError as error:
            raise InputError(f"max_bins: full: {error}; expected a number with it") from None
    space = distribution.output_space(decimals, max_bins)
    return PrefixTrie(space.texts, space.probabilities, encode, end_id)
