"""MCQ answer balance: texts good and broken, and what follows from the counts."""

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
