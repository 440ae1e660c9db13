"""Open-ended answers: normalisation, known numbers, and laws."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration_tuning.evaluations import open_ended


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Paris", "Paris"),
        ("  Paris \n", "Paris"),
        ("\n\nNew   York\nis big", "New York"),
        ('"Paris"', "Paris"),
        ("\u201cParis\u201d", "Paris"),
        ("\"'Paris'\"", "Paris"),
        ("O'Brien", "O'Brien"),
        ("the 'Rex'", "the 'Rex'"),
        ("'Rex", "'Rex"),
        ('""\nRex', "Rex"),
        ("e\u0301", "\u00e9"),
        ("", ""),
        (" \n\t", ""),
        ('"', ""),
    ],
)
def test_an_answer_is_the_first_line_without_quotes(text, answer):
    assert open_ended.normalise(text) == answer


def test_known_numbers():
    found = open_ended.score_answers(["Rome", '"Rome"', "Oslo", "", "Rome\nor Oslo"])
    assert (found["samples"], found["empty"]) == (5, 1)
    assert found["unique_fraction"] == 2 / 5
    expected = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert found["entropy"] == pytest.approx(expected)
    assert found["top_answers"] == [["Rome", 3 / 5], ["Oslo", 1 / 5]]


def test_only_white_space_gives_no_entropy():
    found = open_ended.score_answers([" ", "\n"])
    assert found["empty"] == 2
    assert found["entropy"] is None
    assert found["top_answers"] == []
    with pytest.raises(ValueError, match="at least one"):
        open_ended.score_answers([])


def test_the_thresholds_are_those_of_the_protocol():
    assert open_ended.THRESHOLDS[:3] == (0.01, 0.05, 0.1)
    assert open_ended.THRESHOLDS[-3:] == (0.9, 0.95, 0.99)
    assert len(open_ended.THRESHOLDS) == 21


TEXTS = st.lists(st.sampled_from(["a", "b", "c", "", " a"]), min_size=1, max_size=12)


@given(TEXTS, st.randoms())
def test_the_order_of_samples_means_nothing(texts, random):
    shuffled = list(texts)
    random.shuffle(shuffled)
    assert open_ended.score_answers(shuffled) == open_ended.score_answers(texts)


@given(TEXTS)
def test_laws_of_answers(texts):
    found = open_ended.score_answers(texts)
    assert 0 <= found["unique_fraction"] <= 1
    shares = [share for _, share in found["top_answers"]]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) + found["empty"] / len(texts) == pytest.approx(1)
    if found["entropy"] is not None:
        assert -1e-12 <= found["entropy"] <= math.log(max(len(shares), 1)) + 1e-12


@given(st.text(max_size=80))
def test_normalising_twice_changes_nothing(text):
    once = open_ended.normalise(text)
    assert open_ended.normalise(once) == once
