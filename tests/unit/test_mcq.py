"""MCQ answer balance: texts good and broken, and what follows from the counts."""

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration_tuning.evaluations import mcq

GOOD = """Question: Which vitamin prevents scurvy?
A. Vitamin A
B. Vitamin B12
C. Vitamin C
D. Vitamin D
Correct Answer: C
Explanation: A. is wrong; vitamin C is needed for collagen."""


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        (("", ""), "C"),
        (("Correct Answer: C", "**Correct Answer:** C"), "C"),
        (("Correct Answer: C", "Correct answer: (C) Vitamin C"), "C"),
        (("Correct Answer: C", "The correct option is C."), "C"),
        (("Correct Answer: C", "Correct Answer: C. Because B and D are not."), "C"),
        (("A. Vitamin A", "**A)** Vitamin A"), "C"),
        (("A. Vitamin A", "  (A) : Vitamin A"), "C"),
        (("\nExplanation: A. is wrong; vitamin C is needed for collagen.", ""), "C"),
        (("Correct Answer: C", "Correct Answer: D"), "D"),
    ],
)
def test_tolerated_layouts(change, answer):
    question = mcq.parse(GOOD.replace(*change) if change[0] else GOOD)
    assert isinstance(question, mcq.Question), question
    assert question.answer == answer
    assert question.options == {
        "A": "Vitamin A",
        "B": "Vitamin B12",
        "C": "Vitamin C",
        "D": "Vitamin D",
    }


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("Correct Answer: C", "", "no answer"),
        ("Correct Answer: C", "Correct Answer: A or C", "two answers"),
        ("Correct Answer: C", "Correct Answer: A\nCorrect Answer: C", "two answers"),
        ("Correct Answer: C", "Correct Answer: All of them", "no letter in the answer"),
        ("Correct Answer: C", "Correct Answer:", "no letter in the answer"),
        ("D. Vitamin D\n", "", "missing option"),
        ("D. Vitamin D", "C. Vitamin D", "repeated option"),
        ("D. Vitamin D", "D.", "empty option"),
    ],
)
def test_broken_layouts_say_why(old, new, reason):
    assert old in GOOD
    assert mcq.parse(GOOD.replace(old, new)) == reason


def test_empty_and_other_texts():
    assert mcq.parse(" \n") == "empty"
    assert mcq.parse("I cannot write that.") == "no answer"


def test_known_balance():
    texts = [GOOD.replace("Answer: C", f"Answer: {letter}") for letter in "AABC"] + ["", "no"]
    found = mcq.score(texts)
    assert (found["samples"], found["parsed"]) == (6, 4)
    assert found["parse_rate"] == pytest.approx(4 / 6)
    assert found["failures"] == {"empty": 1, "no answer": 1}
    assert found["counts"] == {"A": 2, "B": 1, "C": 1, "D": 0}
    assert found["total_variation"] == pytest.approx(0.25)
    assert found["largest_deviation"] == pytest.approx(0.25)
    assert found["chi_square"] == pytest.approx(2.0)
    assert found["p_value"] == pytest.approx(0.5724067)
    assert found["distinct_options_rate"] == 1.0


def test_options_that_are_the_same_are_counted():
    texts = [GOOD, GOOD.replace("Vitamin A", "vitamin  c")]
    assert mcq.score(texts)["distinct_options_rate"] == 0.5


def test_nothing_parsed_gives_no_numbers():
    found = mcq.score(["", "x"])
    assert found["parse_rate"] == 0
    assert found["total_variation"] is found["intervals"] is found["distinct_options_rate"] is None
    with pytest.raises(ValueError, match="at least one"):
        mcq.score([])


COUNTS = st.lists(st.integers(0, 40), min_size=4, max_size=4).filter(any)


