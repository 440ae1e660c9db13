"""Benchmarks, the part that scores: what calibration costs elsewhere (Paper A, retention)."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from calibration_tuning import files
from calibration_tuning.errors import InputError, remake
from calibration_tuning.evaluations.item_response import Items, gp_irt
from calibration_tuning.evaluations.mcq import rate
from calibration_tuning.statistics import family_mean_interval

COLUMNS = ("task", "item", "metric", "value")
"""Of samples.parquet: a row an item and metric. Metrics have lm-eval's names, filter included;
`CHANCE` is what guessing gets on an item, for tasks with one right answer among several."""
CHANCE = "chance"
PRIMARY = ("exact_match,strict-match", "acc_norm,none", "acc,none")
FLEXIBLE = "exact_match,flexible-extract"
SCENARIOS = {
    "tinyArc": "arc",
    "tinyGSM8k": "gsm8k",
    "tinyHellaswag": "hellaswag",
    "tinyMMLU": "mmlu",
    "tinyTruthfulQA": "truthfulqa",
    "tinyWinogrande": "winogrande",
}
"""Of the published item parameters, by task."""


def primary_metric(names: Iterable[str]) -> str:
    """The metric that stands for a task: the first of `PRIMARY` it has, else the first by name.

    >>> primary_metric(["acc,none", "acc_norm,none"])
    'acc_norm,none'
    """
    names = sorted(set(names) - {CHANCE})
    return next((metric for metric in PRIMARY if metric in names), names[0])


def read_samples(path: Path) -> pd.DataFrame:
    """A file of items' scores.

    Raises
    ------
    InputError
        If it has not these columns, or no rows.
    """
    again = remake("sample_benchmarks", path)
    try:
        frame = pd.read_parquet(path, columns=list(COLUMNS))
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"{path}: expected Parquet with columns {', '.join(COLUMNS)} ({reason}); {again}"
        ) from None
    if frame.empty or frame.isna().any(axis=None):
        raise InputError(f"{path}: expected scores without missing values; {again}")
    return frame


def score_cell(samples: pd.DataFrame, parameters: Mapping[str, Items], seed: int) -> dict:
    """Metrics of a cell's tasks, in the form that every evaluation's metrics have.

    Parameters
    ----------
    samples : DataFrame
        With `COLUMNS`.
    parameters : mapping of scenario to published item parameters
        May be empty: then there is no gp-IRT estimate.
    seed : int
        Of the bootstrap of scores that are not just right or wrong.

    Returns
    -------
    dict
        "splits", by task: score (mean over items, 95 % interval: exact binomial for right or
        wrong, else bootstrap), standard_error, and where they are defined score_flexible, chance
        and gp_irt.
    """
    splits = {}
    for task, rows in samples.groupby("task", sort=True):
        values = {
            metric: of_metric.sort_values("item")["value"].to_numpy()
            for metric, of_metric in rows.groupby("metric")
        }
        scores = values[primary_metric(values)]
        metrics = {
            "score": mean_with_interval(scores, seed),
            "standard_error": _plain(standard_error(scores), scores.size),
        }
        if FLEXIBLE in values:
            metrics["score_flexible"] = mean_with_interval(values[FLEXIBLE], seed)
        if CHANCE in values:
            metrics["chance"] = _plain(float(values[CHANCE].mean()), scores.size)
        scenario = SCENARIOS.get(task)
        if scenario in parameters:
            if scores.size != len(parameters[scenario].seen):
                raise InputError(
                    f"{task}: {scores.size} items; gp-IRT needs all "
                    f"{len(parameters[scenario].seen)}: expected a larger evaluations.benchmarks."
                    "items, or no item_parameters"
                )
            metrics["gp_irt"] = _plain(float(gp_irt(scores, parameters[scenario])), scores.size)
        splits[task] = {"prompts": scores.size, "samples": scores.size, "metrics": metrics}
    return {"splits": splits}


def mean_with_interval(scores: np.ndarray, seed: int) -> dict:
    """Mean over items with a 95 % interval, exact where each is just right or wrong."""
    if np.isin(scores, (0.0, 1.0)).all():
        return rate(int(scores.sum()), scores.size)
    return family_mean_interval(scores, ["items"] * scores.size, seed=seed)


def standard_error(scores: np.ndarray) -> float | None:
    """Of the mean, from the sample's standard deviation; None for a single item."""
    if scores.size < 2:
        return None
    return float(scores.std(ddof=1) / np.sqrt(scores.size))


def write_samples(path: Path, rows: Sequence[tuple[str, int, str, float]]) -> None:
    """Write items' scores as Parquet with `COLUMNS`."""
    frame = pd.DataFrame(rows, columns=list(COLUMNS)).astype({"item": "int32"})
    files.write_atomic(path, frame.to_parquet(index=False, compression="zstd"))


def _plain(value: float | None, n: int) -> dict:
    return {"mean": value, "low": None, "high": None, "n": n}
