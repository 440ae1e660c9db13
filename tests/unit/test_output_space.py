"""Families and their output spaces against expected values and laws."""

import json
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from calibration_tuning.errors import InputError
from calibration_tuning.families import FAMILIES, Distribution, format_number

EXPECTED = json.loads((Path(__file__).parents[1] / "data" / "expected.json").read_text())
POSITIVE = st.floats(0.3, 8)
PROBABILITY = st.floats(0.02, 0.98)


@st.composite
def distributions(draw):
    """A distribution of any family with parameters that it exists for."""
    family = draw(st.sampled_from(sorted(FAMILIES)))
    special = {
        "uniform": lambda: {"a": (a := draw(st.floats(-50, 50))), "b": a + draw(POSITIVE)},
        "triangular": lambda: {
            "a": (a := draw(st.floats(-50, 50))),
            "c": a + draw(st.floats(0, 1)),
            "b": a + 1 + draw(POSITIVE),
        },
        "hypergeometric": lambda: {
            "M": float(m := draw(st.integers(5, 90))),
            "K": float(draw(st.integers(1, m))),
            "N": float(draw(st.integers(1, m))),
        },
        "truncnorm": lambda: {
            "mu": draw(st.floats(-2, 2)),
            "sigma": draw(POSITIVE),
            "lower": draw(st.floats(-4, -0.5)),
            "upper": draw(st.floats(0.5, 4)),
        },
        "inverse_gaussian": lambda: {"mu": draw(POSITIVE), "lambda": draw(POSITIVE)},
    }
    if family in special:
        return Distribution(family, special[family]())
    whole = {"n", "r", "d1", "d2", "nu", "df"}
    params = {}
    for name in FAMILIES[family].parameters:
        if name == "p":
            params[name] = draw(PROBABILITY)
        elif name in whole:
            params[name] = float(draw(st.integers(2, 40)))
        elif name in ("mu", "x0"):
            params[name] = draw(st.floats(-3, 3))
        else:
            params[name] = draw(POSITIVE)
    return Distribution(family, params)


def test_there_are_thirty_families_with_the_names_of_the_paper():
    assert len(FAMILIES) == 30
    assert sum(family.is_integer for family in FAMILIES.values()) == 8
    assert Distribution("student_t", {"nu": 3.0}).display_name == "Student's t"


@pytest.mark.parametrize(
    "case", EXPECTED["output_spaces"], ids=lambda c: f"{c['family']}-{c['num_decimals']}"
)
def test_expected_output_spaces(case):
    space = Distribution(case["family"], case["params"]).output_space(
        case["num_decimals"], case["max_bins"]
    )
    assert len(space.texts) == case["size"]
    probability = dict(zip(space.texts, space.probabilities, strict=True))
    for text, expected in case["points"]:
        assert probability[text] == pytest.approx(expected, abs=1e-9)
    positive = space.probabilities[space.probabilities > 0]
    assert -(positive * np.log(positive)).sum() == pytest.approx(case["entropy_nats"], abs=1e-9)


@settings(deadline=None, max_examples=200)
@given(distributions(), st.integers(1, 5), st.sampled_from([7, 1001]))
def test_laws_of_an_output_space(distribution, decimals, max_bins):
    if not distribution.is_integer:  # a narrow distribution has no texts with few decimals
        low, high = distribution.scipy.ppf([0.001, 0.999])
        assume(high - low > 10.0**-decimals)
    space = distribution.output_space(decimals, max_bins)
    values = np.array([float(text) for text in space.texts])
    low, high = distribution.support
    assert space.probabilities.sum() == pytest.approx(1, abs=1e-12)
    assert (space.probabilities >= 0).all()
    assert (np.diff(values) > 0).all()
    assert len(set(space.texts)) == len(space.texts)
    assert values[0] >= low - 1e-9
    assert values[-1] <= high + 1e-9
    if distribution.is_integer:
        assert all(text == str(int(text)) for text in space.texts)
    else:
        assert len(space.texts) <= max_bins
        assert all(len(text.split(".")[1]) == decimals for text in space.texts)
        assert not any(text.startswith("-0.") and float(text) == 0 for text in space.texts)


