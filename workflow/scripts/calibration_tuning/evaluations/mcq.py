"""MCQ answer balance, the part that scores (Paper A, MCQ answer balance).

A model writes four-option questions in a fixed layout and says which option is right. Whether it
spreads the right answers evenly over A to D is read off the parseable ones.
"""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy.stats

from calibration_tuning.evaluations.samples import tokens_per_answer

LETTERS = "ABCD"
CONFIDENCE = 0.95
SPLIT = "all"
"""The only split there is."""

PROMPT = """\
Write one medical single-answer multiple-choice question with four options. Exactly one option is \
right. If many such questions were written, the right answer would be A, B, C and D equally often. \
Use exactly this layout and write nothing else:
Question: ...
A. ...
B. ...
C. ...
D. ...
Correct Answer: (one letter)
Explanation: ..."""
"""The wording is ours; the layout is the paper's."""

_MARKS = r"[*_#> \t]*"  # Markdown that models put around a label; not the end of a line
_OPTION = re.compile(rf"^{_MARKS}\(?([A-D])\)?{_MARKS}[.):]{_MARKS}(.*)$", re.MULTILINE)
_ANSWER = re.compile(
    rf"^{_MARKS}(?:the\s+)?correct\s+(?:answer|option){_MARKS}(?:is)?{_MARKS}[:.]?{_MARKS}(.*)$",
    re.MULTILINE | re.IGNORECASE,
)
_LETTER = re.compile(r"(?<![A-Za-z'])\(?([A-D])(?![A-Za-z'])")


class Question(NamedTuple):
    """A parsed question: the text of each option, and the letter of the right one."""

    options: dict[str, str]
    answer: str


def parse(text: str) -> Question | str:
    """A question, or why the text is none.

    Markdown around labels, brackets around letters and "Correct option" are tolerated; what is
    asked for is not guessed where it is missing or stands there twice.

    Returns
    -------
    Question, or one of "empty", "no answer", "two answers", "no letter in the answer",
    "missing option", "repeated option", "empty option"
    """
    if not text.strip():
        return "empty"
    found = list(_ANSWER.finditer(text))
    if not found:
        return "no answer"
    letters = {letter for match in found for letter in _LETTER.findall(match[1].split(".")[0])}
    if not letters:
        return "no letter in the answer"
    if len(letters) > 1:
        return "two answers"
    # Options stand before the answer; an explanation may name them again.
    options: dict[str, str] = {}
    for letter, option in _OPTION.findall(text[: found[0].start()]):
        if letter in options:
            return "repeated option"
        options[letter] = option.strip().strip("*_ ")
    if set(options) != set(LETTERS):
        return "missing option"
    if not all(options.values()):
        return "empty option"
    return Question(options, letters.pop())


def score(texts: Sequence[str]) -> dict:
    """Metrics of generated questions.

    Parameters
    ----------
    texts : sequence of str, shape (n,), n >= 1

    Returns
    -------
    dict
        "samples", "parsed" (counts); "parse_rate"; "failures" (count by reason); and of the parsed
        ones: "counts" and "frequencies" of A to D, "intervals" (a pair for each letter, together
        95 % sure), "total_variation" from uniform (0 to 0.75), "largest_deviation" of a frequency
        from 0.25, "chi_square", "p_value", "distinct_options_rate" (four different options). The
        last are None where nothing was parsed.

    Raises
    ------
    ValueError
        No texts.
    """
    if not texts:
        raise ValueError("expected at least one text")
    parsed = [parse(text) for text in texts]
    questions = [question for question in parsed if isinstance(question, Question)]
    failures = Counter(reason for reason in parsed if isinstance(reason, str))
    counts = {letter: sum(q.answer == letter for q in questions) for letter in LETTERS}
    result = {
        "samples": len(texts),
        "parsed": len(questions),
        "parse_rate": len(questions) / len(texts),
        "failures": dict(sorted(failures.items())),
        "counts": counts,
    }
    return result | balance(counts) | {"distinct_options_rate": _distinct_rate(questions)}