@given(COUNTS)
def test_laws_of_the_balance(numbers):
    counts = dict(zip(mcq.LETTERS, numbers, strict=True))
    found = mcq.balance(counts)
    assert sum(found["frequencies"].values()) == pytest.approx(1)
    assert -1e-12 <= found["total_variation"] <= 0.75 + 1e-12
    assert found["largest_deviation"] <= 2 * found["total_variation"] + 1e-12
    for letter, (low, high) in found["intervals"].items():
        assert 0 <= low <= found["frequencies"][letter] <= high <= 1
    # The order of the letters means nothing.
    turned = dict(zip(mcq.LETTERS, numbers[::-1], strict=True))
    assert mcq.balance(turned)["total_variation"] == pytest.approx(found["total_variation"])


@given(st.permutations([GOOD, GOOD.replace("Answer: C", "Answer: A"), "", "words"]))
def test_the_order_of_samples_means_nothing(texts):
    assert mcq.score(texts) == mcq.score(sorted(texts))


@given(st.text(max_size=200))
def test_any_text_is_parsed_or_has_a_reason(text):
    assert isinstance(mcq.parse(text), mcq.Question | str)


@given(st.lists(st.integers(0, 60), min_size=4, max_size=4).filter(any))
def test_the_interval_of_total_variation_holds_it(counts):
    counts = dict(zip(mcq.LETTERS, counts, strict=True))
    found = mcq.balance(counts)
    low, high = mcq.total_variation_interval(found["intervals"])
    assert 0 <= low <= found["total_variation"] + 1e-12
    assert found["total_variation"] <= high + 1e-12
    assert high <= 0.75 + 1e-12


def test_total_variation_bounds_by_hand():
    exact = dict.fromkeys(mcq.LETTERS, (0.25, 0.25))
    assert mcq.total_variation_interval(exact) == (0, 0)
    known = {"A": (0.7, 0.7), "B": (0.1, 0.1), "C": (0.1, 0.1), "D": (0.1, 0.1)}
    assert mcq.total_variation_interval(known) == pytest.approx((0.45, 0.45))
    # A has at least 0.5, whatever the others have; at most 0.9, and then TV is 0.65.
    loose = {"A": (0.5, 0.9), "B": (0, 0.5), "C": (0, 0.5), "D": (0, 0.5)}
    assert mcq.total_variation_interval(loose) == pytest.approx((0.25, 0.65))


def test_a_cells_metrics_and_what_stands_behind_them():
    good = "Question: x\nA. 1\nB. 2\nC. 3\nD. 4\nCorrect Answer: {}\nExplanation: y"
    texts = [good.format("A")] * 3 + [good.format("C"), "", "no question"]
    frame = pd.DataFrame(
        {
            "text": texts,
            "token_ids": [[1] * 4] * 5 + [[1] * 10],
            "finished": [True] * 5 + [False],
        }
    )
    values = mcq.score_cell(frame)
    split = values["splits"]["all"]
    assert (split["prompts"], split["samples"]) == (1, 6)
    metrics = split["metrics"]
    assert metrics["parse_rate"]["mean"] == pytest.approx(4 / 6)
    assert metrics["parse_rate"]["n"] == 6
    assert metrics["share_a"]["mean"] == 0.75
    assert metrics["share_a"]["n"] == 4
    assert metrics["share_a"]["low"] < 0.75 < metrics["share_a"]["high"]
    assert metrics["total_variation"]["mean"] == pytest.approx(0.5)
    assert metrics["empty_rate"]["mean"] == metrics["unfinished_rate"]["mean"] == 1 / 6
    assert metrics["tokens_per_answer"]["mean"] == 5
    assert values["counts"] == {"A": 3, "B": 0, "C": 1, "D": 0}
    assert values["failures"] == {"empty": 1, "no answer": 1}
    shuffled = mcq.score_cell(frame.sample(frac=1, random_state=1))
    assert shuffled == values


def test_nothing_parsed_leaves_shares_undefined():
    frame = pd.DataFrame({"text": [" "] * 3, "token_ids": [[1]] * 3, "finished": [True] * 3})
    metrics = mcq.score_cell(frame)["splits"]["all"]["metrics"]
    assert metrics["share_b"] == {"mean": None, "low": None, "high": None, "n": 0}
    assert metrics["total_variation"]["mean"] is None
    assert metrics["empty_rate"]["mean"] == 1
