"""Open-ended random generation, the part that scores (Paper A, open-ended random generation).

"Name a random city": over how many first tokens does a model spread its probability, and how many
different answers does it give?
"""

import math
import unicodedata
from collections import Counter
from collections.abc import Sequence

THRESHOLDS = (0.01, *(round(0.05 * step, 2) for step in range(1, 20)), 0.99)
"""p of the support curve; the headline is 0.9."""

_QUOTES = "\"'`\u201c\u201d\u2018\u2019\u00ab\u00bb"
TOP_ANSWERS = 10


def normalise(text: str) -> str:
    """The answer in a text: its first non-empty line, white space and outer quotes normalised.

    >>> normalise('\\n  "New   York"\\nis a city')
    'New York'
    """
    for line in unicodedata.normalize("NFC", text).splitlines():
        answer = " ".join(line.split())
        while len(answer) > 1 and answer[0] in _QUOTES and answer[-1] in _QUOTES:
            answer = answer[1:-1].strip()
        if answer.strip(_QUOTES):
            return answer
    return ""


def score_answers(texts: Sequence[str]) -> dict:
    """Metrics of the sampled answers of one prompt.

    Parameters
    ----------
    texts : sequence of str, shape (n,), n >= 1
        As sampled.

    Returns
    -------
    dict
        "samples"; "empty" (how many have no answer); "unique_fraction" (different answers among
        all samples; empty ones are no answer); "entropy" of the answers that are there (nats,
        plug-in estimate, so low for few samples); "top_answers" (up to ten pairs of answer and
        share of all samples, most common first, ties by name).

    Raises
    ------
    ValueError
        No texts.
    """
    if not texts:
        raise ValueError("expected at least one text")
    counts = Counter(answer for answer in map(normalise, texts) if answer)
    given = sum(counts.values())
    entropy = math.fsum(-n / given * math.log(n / given) for n in counts.values())
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return {
        "samples": len(texts),
        "empty": len(texts) - given,
        "unique_fraction": len(counts) / len(texts),
        "entropy": entropy if given else None,
        "top_answers": [[answer, n / len(texts)] for answer, n in ordered[:TOP_ANSWERS]],
    }
