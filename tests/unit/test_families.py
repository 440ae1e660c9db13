"""Constructors that the expected output spaces do not cover, against closed-form moments."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from calibration_tuning.families import FAMILIES, Distribution

EXPECTED = json.loads((Path(__file__).parents[1] / "data" / "expected.json").read_text())

# family, parameters, mean, variance
MOMENTS = [
    ("gaussian", {"mu": 1.5, "sigma": 3}, 1.5, 9),
    ("binomial", {"n": 20, "p": 0.3}, 6, 4.2),
    ("geometric", {"p": 0.25}, 4, 12),
    ("lognormal", {"mu": 1, "sigma": 0.5}, math.exp(1.125), math.expm1(0.25) * math.exp(2.25)),
    ("rayleigh", {"sigma": 2}, 2 * math.sqrt(math.pi / 2), (4 - math.pi) / 2 * 4),
    ("student_t", {"nu": 5}, 0, 5 / 3),
    ("f_distribution", {"d1": 3, "d2": 10}, 10 / 8, 2 * 100 * 11 / (3 * 64 * 6)),
    ("laplace", {"mu": -1, "b": 2}, -1, 8),
    ("pareto", {"alpha": 3, "xm": 2}, 3, 3),
    ("gumbel", {"mu": 1, "beta": 2}, 1 + 2 * np.euler_gamma, math.pi**2 / 6 * 4),
    ("beta_binomial", {"n": 10, "alpha": 2, "beta": 3}, 4, 10 * 6 * 15 / (25 * 6)),
    ("inverse_gaussian", {"mu": 2, "lambda": 5}, 2, 8 / 5),
]


@pytest.mark.parametrize(("family", "params", "mean", "variance"), MOMENTS)
def test_moments(family, params, mean, variance):
    distribution = Distribution(family, params).scipy
    assert distribution.mean() == pytest.approx(mean, rel=1e-9, abs=1e-12)
    assert distribution.var() == pytest.approx(variance, rel=1e-9)


def test_every_constructor_is_checked_somewhere():
    covered = {case["family"] for case in EXPECTED["output_spaces"]} | {row[0] for row in MOMENTS}
    assert covered == set(FAMILIES)
