"""Structured sampling, the part that scores (Paper A, structured sampling).

Samples of the selected prompts are read as numbers and compared with the distribution that was
asked for. Distances are also divided by the standard deviation of the discretised target, which is
finite for every family, so that families can be averaged.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from calibration_tuning import statistics
from calibration_tuning.errors import InputError, remake
from calibration_tuning.evaluations.samples import tokens_per_answer
from calibration_tuning.families import Distribution

DIVERGENCE_VALUES = (
    "logit_kl",
    "logit_kl_standard_error",
    "sequence_kl",
    "sequence_kl_standard_error",
    "space_mass",
    "space_mass_standard_error",
    "space_mass_bound",
    "space_wasserstein",
    "exact",
    "prefixes",
    "paths",
)
DIVERGENCE_KEYS = ("split", "prompt_index", "family", "params", *DIVERGENCE_VALUES)
# What a cell reports, each averaged over prompts. KL in nats; the rest without unit, but for
# wasserstein (the unit of the samples), distinct_values (a count) and tokens_per_answer.
METRICS = (
    "valid_rate",
    "parse_rate",
    "violation_rate",
    "wasserstein",
    "wasserstein_normalised",
    "mean_error",
    "variance_error",
    "rejected_rate",
    "distinct_values",
    "logit_kl",
    "sequence_kl",
    "space_mass",
    "space_wasserstein_normalised",
    "tokens_per_answer",
)
SIGNIFICANCE = 0.05
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def parse_number(text: str) -> float | None:
    """The number that a text is, or None where its stripped text isn't one decimal number.

    ASCII digits with an optional sign, point and exponent; nothing beside them, and not so large
    that it overflows.
    """
    stripped = text.strip()
    if _NUMBER.fullmatch(stripped) is None:
        return None
    number = float(stripped)
    return number if math.isfinite(number) else None


def valid_numbers(texts: Sequence[str], distribution: Distribution) -> np.ndarray:
    """The valid samples among texts: numbers inside the support, integral where the family is.

    "4.0" is integral; the ends of the support belong to it.

    Returns
    -------
    float64 array (valid,)
        Ascending, so that the rounding of what is computed doesn't depend on the samples' order.
    """
    low, high = distribution.support
    numbers = (parse_number(text) for text in texts)
    inside = sorted(number for number in numbers if number is not None and low <= number <= high)
    if distribution.is_integer:
        inside = [number for number in inside if number.is_integer()]
    return np.array(inside, dtype=np.float64)


def score_prompt(
    texts: Sequence[str], distribution: Distribution, decimals: int, max_bins: int
) -> dict:
    """Metrics of the samples of one prompt.

    Parameters
    ----------
    texts : sequence of str, shape (n,), n >= 1
        The samples as the model wrote them.
    distribution : Distribution
        What was asked for.
    decimals, max_bins : int
        Of the discretised target, whose moments the sample's are compared with.

    Returns
    -------
    dict
        Rates are of all samples: "valid_rate"; "parse_rate", those that are one number;
        "violation_rate", those that are one number but no valid one. Everything else is of the
        valid samples, and None where there are fewer than two: "wasserstein", and
        "wasserstein_normalised", divided by the target's standard deviation; "mean_error" in
        standard deviations of the target; "variance_error" relative to the target's variance;
        "fit_test", "fit_statistic", "fit_p_value", and "rejected" at the 5 % level;
        "distinct_values", how many different numbers there are.
    """
    valid = valid_numbers(texts, distribution)
    parsed = sum(parse_number(text) is not None for text in texts)
    scores = {
        "samples": len(texts),
        "valid": len(valid),
        "valid_rate": len(valid) / len(texts),
        "parse_rate": parsed / len(texts),
        "violation_rate": (parsed - len(valid)) / len(texts),
        "distinct_values": len(np.unique(valid)),
    }
    distances = ("wasserstein", "wasserstein_normalised", "mean_error", "variance_error")
    scores |= dict.fromkeys(distances)
    scores["fit_test"] = "chi_square" if distribution.is_integer else "kolmogorov_smirnov"
    scores |= dict.fromkeys(("fit_statistic", "fit_p_value", "rejected"))
    if len(valid) < 2:
        return scores
    mean, variance = target_moments(distribution, decimals, max_bins)
    deviation = math.sqrt(variance)
    # A sample such as 1e300 is valid where the support is unbounded; its square overflows.
    with np.errstate(over="ignore", invalid="ignore"):
        wasserstein = statistics.wasserstein_1(valid, distribution)
        values = (
            wasserstein,
            _ratio(wasserstein, deviation),
            _ratio(abs(valid.mean() - mean), deviation),
            _ratio(abs(valid.var(ddof=1) - variance), variance),
        )
    scores |= {name: _finite(value) for name, value in zip(distances, values, strict=True)}
    if distribution.is_integer:
        result = statistics.chi_square(valid, distribution)
    else:
        result = statistics.kolmogorov_smirnov(valid, distribution)
    if result is not None:
        scores["fit_statistic"], scores["fit_p_value"] = map(_finite, result)
        scores["rejected"] = bool(result[1] < SIGNIFICANCE)
    return scores


def target_moments(distribution: Distribution, decimals: int, max_bins: int) -> tuple[float, float]:
    """Mean and variance of the discretised target."""
    space = distribution.output_space(decimals, max_bins)
    values = np.array(space.texts, dtype=np.float64)
    mean = float(space.probabilities @ values)
    return mean, float(space.probabilities @ (values - mean) ** 2)


def score_cell(
    samples: pd.DataFrame,
    divergences: Sequence[Mapping],
    prompts: Mapping[str, Sequence[Mapping]],
    *,
    decimals: int,
    max_bins: int,
    seed: int,
) -> dict:
    """Metrics of all sampled prompts of a cell, and their means by split.

    Parameters
    ----------
    samples : DataFrame
        A row a sample, with the columns split, prompt_index, text and token_ids.
    divergences : sequence of mappings
        One for every sampled prompt, with `DIVERGENCE_KEYS`; KL in nats.
    prompts : mapping of str to sequence of mappings
        The prompt records of each split that was sampled.
    decimals, max_bins : int
        Of the discretised target.
    seed : int
        Of the bootstrap.

    Returns
    -------
    dict
        "splits" (from split to counts and "metrics") and "prompts" (the metrics of each prompt).

    Raises
    ------
    InputError
        Samples, divergences and prompts that don't belong together.
    """
    divergence_of = {(line["split"], line["prompt_index"]): line for line in divergences}
    scored = []
    for (split, index), group in samples.groupby(["split", "prompt_index"], sort=True):
        where = f"prompt {index} of split {split}"
        if split not in prompts or not 0 <= index < len(prompts[split]):
            raise InputError(f"{where}: it has samples but is not among the prompts")
        record, divergence = prompts[split][index], divergence_of.get((split, index))
        if divergence is None:
            raise InputError(f"{where}: it has samples but no divergence; sample the cell again")
        if any(divergence[key] != record[key] for key in ("family", "params")):
            raise InputError(f"{where}: the prompts have changed since; sample the cell again")
        distribution = Distribution(record["family"], record["params"])
        deviation = math.sqrt(target_moments(distribution, decimals, max_bins)[1])
        distance = divergence["space_wasserstein"]
        scored.append(
            {
                "split": split,
                "prompt_index": int(index),
                "family": record["family"],
                "params": record["params"],
                **score_prompt(list(group["text"]), distribution, decimals, max_bins),
                "tokens_per_answer": float(np.mean(tokens_per_answer(group))),
                **{key: divergence[key] for key in DIVERGENCE_VALUES},
                "space_wasserstein_normalised": (
                    None if distance is None else _finite(_ratio(distance, deviation))
                ),
            }
        )
    splits = sorted({prompt["split"] for prompt in scored}, key=list(prompts).index)
    return {
        "splits": {
            split: summarise([prompt for prompt in scored if prompt["split"] == split], seed)
            for split in splits
        },
        "prompts": scored,
    }


def summarise(scored: Sequence[Mapping], seed: int) -> dict:
    """Counts and equal-family-weight means of the prompts of one split."""
    families = [prompt["family"] for prompt in scored]
    metrics = {}
    for name in METRICS:
        values = [prompt["rejected" if name == "rejected_rate" else name] for prompt in scored]
        metrics[name] = statistics.family_mean_interval(values, families, seed=seed)
    return {
        "prompts": len(scored),
        "families": len(set(families)),
        "samples": sum(prompt["samples"] for prompt in scored),
        "metrics": metrics,
    }


def read_divergences(path: Path) -> list[dict]:
    """The lines of a JSONL file of divergences; InputError naming a line that is no such."""
    again = remake("sample_structured", path)
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error}); {again}") from error
    divergences = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            missing = [key for key in DIVERGENCE_KEYS if key not in record]
        except (ValueError, TypeError) as error:
            raise InputError(f"{path}, line {number}: expected a JSON object; {again}") from error
        if missing:
            raise InputError(f"{path}, line {number}: expected the key {missing[0]}; {again}")
        divergences.append(record)
    return divergences


def _ratio(numerator: float, denominator: float) -> float:
    """A quotient; NaN where a target of a single value leaves nothing to divide by."""
    return numerator / denominator if denominator > 0 else math.nan


def _finite(number: float) -> float | None:
    """None for what JSON can't hold."""
    return float(number) if math.isfinite(number) else None