def balance(counts: dict[str, int]) -> dict:
    """How evenly answers are spread over the letters; None for everything where there are none."""
    total = sum(counts.values())
    keys = ("frequencies", "intervals", "total_variation", "largest_deviation")
    if total == 0:
        return dict.fromkeys((*keys, "chi_square", "p_value"))
    frequencies = {letter: count / total for letter, count in counts.items()}
    deviations = [abs(frequency - 1 / len(counts)) for frequency in frequencies.values()]
    test = scipy.stats.chisquare(list(counts.values()))
    values = (frequencies, intervals(counts), sum(deviations) / 2, max(deviations))
    return dict(zip(keys, values, strict=True)) | {
        "chi_square": float(test.statistic),
        "p_value": float(test.pvalue),
    }


def intervals(counts: dict[str, int]) -> dict[str, tuple[float, float]]:
    """Exact intervals of multinomial shares that all hold at once with 95 % confidence.

    Each count is binomial, so Clopper and Pearson's interval is exact for it; by Bonferroni's
    inequality all of them hold together.
    """
    total = sum(counts.values())
    level = 1 - (1 - CONFIDENCE) / len(counts)
    found = {}
    for letter, count in counts.items():
        interval = scipy.stats.binomtest(count, total).proportion_ci(level, method="exact")
        found[letter] = (float(interval.low), float(interval.high))
    return found


def total_variation_interval(
    bounds: dict[str, tuple[float, float]],
) -> tuple[float, float]:
    """Bounds of the total variation from uniform that hold whenever those of the shares do.

    Total variation is the largest excess of any set of letters over its share under uniform, so
    the bounds of every set's share bound it.

    Parameters
    ----------
    bounds : of each letter's share, as `intervals` gives them

    Returns
    -------
    low, high : float, 0 to 0.75
    """
    low = high = 0.0
    for size in range(1, len(bounds)):
        for chosen in combinations(bounds, size):
            others = [letter for letter in bounds if letter not in chosen]
            least = max(sum(bounds[x][0] for x in chosen), 1 - sum(bounds[x][1] for x in others))
            most = min(sum(bounds[x][1] for x in chosen), 1 - sum(bounds[x][0] for x in others))
            low = max(low, least - size / len(bounds))
            high = max(high, most - size / len(bounds))
    return low, high


def score_cell(samples: pd.DataFrame) -> dict:
    """Metrics of a cell's questions, in the form that every evaluation's metrics have.

    Parameters
    ----------
    samples : DataFrame
        A row a sample: text, token_ids, finished.

    Returns
    -------
    dict
        "splits"; "failures" (count by reason), "counts" of A to D among parsed questions.
    """
    found = score(list(samples["text"]))
    n, parsed = found["samples"], found["parsed"]
    metrics = {"parse_rate": rate(parsed, n)}
    shares, bounds = found["frequencies"] or {}, found["intervals"] or {}
    for letter in LETTERS:
        low, high = bounds.get(letter, (None, None))
        metrics[f"share_{letter.lower()}"] = _metric(shares.get(letter), parsed, low, high)
    between = total_variation_interval(bounds) if bounds else (None, None)
    metrics["total_variation"] = _metric(found["total_variation"], parsed, *between)
    for name in ("largest_deviation", "chi_square", "p_value", "distinct_options_rate"):
        metrics[name] = _metric(found[name], parsed)
    metrics["empty_rate"] = rate(found["failures"].get("empty", 0), n)
    metrics["unfinished_rate"] = rate(int((~samples["finished"]).sum()), n)
    metrics["tokens_per_answer"] = _metric(float(np.mean(tokens_per_answer(samples))), n)
    return {
        "splits": {SPLIT: {"prompts": 1, "samples": n, "metrics": metrics}},
        "failures": found["failures"],
        "counts": found["counts"],
    }


def rate(count: int, total: int) -> dict:
    """A share as a metric, with Clopper and Pearson's exact 95 % interval."""
    interval = scipy.stats.binomtest(count, total).proportion_ci(CONFIDENCE, method="exact")
    return _metric(count / total, total, float(interval.low), float(interval.high))


def _metric(
    value: float | None, n: int, low: float | None = None, high: float | None = None
) -> dict:
    return {"mean": value, "low": low, "high": high, "n": n}


def _distinct_rate(questions: Sequence[Question]) -> float | None:
    """Share of questions whose four options differ, but for case and spaces."""
    if not questions:
        return None
    distinct = [
        len({" ".join(option.lower().split()) for option in q.options.values()}) == len(LETTERS)
        for q in questions
    ]
    return sum(distinct) / len(distinct)
