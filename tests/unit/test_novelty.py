"""NoveltyBench: classes and utilities worked by hand, and the laws that hold for any."""

import json

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration_tuning.errors import InputError
from calibration_tuning.evaluations import novelty
from repository import ROOT


def never(first, second):
    raise AssertionError("the judge was asked about short texts")


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("Paris", "paris", True),
        ("Paris", "Rome", False),
        ("New York", "new delhi", True),  # 2 * 1 >= 2
        ("the city of Rome", "Rome", False),  # 2 * 1 < 4
        ("one two three four five", "one two three", True),
        ("a a a a a", "a", False),  # words as a set, length as a list
        ("one two three four five six", "one", None),
        ("", "", True),
    ],
)
def test_short_texts_are_compared_by_words(first, second, same):
    assert novelty.share_words(first, second) is same
    assert novelty.share_words(second, first) is same


def test_a_partition_by_hand():
    """The third joins the first class although it is nearer to the second text's words."""
    texts = ["New York", "York Minster", "york", "Rome", "new"]
    # york shares 2 * 1 >= 2 with both; new with the first only.
    assert novelty.partition(texts, never) == [0, 0, 0, 1, 0]
    assert novelty.partition(["Rome", "Paris", "rome", "Oslo", "paris"], never) == [0, 1, 0, 2, 1]


def test_long_texts_go_to_the_judge_with_the_representative_first():
    asked = []

    def judge(representative, text):
        asked.append((representative[0], text[0]))
        return {representative[0], text[0]} <= {"a", "c"}

    texts = [f"{letter} long text of some seven words" for letter in "abca"]
    assert novelty.partition(texts, judge) == [0, 1, 0, 0]
    assert asked == [("a", "b"), ("a", "c"), ("a", "a")]


@pytest.mark.parametrize(
    ("reward", "expected"),
    [(-9, 1), (-7.71875, 1), (-7.0, 2), (-6.1, 3), (-5.6, 5), (-4.9, 7), (-3.0, 9), (-1.0, 10)],
)
def test_ratings_of_the_paper(reward, expected):
    assert novelty.rating(reward) == expected


def test_a_utility_by_hand():
    # 0.8^0 * 10 + 0.8^2 * 4, over 1 + 0.8 + 0.64
    assert novelty.utility([0, 0, 1], [10, 9, 4]) == pytest.approx((10 + 0.64 * 4) / 2.44)
    assert novelty.score([0, 0, 1], [10, 9, 4])["distinct"] == 2
    with pytest.raises(ValueError, match="expected ratings of 2"):
        novelty.utility([0, 1], [1])


CLASSES = st.lists(st.integers(0, 4), min_size=1, max_size=10)


@given(CLASSES, st.data())
def test_laws_of_the_utility(classes, data):
    ratings = data.draw(st.lists(st.integers(1, 10), min_size=len(classes), max_size=len(classes)))
    value = novelty.utility(classes, ratings)
    assert 0 < value <= max(ratings) + 1e-12
    everything_new = novelty.utility(list(range(len(classes))), ratings)
    assert value <= everything_new + 1e-12
    # It depends on the order; the number of classes does not.
    assert novelty.score(classes[::-1], ratings[::-1])["distinct"] == len(set(classes))


@given(st.lists(st.sampled_from(["Rome", "Oslo", "rome", "Paris"]), min_size=1, max_size=8))
def test_classes_are_numbered_as_they_are_opened(texts):
    classes = novelty.partition(texts, never)
    assert classes[0] == 0
    for number in range(len(classes)):
        assert classes[number] <= max(classes[:number], default=-1) + 1
    assert len(set(classes)) == len({text.lower() for text in texts})


def generations():
    rows = [
        ("a", 0, 0, "red"), ("a", 0, 1, "red"), ("a", 0, 2, "blue"),
        ("a", 1, 0, "one"), ("a", 1, 1, "two"), ("a", 1, 2, " "),
        ("b", 0, 0, "x"), ("b", 0, 1, "y"), ("b", 0, 2, "z"),
    ]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["split", "prompt_index", "sample", "text"])
    return frame.assign(token_ids=[[1, 2]] * 9, finished=[True] * 8 + [False])


CLASSES = {("a", 0): [0, 0, 1], ("a", 1): [0, 1, 2], ("b", 0): [0, 1, 2]}
RATINGS = {("a", 0): [10, 10, 5], ("a", 1): [4, 4, 1], ("b", 0): [1, 1, 1]}
RECORDS = {
    ("a", 0): {"prompt": "p", "kind": "facts"},
    ("a", 1): {"prompt": "q", "kind": "creative"},
    ("b", 0): {"prompt": "r"},
}
REAL = {"partition": "classifier", "quality": "reward"}


