"""Open-ended random generation, the part that scores (Paper A, open-ended random generation).

"Name a random city": over how many first tokens does a model spread its probability, and how many
different answers does it give?
"""

import json
import math
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from calibration_tuning import statistics
from calibration_tuning.errors import InputError, remake
from calibration_tuning.evaluations.samples import tokens_per_answer
from calibration_tuning.evaluations.structured import parse_number

THRESHOLDS = (0.01, *(round(0.05 * step, 2) for step in range(1, 20)), 0.99)
"""p of the support curve; the headline is 0.9."""

_QUOTES = "\"'`\u201c\u201d\u2018\u2019\u00ab\u00bb"
TOP_ANSWERS = 10
HEADLINE = 0.9
KEYS = ("category", "prompt")
"""What a line of the prompt file has."""
SPLIT = "prompts"
"""The only split there is."""


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
        "samples"; "empty" (how many have no answer); "numbers" (how many are one number: a model
        tuned on numbers may give them where words are asked for); "unique_fraction" (different
        answers among all samples; empty ones are no answer); "entropy" of the answers that are
        there (nats, plug-in estimate, so low for few samples); "top_answers" (up to ten pairs of
        answer and share of all samples, most common first, ties by name).

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
        "numbers": sum(n for answer, n in counts.items() if parse_number(answer) is not None),
        "unique_fraction": len(counts) / len(texts),
        "entropy": entropy if given else None,
        "top_answers": [[answer, n / len(texts)] for answer, n in ordered[:TOP_ANSWERS]],
    }


def score_cell(
    samples: pd.DataFrame,
    supports: Sequence[Sequence[int] | None],
    prompts: Sequence[Mapping],
    seed: int,
) -> dict:
    """Metrics of all prompts of a cell, and what the paper reports of them.

    Parameters
    ----------
    samples : DataFrame
        A row a sample: prompt_index, text, token_ids, finished.
    supports : sequence of sequences of int, or of None; one a prompt
        Number of first tokens for each of `THRESHOLDS`.
    prompts : sequence of records with category and prompt
    seed : of the bootstrap

    Returns
    -------
    dict
        "splits" as in every evaluation's metrics; "curve" of support over `THRESHOLDS`: mean,
        median and quartiles over prompts, None without supports; "prompts".

    Raises
    ------
    InputError
        Samples or supports of other prompts than these.
    """
    groups = dict(tuple(samples.groupby("prompt_index")))
    if len(supports) != len(prompts) or not groups.keys() <= set(range(len(prompts))):
        raise InputError("the prompts have changed since they were sampled; sample the cell again")
    scored = [
        {
            "prompt_index": index,
            "category": record["category"],
            "prompt": record["prompt"],
            "support": None if support is None else list(support),
            **_score_prompt(groups.get(index)),
        }
        for index, (record, support) in enumerate(zip(prompts, supports, strict=True))
    ]
    return {
        "splits": {
            SPLIT: {
                "prompts": len(scored),
                "samples": len(samples),
                "metrics": _summarise(scored, seed),
            }
        },
        "curve": _curve(supports),
        "prompts": scored,
    }


def _score_prompt(group: pd.DataFrame | None) -> dict:
    """Metrics of one prompt's samples; None for each where it was not sampled."""
    if group is None:
        keys = ("empty", "numbers", "unfinished", "unique_fraction", "entropy", "tokens_per_answer")
        return {"samples": 0, **dict.fromkeys(keys), "top_answers": []}
    return score_answers(list(group["text"])) | {
        "unfinished": int((~group["finished"]).sum()),
        "tokens_per_answer": float(np.mean(tokens_per_answer(group))),
    }


def _summarise(scored: Sequence[Mapping], seed: int) -> dict:
    """Means over prompts with intervals, and median, least and most of the paper's two."""
    sampled = [prompt for prompt in scored if prompt["samples"]]
    supports = [prompt["support"] for prompt in scored if prompt["support"] is not None]
    values = {
        "support": [support[THRESHOLDS.index(HEADLINE)] for support in supports],
        "unique_fraction": [prompt["unique_fraction"] for prompt in sampled],
        "entropy": [prompt["entropy"] for prompt in sampled],
        "top_share": [p["top_answers"][0][1] for p in sampled if p["top_answers"]],
        "number_rate": [prompt["numbers"] / prompt["samples"] for prompt in sampled],
        "empty_rate": [prompt["empty"] / prompt["samples"] for prompt in sampled],
        "unfinished_rate": [prompt["unfinished"] / prompt["samples"] for prompt in sampled],
        "tokens_per_answer": [prompt["tokens_per_answer"] for prompt in sampled],
    }
    metrics = {
        name: statistics.family_mean_interval(of_prompts, [SPLIT] * len(of_prompts), seed=seed)
        for name, of_prompts in values.items()
    }
    for name in ("support", "unique_fraction"):
        for what, function in (("median", np.median), ("least", min), ("most", max)):
            found = float(function(values[name])) if values[name] else None
            n = len(values[name])
            metrics[f"{name}_{what}"] = {"mean": found, "low": None, "high": None, "n": n}
    return metrics


def _curve(supports: Sequence[Sequence[int] | None]) -> dict | None:
    """Support over the thresholds, summarised over prompts."""
    known = np.array([support for support in supports if support is not None], dtype=float)
    if known.size == 0:
        return None
    quartiles = np.quantile(known, (0.25, 0.5, 0.75), axis=0)
    return {
        "thresholds": list(THRESHOLDS),
        "mean": known.mean(axis=0).tolist(),
        "median": quartiles[1].tolist(),
        "lower_quartile": quartiles[0].tolist(),
        "upper_quartile": quartiles[2].tolist(),
    }


def read_supports(path: Path) -> list[list[int] | None]:
    """The lines of support.jsonl, each {"support": list or null}; InputError if they are not."""
    supports = []
    try:
        for line in Path(path).read_text().splitlines():
            support = json.loads(line)["support"]
            if support is not None and len(support) != len(THRESHOLDS):
                raise ValueError
            supports.append(support)
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(
            f"{path}, line {len(supports) + 1}: expected a support for {len(THRESHOLDS)} "
            f"thresholds; {remake('sample_open_ended', path)}"
        ) from None
    return supports
