"""NoveltyBench: classes and utilities worked by hand, and the laws that hold for any."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration_tuning.evaluations import novelty


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