def test_a_cells_metrics_and_what_stands_behind_them():
    values = novelty.score_cell(generations(), CLASSES, RATINGS, RECORDS, REAL, seed=1)
    a, b = values["splits"]["a"], values["splits"]["b"]
    assert (a["prompts"], a["samples"], b["prompts"], b["samples"]) == (2, 6, 1, 3)
    assert a["metrics"]["distinct"]["mean"] == 2.5
    weights = 1 + 0.8 + 0.64
    first, second = (10 + 0.64 * 5) / weights, (4 + 0.8 * 4 + 0.64) / weights
    assert a["metrics"]["utility"]["mean"] == pytest.approx((first + second) / 2)
    assert a["metrics"]["rating"]["mean"] == pytest.approx((25 / 3 + 3) / 2)
    assert a["metrics"]["empty_rate"]["mean"] == pytest.approx(1 / 6)
    assert b["metrics"]["unfinished_rate"]["mean"] == pytest.approx(1 / 3)
    assert b["metrics"]["utility"]["mean"] == 1
    assert values["judges"] == REAL


@pytest.mark.parametrize(
    ("partition", "quality", "named"),
    [
        ("classifier", "reward", set()),
        ("stand-in: x", "reward", {"distinct", "utility"}),
        ("classifier", "stand-in: y", {"rating", "utility"}),
        ("stand-in: x", "stand-in: y", {"distinct", "rating", "utility"}),
    ],
)
def test_what_a_stand_in_decided_carries_that_in_its_name(partition, quality, named):
    judges = {"partition": partition, "quality": quality}
    values = novelty.score_cell(generations(), CLASSES, RATINGS, RECORDS, judges, seed=1)
    names = values["splits"]["a"]["metrics"]
    for name in ("distinct", "rating", "utility"):
        assert (f"{name}_stand_in" in names) == (name in named)
        assert (name in names) == (name not in named)


def test_a_partition_of_other_samples_is_refused():
    classes = CLASSES | {("a", 1): [0, 1]}
    with pytest.raises(InputError, match=r"prompt 1 of a: 2 texts in the partition, 3 samples"):
        novelty.score_cell(generations(), classes, RATINGS, RECORDS, REAL, seed=1)


def test_only_utility_depends_on_the_order(tmp_path):
    """Permuting the samples with their classes and ratings leaves all else as it was."""
    frame = generations()
    turned = frame.assign(sample=2 - frame["sample"])
    values = [
        novelty.score_cell(f, classes, ratings, RECORDS, REAL, seed=1)
        for f, classes, ratings in (
            (frame, CLASSES, RATINGS),
            (
                turned,
                {("a", 0): [0, 1, 1], ("a", 1): [0, 1, 2], ("b", 0): [0, 1, 2]},
                {key: ratings[::-1] for key, ratings in RATINGS.items()},
            ),
        )
    ]
    for split in ("a", "b"):
        first, second = (v["splits"][split]["metrics"] for v in values)
        for name in set(first) - {"utility"}:
            assert first[name] == pytest.approx(second[name], nan_ok=True), name
    assert values[0]["splits"]["a"] != values[1]["splits"]["a"]


@pytest.mark.parametrize("content", ["{", "{}", '{"judge": "x", "partitions": [{}]}'])
def test_a_damaged_partition_is_named(tmp_path, content):
    path = tmp_path / "partition.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"partition\.json"):
        novelty.read_partition(path)


def test_the_shipped_prompts_have_every_kind_in_any_beginning():
    path = ROOT / "config" / "prompts" / "novelty.jsonl"
    chosen = novelty.read_data([path], 8)
    assert [name for name, _, _ in chosen] == ["novelty"] * 8
    kinds = ["randomness", "facts", "creative", "subjectivity"]
    assert [record["kind"] for _, _, record in chosen] == kinds * 2
    everything = [record for _, _, record in novelty.read_data([path])]
    assert len({record["id"] for record in everything}) == len(everything) == 40


def test_labelled_groups_are_whole():
    """What the stand-in's threshold is calibrated on: four groups of three, all texts different."""
    path = ROOT / "tests" / "data" / "equivalence_groups.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        assert [len(group) for group in record["groups"]] == [3] * 4
        texts = [text for group in record["groups"] for text in group]
        assert len(set(texts)) == 12, record["prompt"]
    assert {r["kind"] for r in records} == {"randomness", "facts", "creative", "subjectivity"}
