"""Distances, tests of fit and intervals against known values and laws."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration_tuning import statistics
from calibration_tuning.families import Distribution

EXPECTED = json.loads((Path(__file__).parents[1] / "data" / "expected.json").read_text())
GAUSSIAN = Distribution("gaussian", {"mu": 1.0, "sigma": 2.0})
POISSON = Distribution("poisson", {"lambda": 4.0})


@pytest.mark.parametrize("case", EXPECTED["wasserstein"], ids=lambda case: case["family"])
def test_wasserstein_equals_expected(case):
    distribution = Distribution(case["family"], case["params"])
    distance = statistics.wasserstein_1(case["samples"], distribution)
    assert distance == pytest.approx(case["wasserstein_1"], abs=1e-9)


@given(st.floats(-50, 50), st.integers(1, 40))
def test_wasserstein_of_shifted_quantiles_is_the_shift(shift, n):
    quantiles = GAUSSIAN.scipy.ppf((np.arange(n) + 0.5) / n)
    samples = np.random.default_rng(0).permutation(quantiles + shift)
    assert statistics.wasserstein_1(samples, GAUSSIAN) == pytest.approx(abs(shift), abs=1e-9)


def test_wasserstein_needs_samples():
    with pytest.raises(ValueError, match="at least one sample"):
        statistics.wasserstein_1([], GAUSSIAN)


@pytest.mark.parametrize("case", EXPECTED["top_p_support"])
def test_top_p_support_equals_expected(case):
    support = {float(p): count for p, count in case["support"].items()}
    assert statistics.top_p_support(case["probabilities"], support) == support


def test_top_p_support_of_sums_that_miss_by_rounding():
    # In floating point, nine times 0.1 is less than 0.9.
    assert statistics.top_p_support([0.1] * 10, [0.1, 0.9, 1.0]) == {0.1: 1, 0.9: 9, 1.0: 10}


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=30), st.floats(0.01, 1))
def test_top_p_support_is_the_smallest(weights, threshold):
    probabilities = np.array(weights) / sum(weights)
    count = statistics.top_p_support(probabilities, [threshold])[threshold]
    ordered = np.sort(probabilities)[::-1]
    assert ordered[:count].sum() >= threshold - 1e-8
    assert ordered[: count - 1].sum() < threshold


@pytest.mark.parametrize(
    ("probabilities", "threshold"), [([0.5, 0.2], 0.9), ([], 0.9), ([1.5, -0.5], 0.9), ([1.0], 0)]
)
def test_top_p_support_refuses(probabilities, threshold):
    with pytest.raises(ValueError, match="expected"):
        statistics.top_p_support(probabilities, [threshold])


@pytest.mark.parametrize(
    ("test", "distribution", "size"),
    [
        (statistics.kolmogorov_smirnov, GAUSSIAN, 50),
        (statistics.chi_square, POISSON, 200),
        (statistics.chi_square, Distribution("bernoulli", {"p": 0.1}), 200),
    ],
)
def test_tests_of_fit_reject_true_samples_at_their_level(test, distribution, size):
    rng = np.random.default_rng(5)
    draws = distribution.scipy.rvs((400, size), random_state=rng)
    p_values = np.array([test(sample, distribution)[1] for sample in draws])
    # Within four standard errors of 5 %; discrete statistics do not hit it exactly.
    assert np.mean(p_values < 0.05) == pytest.approx(0.05, abs=0.045)
    assert np.median(p_values) == pytest.approx(0.5, abs=0.12)


def test_tests_of_fit_reject_wrong_samples():
    rng = np.random.default_rng(0)
    assert statistics.kolmogorov_smirnov(rng.normal(2, 2, 500), GAUSSIAN)[1] < 1e-6
    assert statistics.chi_square(rng.poisson(5, 500), POISSON)[1] < 1e-6
    # All mass far beyond the last integer that is likely: it belongs to the last cell.
    assert statistics.chi_square(np.full(50, 1e9), POISSON)[1] < 1e-6


def test_chi_square_by_hand():
    coin = Distribution("bernoulli", {"p": 0.5})
    statistic, p_value = statistics.chi_square([0] * 30 + [1] * 70, coin)
    assert statistic == pytest.approx(16.0)
    assert p_value == pytest.approx(6.334e-5, rel=1e-3)


def test_chi_square_of_too_few_samples_is_undefined():
    assert statistics.chi_square([3, 4, 5], POISSON) is None
    assert statistics.chi_square([], POISSON) is None


def test_tests_of_fit_refuse_the_wrong_kind():
    with pytest.raises(ValueError, match="integer-valued"):
        statistics.kolmogorov_smirnov([1, 2], POISSON)
    with pytest.raises(ValueError, match="continuous"):
        statistics.chi_square([1, 2], GAUSSIAN)


def test_family_mean_gives_families_equal_weight():
    result = statistics.family_mean_interval([0, 0, 0, 0, 1, 1], list("aaaabb"), seed=0)
    assert result == {"mean": 0.5, "low": 0.5, "high": 0.5, "n": 6}


def test_interval_is_undefined_with_one_prompt_a_family():
    result = statistics.family_mean_interval([1.0, 3.0, None], ["a", "b", "b"], seed=0)
    assert result == {"mean": 2.0, "low": None, "high": None, "n": 2}


@pytest.mark.parametrize("values", [[], [None, None], [float("nan")]])
def test_family_mean_of_nothing(values):
    result = statistics.family_mean_interval(values, ["a"] * len(values), seed=0)
    assert result == {"mean": None, "low": None, "high": None, "n": 0}


def test_interval_has_the_width_of_the_normal_approximation():
    rng = np.random.default_rng(1)
    values, families = rng.normal(0, 1, 200), ["a", "b"] * 100
    result = statistics.family_mean_interval(values, families, seed=3)
    assert result == statistics.family_mean_interval(values, families, seed=3)
    assert result["low"] < result["mean"] < result["high"]
    assert result["high"] - result["low"] == pytest.approx(2 * 1.96 / np.sqrt(200), rel=0.2)


def test_as_many_values_as_families():
    with pytest.raises(ValueError, match="zip"):
        statistics.family_mean_interval([1.0], ["a", "b"], seed=0)
