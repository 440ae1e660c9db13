"""Scores of samples of known quality."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration_tuning.divergences import Divergence
from calibration_tuning.errors import InputError
from calibration_tuning.evaluations import samples as sample_files
from calibration_tuning.evaluations import structured
from calibration_tuning.evaluations.structured_sampling import may_become_number, with_mass
from calibration_tuning.families import Distribution
from calibration_tuning.sampling import Sample
from calibration_tuning.trie import PrefixTrie
from cells import PROMPTS, make_divergences, make_samples

GAUSSIAN = Distribution("gaussian", {"mu": 3.5, "sigma": 3.0})
BINOMIAL = Distribution("binomial", {"n": 25.0, "p": 0.5})
UNIFORM = Distribution("uniform", {"a": 3.5, "b": 10.5})
TARGET = {"decimals": 2, "max_bins": 1001}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("3", 3.0),
        (" 3.50\n", 3.5),
        ("-0.25", -0.25),
        ("+.5", 0.5),
        ("4.", 4.0),
        ("1e-3", 0.001),
        ("2.5E+2", 250.0),
    ],
)
def test_numbers(text, number):
    assert structured.parse_number(text) == number


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", ".", "-", "e5", "1e", "1,5", "1 2", "3\n4", "1.2.3", "--1", "5%", "1/2"),
        *("1_000", "0x1F", "inf", "nan", "1e999", "3 apples", "The number is 3"),
        *("\uff13", "\u0663", "\u22121"),  # digits and a minus sign that are not ASCII
    ],
)
def test_texts_that_are_no_number(text):
    assert structured.parse_number(text) is None


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_printed_float_is_read_back(number):
    assert structured.parse_number(repr(number)) == number


@given(st.text(max_size=12))
def test_parse_accepts_no_more_than_float(text):
    number = structured.parse_number(text)
    if number is not None:
        assert number == float(text)


@pytest.mark.parametrize(
    ("distribution", "texts", "numbers"),
    [
        (BINOMIAL, ["26", "25", "4.0", "4.5", "-1", "0"], [0, 4, 25]),
        (UNIFORM, ["3.49", "10.5", "3.5", "10.51", "x"], [3.5, 10.5]),
        (GAUSSIAN, ["1e9", "-1e9", "1e999"], [-1e9, 1e9]),
        (GAUSSIAN, [], []),
    ],
)
def test_validity(distribution, texts, numbers):
    assert structured.valid_numbers(texts, distribution).tolist() == numbers


def test_rates():
    scores = structured.score_prompt(
        ["4", "5.0", "5.5", "-3", "1e3", "six", "", "7"], BINOMIAL, **TARGET
    )
    assert scores["samples"] == 8
    assert scores["valid"] == 3
    assert scores["valid_rate"] == 3 / 8
    assert scores["parse_rate"] == 6 / 8
    assert scores["violation_rate"] == 3 / 8
    assert scores["distinct_values"] == 3


@pytest.mark.parametrize("distribution", [GAUSSIAN, BINOMIAL, UNIFORM])
def test_samples_of_the_target_score_well(distribution):
    space = distribution.output_space(**TARGET)
    rng = np.random.default_rng(2)
    texts = list(rng.choice(space.texts, 2000, p=space.probabilities))
    scores = structured.score_prompt(texts, distribution, **TARGET)
    assert scores["valid_rate"] == 1
    assert scores["wasserstein_normalised"] < 0.08
    assert scores["mean_error"] < 0.08
    assert scores["variance_error"] < 0.15
    assert scores["rejected"] is False


def test_a_constant_scores_badly():
    scores = structured.score_prompt(["7.00"] * 100, UNIFORM, **TARGET)
    # The mean distance from the middle of a uniform distribution is a quarter of its width.
    assert scores["wasserstein"] == pytest.approx(7 / 4, rel=1e-3)
    assert scores["wasserstein_normalised"] == pytest.approx(math.sqrt(12) / 4, rel=0.01)
    assert scores["variance_error"] == 1
    assert scores["rejected"] is True
    assert scores["distinct_values"] == 1


@pytest.mark.parametrize("texts", [["nothing"], ["4", "no"]])
def test_too_few_valid_samples_leave_distances_undefined(texts):
    scores = structured.score_prompt(texts, GAUSSIAN, **TARGET)
    for name in ("wasserstein", "wasserstein_normalised", "mean_error", "variance_error"):
        assert scores[name] is None
    assert scores["rejected"] is None


def test_wild_samples_stay_json():
    scores = structured.score_prompt(["1e300", "-1e308", "1e308"], GAUSSIAN, **TARGET)
    json.dumps(scores, allow_nan=False)
    assert scores["valid_rate"] == 1
    assert scores["variance_error"] is None


def test_cell():
    values = structured.score_cell(
        make_samples(samples=60), make_divergences(), PROMPTS, seed=1, **TARGET
    )
    assert list(values["splits"]) == ["unseen", "heldout"]
    unseen, heldout = values["splits"]["unseen"], values["splits"]["heldout"]
    assert (unseen["prompts"], unseen["families"], unseen["samples"]) == (2, 2, 120)
    assert (heldout["prompts"], heldout["families"], heldout["samples"]) == (4, 2, 240)
    # One prompt a family in unseen, two in heldout.
    assert unseen["metrics"]["valid_rate"] == {"mean": 0.9, "low": None, "high": None, "n": 2}
    interval = heldout["metrics"]["wasserstein_normalised"]
    assert interval["low"] <= interval["mean"] <= interval["high"]
    assert heldout["metrics"]["sequence_kl"]["mean"] == pytest.approx(2.5)
    # The divergences of odd prompts have no mass on the space.
    assert heldout["metrics"]["space_mass"]["n"] == 2
    # Three tokens an answer, and two for every tenth.
    assert unseen["metrics"]["tokens_per_answer"]["mean"] == pytest.approx(2.9)
    assert len(values["prompts"]) == 6


def test_cell_does_not_depend_on_the_order_of_samples():
    samples = make_samples(samples=20)
    shuffled = samples.sample(frac=1, random_state=0)
    first, second = (
        structured.score_cell(frame, make_divergences(), PROMPTS, seed=1, **TARGET)
        for frame in (samples, shuffled)
    )
    assert first == second


def test_cell_refuses_what_does_not_belong_together():
    samples, divergences = make_samples(samples=3), make_divergences()
    with pytest.raises(InputError, match=r"prompt 0 of split unseen: .* no divergence"):
        structured.score_cell(samples, divergences[1:], PROMPTS, seed=1, **TARGET)
    changed = {**PROMPTS, "heldout": PROMPTS["heldout"][::-1]}
    with pytest.raises(InputError, match=r"prompt 0 of split heldout: .* have changed"):
        structured.score_cell(samples, divergences, changed, seed=1, **TARGET)
    with pytest.raises(InputError, match="not among the prompts"):
        structured.score_cell(
            samples, divergences, {"heldout": PROMPTS["heldout"]}, seed=1, **TARGET
        )


def test_reading_samples(tmp_path):
    path = tmp_path / "samples.parquet"
    with pytest.raises(InputError, match=r"samples\.parquet"):
        sample_files.read_samples(path, "sample_structured")
    path.write_bytes(b"PAR1 this is not Parquet")
    with pytest.raises(InputError, match=r"samples\.parquet: expected Parquet"):
        sample_files.read_samples(path, "sample_structured")
    samples = make_samples(samples=3)
    samples.drop(columns="text").to_parquet(path)
    with pytest.raises(InputError, match=r"samples\.parquet: expected Parquet with columns.*text"):
        sample_files.read_samples(path, "sample_structured")
    samples.iloc[:0].to_parquet(path)
    with pytest.raises(InputError, match="expected samples"):
        sample_files.read_samples(path, "sample_structured")
    samples.to_parquet(path)
    pd.testing.assert_frame_equal(
        sample_files.read_samples(path, "sample_structured"),
        samples[["split", "prompt_index", "text"]],
    )


def test_a_truncated_parquet_file_is_named(tmp_path):
    path = tmp_path / "samples.parquet"
    make_samples(samples=30).to_parquet(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"samples\.parquet"):
        sample_files.read_samples(path, "sample_structured")


@pytest.mark.parametrize(
    ("line", "message"),
    [("{", "line 2: expected a JSON object"), ("3", "line 2"), ('{"split": "x"}', "prompt_index")],
)
def test_reading_divergences(tmp_path, line, message):
    path = tmp_path / "divergences.jsonl"
    good = json.dumps(make_divergences()[0])
    path.write_text(f"{good}\n")
    assert structured.read_divergences(path) == make_divergences()[:1]
    path.write_text(f"{good}\n{line}\n")
    with pytest.raises(InputError, match=rf"divergences\.jsonl.*{message}"):
        structured.read_divergences(path)


def test_the_mass_of_a_large_space_is_the_share_of_canonical_samples():
    trie = PrefixTrie(["1.0", "2.0"], [0.5, 0.5], lambda text: [ord(c) for c in text], 0)
    samples = [Sample(trie.sequences[0], "1.0", True)] * 3 + [Sample((49, 0), "1", True)]
    sampled = Divergence(0.1, 0.2, 0.01, 0.02, None, 1.0, None, 3, 64)
    values = with_mass(sampled, samples, trie)
    assert values["space_mass"] == 0.75
    assert values["space_mass_standard_error"] == pytest.approx((0.75 * 0.25 / 4) ** 0.5)
    exact = Divergence(0.1, 0.2, 0, 0, 0.9, 0.9, 0.1, 5, None)
    assert with_mass(exact, samples, trie)["space_mass"] == 0.9


NUMBER = r"\s{0,2}[+-]?([0-9]{1,3}(\.[0-9]{0,3})?|\.[0-9]{1,3})([eE][+-]?[0-9]{1,2})?\s{0,2}"


@given(st.from_regex(NUMBER, fullmatch=True))
def test_what_becomes_a_number_is_never_cut_on_the_way(text):
    assert structured.parse_number(text) is not None
    assert all(may_become_number(text[:end]) for end in range(len(text) + 1))


@pytest.mark.parametrize("text", ["The", "3 4", "1.2.3", "--1", "nan", "1e5.0", "3,5"])
def test_what_cannot_become_a_number_is_cut(text):
    assert not may_become_number(text)
