"""Canonical texts of a distribution and their probabilities (Paper A, canonical output space)."""

import math
from typing import NamedTuple

import numpy as np

from calibration_tuning.errors import InputError

TAIL = 0.001
"""Probability left out at an unbounded end; its mass is added to the outermost text."""

MAX_INTEGERS = 1_000_000

MAX_GRID_INDEX = 2**61
"""Grid points are counted in int64, with room for their difference."""


class OutputSpace(NamedTuple):
    """The target distribution over texts.

    Attributes
    ----------
    texts : list of str, length n, in rising order of value
    probabilities : float64 array (n,), sums to 1
    """

    texts: list[str]
    probabilities: np.ndarray


def integer_space(distribution) -> OutputSpace:
    """Every integer of the support, cut at the 0.1 % tails where it is unbounded.

    Each has its probability mass; the last also has the mass above it.

    Parameters
    ----------
    distribution : frozen discrete scipy distribution

    Raises
    ------
    InputError
        If there are more than `MAX_INTEGERS` values.
    """
    low, high = distribution.support()
    first = int(low) if math.isfinite(low) else math.floor(distribution.ppf(TAIL))
    # scipy puts the quantiles of a point mass (geometric with p=1) below its support.
    last = int(high) if math.isfinite(high) else max(first, math.ceil(distribution.ppf(1 - TAIL)))
    if last - first >= MAX_INTEGERS:
        raise InputError(
            f"{last - first + 1} integers between {first} and {last}: expected at most "
            f"{MAX_INTEGERS}"
        )
    values = np.arange(first, last + 1)
    probabilities = np.asarray(distribution.pmf(values), dtype=np.float64)
    if not math.isfinite(high):
        probabilities[-1] += distribution.sf(last)
    return OutputSpace([str(value) for value in values], probabilities / probabilities.sum())


def continuous_space(distribution, decimals: int, max_bins: int) -> OutputSpace:
    """Multiples of 10^-decimals between the 0.1 % tails, thinned evenly to at most max_bins.

    The mass of a point is the CDF difference between the midpoints to its neighbours; the outer
    two also have the tails.

    Parameters
    ----------
    distribution : frozen continuous scipy distribution
    decimals : int
        Decimals of the fixed-point texts.
    max_bins : int

    Raises
    ------
    InputError
        If a setting is out of range, the range has too many multiples of 10^-decimals to count,
        or none.
    """
    if not isinstance(decimals, int) or decimals < 0:
        raise InputError(f"decimals: expected an integer of at least 0, got {decimals!r}")
    if not isinstance(max_bins, int) or max_bins < 1:
        raise InputError(f"max_bins: expected an integer of at least 1, got {max_bins!r}")
    low, high = distribution.ppf(TAIL), distribution.ppf(1 - TAIL)
    step = 10.0**-decimals
    if max(abs(low), abs(high)) / step > MAX_GRID_INDEX:
        raise InputError(
            f"too many numbers with {decimals} decimals lie between {low:.6g} and {high:.6g}; "
            "expected fewer decimals"
        )
    # No tolerance at the ends: a point that rounding puts just outside is left out, as in the
    # expected values that the tests hold.
    first, last = math.ceil(low / step), math.floor(high / step)
    size = last - first + 1
    if size < 1:
        raise InputError(
            f"no number with {decimals} decimals lies between {low:.6g} and {high:.6g}; "
            "expected more decimals"
        )
    if size > max_bins:
        offsets = np.linspace(0, size - 1, max_bins).astype(np.int64)
    else:
        offsets = np.arange(size)
    values = (first + offsets) / 10**decimals
    inner = distribution.cdf((values[1:] + values[:-1]) / 2)
    probabilities = np.diff(np.concatenate([[0.0], inner, [1.0]]))
    probabilities = np.maximum(probabilities, 0.0)
    texts = [f"{value:.{decimals}f}" for value in values.tolist()]
    return OutputSpace(texts, probabilities / probabilities.sum())
