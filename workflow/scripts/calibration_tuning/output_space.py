"""Canonical texts of a distribution and their probabilities (Paper A, canonical output space)."""

import math
from typing import NamedTuple

import numpy as np

from calibration_tuning.errors import InputError

TAIL = 0.001
"""Probability left out at an unbounded end; its mass is added to the outermost text."""

MAX_INTEGERS = 1_000_000

MAX_GRID_INDEX = 10**17
"""Grid points are counted in int64, with room for ten times their number."""


class OutputSpace(NamedTuple):
    """The target distribution over texts.

    Attributes
    ----------
    texts : list of str, length n, in rising order of value
    probabilities : float64 array (n,), sums to 1
    """

    texts: list[str]
    probabilities: np.ndarray


def integer_range(distribution) -> tuple[int, int]:
    """First and last integer of the output space; see `integer_space`."""
    low, high = distribution.support()
    first = int(low) if math.isfinite(low) else math.floor(distribution.ppf(TAIL))
    # scipy puts the quantiles of a point mass (geometric with p=1) below its support.
    last = int(high) if math.isfinite(high) else max(first, math.ceil(distribution.ppf(1 - TAIL)))
    if last - first >= MAX_INTEGERS:
        raise InputError(
            f"{last - first + 1} integers between {first} and {last}: expected at most "
            f"{MAX_INTEGERS}"
        )
    return first, last


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
    first, last = integer_range(distribution)
    values = np.arange(first, last + 1)
    probabilities = np.asarray(distribution.pmf(values), dtype=np.float64)
    if not math.isfinite(distribution.support()[1]):
        probabilities[-1] += distribution.sf(last)
    return OutputSpace([str(value) for value in values], probabilities / probabilities.sum())


def continuous_range(distribution, decimals: int) -> tuple[int, int]:
    """First and last multiple of 10^-decimals of the output space; see `continuous_space`."""
    if not isinstance(decimals, int) or decimals < 0:
        raise InputError(f"decimals: expected an integer of at least 0, got {decimals!r}")
    low, high = distribution.ppf([TAIL, 1 - TAIL]).tolist()
    step = 10.0**-decimals
    if max(abs(low), abs(high)) / step > MAX_GRID_INDEX:
        raise InputError(
            f"too many numbers with {decimals} decimals lie between {low:.6g} and {high:.6g}; "
            "expected fewer decimals"
        )
    # No tolerance at the ends: a point that rounding puts just outside is left out, as in the
    # expected values that the tests hold.
    first, last = math.ceil(low / step), math.floor(high / step)
    if last < first:
        raise InputError(
            f"no number with {decimals} decimals lies between {low:.6g} and {high:.6g}; "
            "expected more decimals"
        )
    return first, last


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
    if not isinstance(max_bins, int) or max_bins < 1:
        raise InputError(f"max_bins: expected an integer of at least 1, got {max_bins!r}")
    first, last = continuous_range(distribution, decimals)
    size = last - first + 1
    if size > max_bins:
        offsets = np.linspace(0, size - 1, max_bins).astype(np.int64)
    else:
        offsets = np.arange(size)
    values = (first + offsets) / 10**decimals
    below, above = cumulative(distribution, (values[1:] + values[:-1]) / 2)
    probabilities = differences(
        np.concatenate([[0.0], below, [0.0]]), np.concatenate([[False], above, [True]])
    )
    texts = [f"{value:.{decimals}f}" for value in values.tolist()]
    return OutputSpace(texts, probabilities / probabilities.sum())


def cumulative(distribution, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The CDF in a form whose differences are precise in both tails.

    Near 1 the CDF keeps no more than 16 decimals, which is less than the mass of a cell with five
    decimals in a heavy tail needs. Above the median this is therefore CDF - 1, from the survival
    function.

    Parameters
    ----------
    distribution : scipy distribution, frozen or as `calibration_tuning.families.Functions`
    points : float array (n,)

    Returns
    -------
    values : float64 array (n,)
        The CDF, less 1 above the median.
    above : bool array (n,)
        Where 1 is missing.
    """
    values = np.asarray(distribution.cdf(points), dtype=np.float64)
    above = values > 0.5
    if above.any():
        survival = distribution.sf(points[above])
        # scipy's inverse Gaussian has no survival function at extreme parameters.
        values[above] = np.where(np.isnan(survival), values[above] - 1.0, -survival)
    return values, above


def differences(values: np.ndarray, above: np.ndarray) -> np.ndarray:
    """Mass between neighbouring points of `cumulative`; never negative."""
    return np.maximum(np.diff(values) + np.diff(above.astype(np.int8)), 0.0)


class CellMasses:
    """The mass of any run of canonical values at full resolution, from CDF differences.

    Value number i is ``i * 10**-decimals``; the tails belong to the outermost values as in
    `integer_space` and `continuous_space`.

    Parameters
    ----------
    distribution : scipy distribution, frozen or as `calibration_tuning.families.Functions`
    is_integer : bool
    decimals : int
        Not used for integers, which have none.

    Attributes
    ----------
    first, last : int
        Numbers of the outermost values.

    Raises
    ------
    InputError
        As `integer_space` and `continuous_space`.
    """

    def __init__(self, distribution, is_integer: bool, decimals: int):
        self._distribution, self._is_integer = distribution, is_integer
        self._scale = 1 if is_integer else 10**decimals
        if is_integer:
            self.first, self.last = integer_range(distribution)
            # What lies below the first integer is left out, not added to it.
            self._start = float(distribution.cdf(self.first - 1))
        else:
            self.first, self.last = continuous_range(distribution, decimals)
            self._start = 0.0

    def mass(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Mass of the values numbered low to high - 1, up to one constant for all runs.

        Parameters
        ----------
        low, high : int64 arrays (n,)

        Returns
        -------
        float64 array (n,), 0 for a run that is empty or outside the range
        """
        low = np.clip(low, self.first, self.last + 1)
        high = np.clip(high, low, self.last + 1)
        edges, place = np.unique(np.concatenate([low, high]), return_inverse=True)
        values, above = self._cumulative(edges)
        start, end = place[: len(low)], place[len(low) :]
        whole = above[end].astype(np.int8) - above[start]
        return np.maximum(values[end] - values[start] + whole, 0.0)

    def _cumulative(self, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`cumulative` at the lower edges of values; edges rise from first to last + 1."""
        inner = slice(*np.searchsorted(edges, [self.first + 1, self.last + 1]))
        values, above = np.zeros(len(edges)), np.zeros(len(edges), dtype=bool)
        values[: inner.start], above[inner.stop :] = self._start, True
        if self._is_integer:
            points = edges[inner] - 1.0
        else:
            points = ((edges[inner] - 1) / self._scale + edges[inner] / self._scale) / 2
        if len(points):
            values[inner], above[inner] = cumulative(self._distribution, points)
        return values, above

    def draw(self, uniform: np.ndarray) -> np.ndarray:
        """The value numbers at quantiles of the target.

        Parameters
        ----------
        uniform : float64 array (n,), in [0, 1)

        Returns
        -------
        int64 array (n,)
        """
        if self._is_integer:
            edges = np.arange(self.first + 1, self.last + 1)
            inner = self._distribution.cdf(edges - 1.0)
            quantiles = self._start + uniform * (1.0 - self._start)
            return self.first + np.searchsorted(inner, quantiles, side="right")
        values = self._distribution.ppf(uniform) * self._scale
        return np.clip(np.rint(values), self.first, self.last).astype(np.int64)
