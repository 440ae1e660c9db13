"""Distances between samples and a distribution, tests of fit, and bootstrap intervals.

Everything works on plain numbers, so that every evaluation can use it.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import scipy.stats

from calibration_tuning.families import Distribution

# A cell of a chi-square test with a smaller expected count is pooled with its neighbour.
SMALLEST_EXPECTED_COUNT = 5.0
# Sums of probabilities that should be equal differ by rounding: 9 x 0.1 must reach 0.9.
ROUNDING = 1e-9


def wasserstein_1(samples: Sequence[float], distribution: Distribution) -> float:
    """Wasserstein-1 distance between samples and a distribution, in units of the samples.

    The mean over i of |x_(i) - ppf((i + 0.5) / n)| with x_(i) the i-th smallest of the n
    samples, i from 0 (Paper A, structured sampling).

    Parameters
    ----------
    samples : sequence of float, shape (n,)
        In any order, also outside the support.
    distribution : Distribution
        What the samples are compared with: the exact distribution, not a discretised one.

    Returns
    -------
    float
        0 or more.

    Raises
    ------
    ValueError
        No samples.
    """
    ordered = np.sort(np.asarray(samples, dtype=np.float64))
    if ordered.size == 0:
        raise ValueError("wasserstein_1 needs at least one sample")
    levels = (np.arange(ordered.size) + 0.5) / ordered.size
    return float(np.mean(np.abs(ordered - distribution.scipy.ppf(levels))))


def top_p_support(probabilities: Sequence[float], thresholds: Iterable[float]) -> dict[float, int]:
    """Smallest number of candidates whose probabilities sum to at least p, for every p.

    (Paper A, open-ended random generation.)

    Parameters
    ----------
    probabilities : sequence of float, shape (n,)
        Probabilities of the candidates, in any order; they sum to 1 (to 0.001, since a float32
        softmax over a large vocabulary does no better).
    thresholds : iterable of float
        Values of p, above 0 and at most 1.

    Returns
    -------
    dict of float to int
        From p to a number of candidates between 1 and n.

    Raises
    ------
    ValueError
        Probabilities that are negative or don't sum to 1, or a threshold out of range.
    """
    probabilities = np.asarray(probabilities, dtype=np.float64)
    total = probabilities.sum()
    if probabilities.size == 0 or not abs(total - 1) <= 1e-3 or probabilities.min() < 0:
        raise ValueError(f"expected probabilities that sum to 1, not to {total}")
    cumulative = np.cumsum(np.sort(probabilities)[::-1]) / total
    support = {}
    for threshold in thresholds:
        if not 0 < threshold <= 1:
            raise ValueError(f"threshold {threshold}: expected a number above 0, at most 1")
        support[threshold] = int(np.searchsorted(cumulative, threshold - ROUNDING)) + 1
    return support


def kolmogorov_smirnov(samples: Sequence[float], distribution: Distribution) -> tuple[float, float]:
    """Two-sided Kolmogorov-Smirnov test of samples against a continuous distribution.

    Rounded samples are not draws of the continuous distribution. Where much mass lies between two
    neighbouring points of the grid, the test sees it: even exact samples of the discretised target
    of an exponential distribution with rate 7 and two decimals are rejected, at 400 of them.

    Parameters
    ----------
    samples : sequence of float, shape (n,), n >= 1
    distribution : Distribution
        A continuous one; for integer families the test is wrong.

    Returns
    -------
    statistic : float
        Largest distance between the two distribution functions, 0 to 1.
    p_value : float

    Raises
    ------
    ValueError
        An integer-valued distribution, or no samples.
    """
    if distribution.is_integer:
        raise ValueError(f"{distribution.family} is integer-valued: use chi_square")
    result = scipy.stats.kstest(np.asarray(samples, np.float64), distribution.scipy.cdf)
    return float(result.statistic), float(result.pvalue)


def chi_square(samples: Sequence[float], distribution: Distribution) -> tuple[float, float] | None:
    """Chi-square test of integer samples against an integer-valued distribution.

    The whole line is cut into cells of neighbouring integers with an expected count of at
    least `SMALLEST_EXPECTED_COUNT` each; the outer two hold the tails.

    Parameters
    ----------
    samples : sequence of float, shape (n,)
        Integral values.
    distribution : Distribution
        An integer-valued one.

    Returns
    -------
    (statistic, p_value), or None where there are too few samples for two cells.

    Raises
    ------
    ValueError
        A continuous distribution.
    """
    if not distribution.is_integer:
        raise ValueError(f"{distribution.family} is continuous: use kolmogorov_smirnov")
    samples = np.asarray(samples, dtype=np.float64)
    if samples.size == 0:
        return None
    # A cell ends at its largest integer; the last cell ends nowhere. Beyond the two quantiles
    # less than one hundredth of a sample is expected.
    tail = 0.01 / samples.size
    integers = np.arange(distribution.scipy.ppf(tail), distribution.scipy.isf(tail) + 1)
    cumulative = distribution.scipy.cdf(integers)
    smallest_mass = SMALLEST_EXPECTED_COUNT / samples.size
    ends, below = [], 0.0
    for integer, mass in zip(integers, cumulative, strict=True):
        if mass - below >= smallest_mass - ROUNDING and 1 - mass >= smallest_mass - ROUNDING:
            ends.append(integer)
            below = mass
    if not ends:
        return None
    bounds = np.concatenate([[-np.inf], ends, [np.inf]])
    expected = np.diff(distribution.scipy.cdf(bounds)) * samples.size
    # Cell number of a sample: the number of cell ends below it.
    cells = np.searchsorted(ends, samples, side="left")
    observed = np.bincount(cells, minlength=len(ends) + 1)
    statistic = float(np.sum((observed - expected) ** 2 / expected))
    return statistic, float(scipy.stats.chi2.sf(statistic, df=len(ends)))


def family_mean_interval(
    values: Sequence[float | None],
    families: Sequence[str],
    *,
    seed: int,
    resamples: int = 2000,
    level: float = 0.95,
) -> dict[str, float | int | None]:
    """Mean with equal weight for every family, and a percentile bootstrap interval.

    The bootstrap draws prompts within families, so families are taken as given: the interval
    says how far the choice of prompts moves the mean. A family with a single prompt gives no
    information about that, and the interval is then undefined.

    Parameters
    ----------
    values : sequence of float or None, shape (n,)
        A prompt's value each; None and NaN are left out.
    families : sequence of str, shape (n,)
        The prompts' families.
    seed : int
        Of the bootstrap's random numbers.
    resamples : int
        Number of bootstrap samples.
    level : float
        Coverage of the interval.

    Returns
    -------
    dict
        "mean", "low", "high" (None where undefined) and "n", the number of values used.

    Raises
    ------
    ValueError
        As many values as families are needed.
    """
    groups: dict[str, list[float]] = {}
    for value, family in zip(values, families, strict=True):
        if value is not None and not np.isnan(value):
            groups.setdefault(family, []).append(float(value))
    result = {"mean": None, "low": None, "high": None, "n": sum(map(len, groups.values()))}
    if not groups:
        return result
    result["mean"] = float(np.mean([np.mean(group) for group in groups.values()]))
    if min(map(len, groups.values())) < 2:
        return result
    rng = np.random.default_rng(seed)
    means = np.zeros(resamples)
    for family in sorted(groups):
        group = np.asarray(groups[family])
        means += group[rng.integers(group.size, size=(resamples, group.size))].mean(axis=1)
    low, high = np.quantile(means / len(groups), [(1 - level) / 2, (1 + level) / 2])
    result["low"], result["high"] = float(low), float(high)
    return result
