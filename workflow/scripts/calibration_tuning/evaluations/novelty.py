"""NoveltyBench, the part that scores (Paper A, NoveltyBench).

Several generations of a prompt are partitioned into classes of equivalent ones; what counts is how
many classes there are, and how good the responses are that open a new one.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence

SHORT = 5
"""Most words of a text that is compared by its words."""

SAME = 0.102
"""Probability of the paper's classifier above which two texts are the same."""

PATIENCE = 0.8
"""How likely a user is to ask for one more response."""

REWARD_THRESHOLDS = (-7.71875, -6.28125, -6.0, -5.71875, -5.5, -5.0, -4.375, -3.4375, -2.046875)
"""Rewards of the paper's reward model at which the rating goes up by one."""


def share_words(first: str, second: str) -> bool | None:
    """Whether two short texts share at least half of the longer one's words.

    Returns
    -------
    bool, or None where a text has more than five words: those need another judge.
    """
    words = [set(text.lower().split()) for text in (first, second)]
    lengths = [len(text.split()) for text in (first, second)]
    if max(lengths) > SHORT:
        return None
    return 2 * len(words[0] & words[1]) >= max(lengths)


def partition(texts: Sequence[str], equivalent: Callable[[str, str], bool]) -> list[int]:
    """Class of each text: it joins the first class whose first text it is equivalent to.

    Parameters
    ----------
    texts : sequence of str
        In the order of generation, on which the result depends.
    equivalent : callable
        (representative, text) -> bool, asked only of texts that are not short.

    Returns
    -------
    list of int, shape (len(texts),)
        Numbered from 0 in the order in which classes are opened.
    """
    representatives: list[str] = []
    classes = []
    for text in texts:
        for number, representative in enumerate(representatives):
            same = share_words(representative, text)
            if equivalent(representative, text) if same is None else same:
                classes.append(number)
                break
        else:
            classes.append(len(representatives))
            representatives.append(text)
    return classes


def rating(reward: float) -> int:
    """A reward as a rating from 1 to 10."""
    return bisect_left(REWARD_THRESHOLDS, reward) + 1


def utility(classes: Sequence[int], ratings: Sequence[float]) -> float:
    """Mean rating of what a user gets who may ask again, 0 for what came before.

    The i-th response counts 0.8^i; it is worth its rating if it opens a class, else nothing.

    Parameters
    ----------
    classes : sequence of int, shape (n,), n >= 1
        As `partition` gives them.
    ratings : sequence of float, shape (n,)

    Raises
    ------
    ValueError
        No responses, or another number of ratings.
    """
    if not classes or len(classes) != len(ratings):
        raise ValueError(f"expected ratings of {len(classes)} responses, got {len(ratings)}")
    weights = [PATIENCE**number for number in range(len(classes))]
    seen: set[int] = set()
    total = 0.0
    for number, (weight, value) in enumerate(zip(weights, ratings, strict=True)):
        if classes[number] not in seen:
            total += weight * value
        seen.add(classes[number])
    return total / sum(weights)


def score(classes: Sequence[int], ratings: Sequence[float]) -> dict[str, float]:
    """Number of classes ("distinct") and "utility" of the generations of one prompt."""
    return {"distinct": len(set(classes)), "utility": utility(classes, ratings)}