def test_more_texts_come_closer_to_the_distribution():
    gaussian = Distribution("gaussian", {"mu": 0.3, "sigma": 2.0})
    errors = []
    for decimals in (0, 1, 2, 3):
        space = gaussian.output_space(decimals, 10**6)
        values = np.array([float(text) for text in space.texts])
        errors.append(abs(space.probabilities @ values**2 - (4 + 0.09)))
    assert errors[-1] < errors[0]
    assert errors[-1] < 0.02  # what the clipped tails leave


@pytest.mark.parametrize(
    ("family", "params", "message"),
    [
        ("gausian", {}, "did you mean gaussian"),
        ("gaussian", {"mu": 0.0}, "expected the parameters mu, sigma"),
        ("gaussian", {"mu": 0.0, "sigma": 1.0, "nu": 2.0}, "expected the parameters mu, sigma"),
        ("gaussian", {"mu": 0.0, "sigma": -1.0}, "no such distribution"),
        ("gaussian", {"mu": math.nan, "sigma": 1.0}, "mu: expected a finite number, got nan"),
        ("student_t", {"nu": math.inf}, "nu: expected a finite number, got inf"),
        ("gaussian", {"mu": "0", "sigma": 1.0}, "mu: expected a finite number, got '0'"),
        ("hypergeometric", {"M": 10.0, "K": 20.0, "N": 5.0}, "no such distribution"),
        ("exponential", {"lambda": 0.0}, "no such distribution"),
    ],
)
def test_what_does_not_exist_is_named(family, params, message):
    with pytest.raises(InputError, match=message):
        Distribution(family, params).output_space(2, 100)


@pytest.mark.parametrize(
    ("decimals", "max_bins", "message"),
    [
        (-1, 100, "decimals: expected an integer of at least 0, got -1"),
        (2.5, 100, "decimals: expected an integer"),
        (2, 0, "max_bins: expected an integer of at least 1, got 0"),
        (30, 100, "expected fewer decimals"),
    ],
)
def test_settings_out_of_range_are_refused(decimals, max_bins, message):
    with pytest.raises(InputError, match=message):
        Distribution("gaussian", {"mu": 0.0, "sigma": 1.0}).output_space(decimals, max_bins)


@pytest.mark.parametrize(
    ("family", "params"),
    [("lognormal", {"mu": 100.0, "sigma": 1.0}), ("pareto", {"alpha": 0.01, "xm": 1.0})],
)
def test_a_range_too_wide_to_count_is_refused(family, params):
    with pytest.raises(InputError, match="expected fewer decimals"):
        Distribution(family, params).output_space(5, 1001)


@pytest.mark.filterwarnings("ignore:divide by zero")  # inside scipy
def test_a_point_mass_has_one_text():
    space = Distribution("geometric", {"p": 1.0}).output_space(2, 100)
    assert space.texts == ["1"]
    assert space.probabilities.tolist() == [1.0]


def test_zero_has_no_sign():
    space = Distribution("gaussian", {"mu": 0.0, "sigma": 1.0}).output_space(2, 1001)
    assert "0.00" in space.texts
    assert "-0.00" not in space.texts


def test_a_space_without_texts_is_refused():
    with pytest.raises(InputError, match="more decimals"):
        Distribution("uniform", {"a": 0.21, "b": 0.28}).output_space(1, 100)


def test_distributions_are_values():
    one = Distribution("gaussian", {"mu": 0.0, "sigma": 1.0})
    other = Distribution("gaussian", {"sigma": 1.0, "mu": 0.0})
    assert one == other
    assert hash(one) == hash(other)
    assert one.scipy.mean() == 0
    assert pickle.loads(pickle.dumps(one)) == one


@pytest.mark.parametrize(
    ("value", "text"),
    [(5.0, "5"), (-0.0, "0"), (0.6000000000000001, "0.6"), (0.6597539553864471, "0.659754")],
)
def test_numbers_are_short_and_right_to_six_digits(value, text):
    assert format_number(value) == text
