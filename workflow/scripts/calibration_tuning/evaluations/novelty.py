"""NoveltyBench, the part that scores (Paper A, NoveltyBench).

Several generations of a prompt are partitioned into classes of equivalent ones; what counts is how
many classes there are, and how good the responses are that open a new one.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from calibration_tuning import files, statistics
from calibration_tuning.errors import InputError, remake
from calibration_tuning.evaluations.samples import tokens_per_answer
from calibration_tuning.prompts import read_open_prompts

SHORT = 5
"""Most words of a text that is compared by its words."""

METRICS = ("distinct", "utility", "rating", "empty_rate", "unfinished_rate", "tokens_per_answer")
"""Means over prompts."""

STAND_IN = "stand-in"
"""How the description of a judge begins that is not the paper's."""

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


def rating(reward: float, thresholds: Sequence[float] = REWARD_THRESHOLDS) -> int:
    """A reward as a rating from 1 to 10, which goes up by one at each threshold."""
    return bisect_left(thresholds, reward) + 1


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


def read_data(paths: Sequence[Path], most: int | None = None) -> list[tuple[str, int, dict]]:
    """The prompts of data sets: (name of the data set, row, record) of each.

    Parameters
    ----------
    paths : JSONL files, each named as its data set
    most : how many of each, the first; all by default

    Raises
    ------
    InputError
        Names the file and line that has no prompt.
    """
    return [
        (Path(path).stem, index, record)
        for path in paths
        for index, record in enumerate(read_open_prompts(path, ["prompt"])[:most])
    ]


def read_partition(path: Path) -> dict:
    """What partition_novelty writes: "judge" in words, and "partitions" by prompt."""
    content = files.read_json(path)
    try:
        classes = {(p["split"], p["prompt_index"]): p["classes"] for p in content["partitions"]}
        return {"judge": content["judge"], "classes": classes}
    except (KeyError, TypeError) as error:
        again = remake("partition_novelty", path)
        raise InputError(f"{path}: expected a judge and partitions ({error}); {again}") from None


def score_cell(
    samples: pd.DataFrame,
    partition: Mapping[tuple[str, int], Sequence[int]],
    ratings: Mapping[tuple[str, int], Sequence[int]],
    records: Mapping[tuple[str, int], Mapping],
    judges: Mapping[str, str],
    seed: int,
) -> dict:
    """Metrics of a cell: means over the prompts of each data set, every kind with equal weight.

    Parameters
    ----------
    samples : DataFrame
        A row a generation: split (the data set), prompt_index, sample, text, token_ids, finished.
    partition : classes of each prompt's generations
    ratings : of each prompt's generations, 1 to 10
    records : the prompts
    judges : in words, of "partition" and "quality"; one that begins with "stand-in" is none of the
        paper's
    seed : of the bootstrap

    Returns
    -------
    dict
        "splits", a data set each, "prompts" and "judges". Metrics of the splits end in _stand_in
        where a stand-in decided.

    Raises
    ------
    InputError
        A partition of other samples.
    """
    scored = []
    for (split, index), group in samples.sort_values("sample").groupby(["split", "prompt_index"]):
        key = (split, int(index))
        classes = partition.get(key, [])
        if len(classes) != len(group):
            raise InputError(
                f"prompt {index} of {split}: {len(classes)} texts in the partition, {len(group)} "
                "samples; partition the cell again"
            )
        empty = sum(not text.strip() for text in group["text"])
        scored.append(
            {
                "split": split,
                "prompt_index": key[1],
                "kind": records[key].get("kind", ""),
                "samples": len(group),
                "classes": classes,
                "ratings": list(ratings[key]),
                **score(classes, ratings[key]),
                "rating": float(np.mean(ratings[key])),
                "empty_rate": empty / len(group),
                "unfinished_rate": float((~group["finished"]).mean()),
                "tokens_per_answer": float(np.mean(tokens_per_answer(group))),
            }
        )
    return {
        "splits": _splits(scored, _names(judges), seed),
        "prompts": scored,
        "judges": dict(judges),
    }


def _names(judges: Mapping[str, str]) -> dict[str, str]:
    """What metrics are called: by the paper's name only if the paper's judges decided."""
    stand_in = {role: text.startswith(STAND_IN) for role, text in judges.items()}
    decided = {
        "distinct": stand_in["partition"],
        "utility": any(stand_in.values()),
        "rating": stand_in["quality"],
    }
    return {name: f"{name}_stand_in" if decided.get(name) else name for name in METRICS}


def _splits(scored: Sequence[Mapping], names: Mapping[str, str], seed: int) -> dict:
    splits = {}
    for split in dict.fromkeys(prompt["split"] for prompt in scored):
        of_split = [prompt for prompt in scored if prompt["split"] == split]
        kinds = [prompt["kind"] for prompt in of_split]
        splits[split] = {
            "prompts": len(of_split),
            "samples": sum(prompt["samples"] for prompt in of_split),
            "metrics": {
                shown: statistics.family_mean_interval(
                    [prompt[name] for prompt in of_split], kinds, seed=seed
                )
                for name, shown in names.items()
            },
        }
    return splits
