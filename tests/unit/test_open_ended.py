"""Open-ended answers: normalisation, known numbers, and laws."""

import json
import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration_tuning import prompts
from calibration_tuning.errors import InputError
from calibration_tuning.evaluations import open_ended
from repository import ROOT


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


PROMPTS = [{"category": c, "prompt": f"name a {c}"} for c in ("city", "job", "pet")]
SUPPORTS = [[1] * 18 + [3, 4, 9], [1] * 18 + [5, 5, 5], [1] * 18 + [10, 20, 30]]


def answers_of_a_cell():
    texts = {0: ["Paris", "Paris", "Rome", " "], 1: ["baker"] * 4}  # and no plain number
    rows = [(index, text) for index, group in texts.items() for text in group]
    frame = pd.DataFrame(rows, columns=["prompt_index", "text"])
    frame["token_ids"] = [[1, 2]] * 4 + [[1] * 6] * 4
    frame["finished"] = [True] * 7 + [False]
    return frame


def test_a_cells_metrics_and_what_stands_behind_them():
    values = open_ended.score_cell(answers_of_a_cell(), SUPPORTS, PROMPTS, seed=1)
    split = values["splits"]["prompts"]
    assert (split["prompts"], split["samples"]) == (3, 8)
    metrics = split["metrics"]
    assert open_ended.THRESHOLDS[18] == 0.9
    assert metrics["support"]["mean"] == 6  # of 3, 5 and 10
    assert metrics["support"]["n"] == 3
    assert [metrics[f"support_{what}"]["mean"] for what in ("median", "least", "most")] == [
        5,
        3,
        10,
    ]
    assert metrics["unique_fraction"]["mean"] == pytest.approx((0.5 + 0.25) / 2)
    assert metrics["unique_fraction"]["n"] == 2  # the third was not sampled
    assert metrics["top_share"]["mean"] == pytest.approx((0.5 + 1) / 2)
    assert metrics["empty_rate"]["mean"] == metrics["unfinished_rate"]["mean"] == 0.125
    assert metrics["tokens_per_answer"]["mean"] == 4
    assert metrics["number_rate"]["mean"] == 0
    assert values["curve"]["median"][18:] == [5, 5, 9]
    assert values["curve"]["lower_quartile"][18] == 4
    assert [prompt["samples"] for prompt in values["prompts"]] == [4, 4, 0]


def test_the_order_of_samples_changes_nothing():
    frame = answers_of_a_cell()
    shuffled = frame.sample(frac=1, random_state=3)
    assert open_ended.score_cell(frame, SUPPORTS, PROMPTS, seed=1) == open_ended.score_cell(
        shuffled, SUPPORTS, PROMPTS, seed=1
    )


def test_without_support_there_is_no_curve():
    values = open_ended.score_cell(answers_of_a_cell(), [None] * 3, PROMPTS, seed=1)
    assert values["curve"] is None
    metrics = values["splits"]["prompts"]["metrics"]
    assert metrics["support"] == {"mean": None, "low": None, "high": None, "n": 0}
    assert metrics["support_most"]["mean"] is None


def test_answers_of_white_space_only_are_counted_not_scored():
    frame = answers_of_a_cell().assign(text=" \n")
    metrics = open_ended.score_cell(frame, SUPPORTS, PROMPTS, seed=1)["splits"]["prompts"][
        "metrics"
    ]
    assert metrics["empty_rate"]["mean"] == 1
    assert metrics["entropy"]["mean"] is None
    assert metrics["top_share"]["n"] == 0


def test_other_prompts_than_were_sampled_are_refused():
    with pytest.raises(InputError, match="prompts have changed"):
        open_ended.score_cell(answers_of_a_cell(), SUPPORTS[:1], PROMPTS[:1], seed=1)
    with pytest.raises(InputError, match="prompts have changed"):
        open_ended.score_cell(answers_of_a_cell(), SUPPORTS, PROMPTS[:2], seed=1)


@pytest.mark.parametrize("line", ["{", '{"support": [1, 2]}', '{"supports": null}', "[]"])
def test_a_damaged_support_file_is_named(tmp_path, line):
    path = tmp_path / "support.jsonl"
    path.write_text(json.dumps({"support": SUPPORTS[0]}) + '\n{"support": null}\n')
    assert open_ended.read_supports(path) == [SUPPORTS[0], None]
    path.write_text(f'{{"support": null}}\n{line}\n')
    with pytest.raises(InputError, match=r"support\.jsonl, line 2: .* sample_open_ended"):
        open_ended.read_supports(path)


def test_the_shipped_prompts():
    """102, as many as the paper has, and those that the figure shows are among the sampled."""
    records = prompts.read_open_prompts(ROOT / "config/prompts/open_ended.jsonl", open_ended.KEYS)
    assert len(records) == len({r["category"] for r in records}) == 102
    assert len({record["prompt"] for record in records}) == 102
    assert [r["category"] for r in records[:4]] == ["weekday", "city", "animal", "first name"]
    assert all("\n" not in record["prompt"] for record in records)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "expected at least one prompt, found none"),
        ('{"category": "city", "prompt": "x"}\nname a city\n', "line 2: expected a JSON object"),
        ('{"prompt": "x"}\n', "line 1: expected a JSON object with the texts category, prompt"),
        ('{"category": "city", "prompt": " "}\n', "line 1: expected a JSON object with the texts"),
        ('{"category": "city", "prompt": 3}\n', "line 1: expected a JSON object with the texts"),
    ],
)
def test_a_bad_prompt_file_is_one_line(tmp_path, content, message):
    path = tmp_path / "prompts.jsonl"
    path.write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        prompts.read_open_prompts(path, open_ended.KEYS)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_numbers_where_words_are_asked_for_are_counted():
    found = open_ended.score_answers(["7", " -1.5", "'3'", "seven", "7 days", ""])
    assert (found["numbers"], found["samples"]) == (3, 6)
