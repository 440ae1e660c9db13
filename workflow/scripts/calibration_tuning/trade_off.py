"""What a method gains in calibration against what it changes elsewhere, per model.

Every method is compared with the untuned model on the same prompts, benchmark items and
documents. Intervals are 95 % percentile intervals of a paired bootstrap, which draws the items
once and uses the same draw for both sides and all seeds, and draws the seeds, too, where there are
several.
"""

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from calibration_tuning.errors import InputError
from calibration_tuning.evaluations.benchmarks import primary_metric

BASE = "base"
QUANTITIES = ("calibration", "benchmark", "perplexity")
COLUMNS = ("model", "method", "quantity", "name", "change", "low", "high", "n", "seeds")
MEAN = "mean"
RESAMPLES = 2000
LEVEL = 0.95
BOOTSTRAP_SEED = 20240223
"""Not a cell's: a comparison is of several."""
SPLIT_NAMES = {"heldout": "held-out", "unseen": "unseen"}
MISSING = "-"


class Stratum(NamedTuple):
    """Items that are drawn together, such as the prompts of a family.

    Parameters
    ----------
    items : tuple
        What identifies each of the n items; ascending.
    values : float64 array (n, 2)
        A value and its weight each; the stratum's result is sum of values / sum of weights.
    """

    items: tuple
    values: np.ndarray


class Measured(NamedTuple):
    """What one file says.

    Parameters
    ----------
    path : Path
    groups : mapping of name to mapping of stratum's name to Stratum
        A result each (a split, a task, a slice); the mean of its strata with equal weight.
    """

    path: Path
    groups: Mapping[str, Mapping[str, Stratum]]


class Change(NamedTuple):
    """A difference to the untuned model, by seed.

    Parameters
    ----------
    seeds : float64 array (seeds,)
    resampled : float64 array (resamples, seeds), or None where there is no interval
    n : int
        Number of items behind it.
    """

    seeds: np.ndarray
    resampled: np.ndarray | None
    n: int


def measured_calibration(path: Path, content: Mapping) -> Measured:
    """Sequence KL (nats) of the prompts of a structured metrics.json, by split and family.

    Raises
    ------
    InputError
        A prompt without what is needed.
    """
    values = content.get("values")
    prompts = values.get("prompts") if isinstance(values, Mapping) else None
    if not isinstance(prompts, list):
        raise InputError(f"{path}: expected a list as values.prompts")
    rows: dict[str, dict[str, list]] = {}
    for number, prompt in enumerate(prompts):
        try:
            item = (int(prompt["prompt_index"]), json.dumps(prompt["params"], sort_keys=True))
            kl = np.nan if prompt["sequence_kl"] is None else float(prompt["sequence_kl"])
            of_split = rows.setdefault(prompt["split"], {})
            of_split.setdefault(prompt["family"], []).append((item, kl))
        except KeyError as error:
            where = f"values.prompts[{number}].{error.args[0]}"
            raise InputError(f"{path}: expected the key {where}") from None
        except (TypeError, ValueError) as error:
            raise InputError(f"{path}: values.prompts[{number}]: {error}") from None
    return Measured(
        path,
        {
            split: {
                family: Stratum(
                    tuple(item for item, _ in sorted(found)),
                    np.array([(kl, 1.0) for _, kl in sorted(found)]),
                )
                for family, found in sorted(families.items())
            }
            for split, families in sorted(rows.items())
        },
    )


def measured_benchmarks(path: Path, samples: pd.DataFrame) -> Measured:
    """Primary scores of the items of a benchmarks samples.parquet, by task.

    Parameters
    ----------
    path : Path
    samples : DataFrame
        A row an item and metric, with the columns task, item, metric and value.
    """
    groups = {}
    for task, rows in samples.groupby("task", sort=True):
        metric = primary_metric(rows["metric"])
        rows = rows[rows["metric"] == metric].sort_values("item")
        values = np.stack([rows["value"], np.ones(len(rows))], axis=1)
        # The metric belongs to the item: scores by different metrics cannot be compared.
        items = tuple((int(item), metric) for item in rows["item"])
        groups[task] = {task: Stratum(items, values)}
    return Measured(path, groups)


def measured_perplexity(path: Path, samples: pd.DataFrame) -> Measured:
    """Nats and tokens of the scored documents of a perplexity samples.parquet, by slice.

    Parameters
    ----------
    path : Path
    samples : DataFrame
        A row a document, with the columns data, document, status, bytes, tokens and nll.
    """
    groups = {}
    scored = samples[samples["status"] == "scored"]
    for name, rows in scored.groupby("data", sort=False):
        rows = rows.sort_values("document")
        values = rows[["nll", "tokens"]].to_numpy(dtype=np.float64)
        items = tuple(zip(rows["document"].tolist(), rows["bytes"].tolist(), strict=True))
        groups[name] = {name: Stratum(items, values)}
    return Measured(path, groups)


def compare(
    model: str,
    measured: Mapping[str, Mapping[tuple[str, int], Measured]],
    *,
    seed: int = BOOTSTRAP_SEED,
    resamples: int = RESAMPLES,
) -> pd.DataFrame:
    """Every method against the untuned model.

    Seeds that only one of the two has are left out, and named in the column seeds. Prompts
    without a sequence KL in one of the cells are left out, too. A single prompt of a family, item
    of a task or document of a slice says nothing about its spread: no interval then.

    Parameters
    ----------
    model : str
        Its name.
    measured : mapping of quantity to mapping of (method, seed) to Measured
        Any of `QUANTITIES`.
    seed : int
        Of the bootstrap.
    resamples : int
        Number of bootstrap samples.

    Returns
    -------
    DataFrame
        Columns `COLUMNS`. The change is, for "calibration", the untuned model's mean sequence KL
        less the method's, in nats, families with equal weight, so that more is better; for
        "benchmark" the method's score less the untuned model's; for "perplexity" the same of the
        nats a token. `low` and `high` are NaN without an interval, `n` is the number of items, and
        the name "mean" is the mean of all tasks or slices with equal weight.

    Raises
    ------
    InputError
        A method without a seed of the untuned model's, or with other items than it.
    """
    methods = dict.fromkeys(method for cells in measured.values() for method, _ in cells)
    rows = []
    for method in methods:
        for quantity in QUANTITIES:
            cells = measured.get(quantity, {})
            if method == BASE or not any(other == method for other, _ in cells):
                continue
            pairs, seeds = _pair(cells, method)
            for name, change in _changes(quantity, pairs, seed, resamples).items():
                low, high = _interval(change, seed)
                row = (model, method, quantity, name, change.seeds.mean(), low, high, change.n)
                rows.append((*row, seeds))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _pair(
    cells: Mapping[tuple[str, int], Measured], method: str
) -> tuple[list[tuple[Measured, Measured]], str]:
    """The untuned model's and the method's files by common seed, and what to say of the seeds."""
    of_base, of_method = (
        {seed: found for (name, seed), found in cells.items() if name == wanted}
        for wanted in (BASE, method)
    )
    common = sorted(of_base.keys() & of_method.keys())
    if not common:
        path = next(iter(of_method.values())).path
        raise InputError(f"{path}: expected a cell of {BASE} with the same seed to compare it with")
    first = of_base[common[0]]
    for seed in common:
        for other in (of_base[seed], of_method[seed]):
            _check_same_items(first, other)
    text = ", ".join(map(str, common))
    left_out = sorted(of_base.keys() ^ of_method.keys())
    if left_out:
        text += f" (without {', '.join(map(str, left_out))})"
    return [(of_base[seed], of_method[seed]) for seed in common], text


def _check_same_items(first: Measured, second: Measured) -> None:
    for one, other in ((first, second), (second, first)):
        for name, strata in one.groups.items():
            for stratum, content in strata.items():
                counterpart = other.groups.get(name, {}).get(stratum)
                if counterpart is None or counterpart.items != content.items:
                    where = name if name == stratum else f"{name}, {stratum}"
                    raise InputError(
                        f"{first.path} and {second.path}: {where}: expected the same items in both"
                    )


def _changes(
    quantity: str, pairs: Sequence[tuple[Measured, Measured]], seed: int, resamples: int
) -> dict[str, Change]:
    """Changes by name, those of tasks and slices followed by their mean."""
    sign = -1 if quantity == "calibration" else 1
    changes = {}
    for name, strata in pairs[0][0].groups.items():
        found = []
        for stratum in strata:
            # (sides, seeds, items, 2)
            values = np.array(
                [[pair[side].groups[name][stratum].values for pair in pairs] for side in (0, 1)]
            )
            stream = [seed, zlib.crc32(f"{quantity}/{name}/{stratum}".encode())]
            found.append(_change(sign * values[..., :1], values[..., 1:], stream, resamples))
        found = [change for change in found if change.n]
        if found:
            changes[name] = _average(found)
    if changes and quantity != "calibration":
        changes[MEAN] = _average(list(changes.values()))
    return changes


def _change(
    values: np.ndarray, weights: np.ndarray, stream: Sequence[int], resamples: int
) -> Change:
    """Change of sum of values / sum of weights, from (sides, seeds, items, 1) of each."""
    known = ~np.isnan(values).any(axis=(0, 1, 3))
    terms = np.concatenate([values, weights], axis=3)[:, :, known]
    n = int(known.sum())
    if n == 0:
        return Change(np.full(terms.shape[1], np.nan), None, 0)
    seeds = _ratios(np.ones((1, n)), terms)[0]
    if n == 1:
        return Change(seeds, None, 1)
    counts = np.random.default_rng(stream).multinomial(n, np.full(n, 1 / n), size=resamples)
    return Change(seeds, _ratios(counts.astype(np.float64), terms), n)


def _ratios(counts: np.ndarray, terms: np.ndarray) -> np.ndarray:
    """Change (resamples, seeds) where item i counts counts[:, i] times on both sides."""
    sides, seeds, n, two = terms.shape
    sums = counts @ terms.transpose(2, 0, 1, 3).reshape(n, -1)
    sums = sums.reshape(len(counts), sides, seeds, two)
    ratios = sums[..., 0] / sums[..., 1]
    return ratios[:, 1] - ratios[:, 0]


def _average(changes: Sequence[Change]) -> Change:
    """Mean with equal weight; no interval if one of them has none."""
    resampled = None
    if all(change.resampled is not None for change in changes):
        resampled = np.mean([change.resampled for change in changes], axis=0)
    seeds = np.mean([change.seeds for change in changes], axis=0)
    return Change(seeds, resampled, sum(change.n for change in changes))


def _interval(change: Change, seed: int) -> tuple[float, float]:
    """Percentile interval, seeds drawn as well if there are several; NaN where undefined."""
    if change.resampled is None:
        return np.nan, np.nan
    resamples, seeds = change.resampled.shape
    drawn = np.random.default_rng(seed).multinomial(seeds, np.full(seeds, 1 / seeds), resamples)
    means = (change.resampled * drawn).sum(axis=1) / seeds
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def read_table(paths: Iterable[Path]) -> pd.DataFrame:
    """Tables of `compare` from their CSV files, one below the other.

    Raises
    ------
    InputError
        If a file cannot be read or lacks a column.
    """
    tables = []
    for path in paths:
        try:
            table = pd.read_csv(path, dtype={"seeds": str, "model": str, "method": str})
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: cannot be read as CSV ({error})") from None
        missing = [column for column in COLUMNS if column not in table]
        if missing:
            raise InputError(f"{path}: expected the column {missing[0]}")
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def to_rows(table: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Header and rows of text: a row a model and method, a column a quantity.

    Calibration in nats, scores in points, perplexity in per cent; "change [low, high]" each. The
    first three columns are model, method and seeds.
    """
    columns = [
        (quantity, name)
        for quantity in QUANTITIES
        for name in _names(table.loc[table["quantity"] == quantity, "name"])
    ]
    rows = []
    for (model, method), of_method in table.groupby(["model", "method"], sort=False):
        found = {(row["quantity"], row["name"]): row for row in of_method.to_dict("records")}
        # Evaluations may have different seeds.
        row = [model, method, "; ".join(dict.fromkeys(of_method["seeds"]))]
        rows.append(row + [_cell(found.get(column)) for column in columns])
    return ["Model", "Method", "Seeds", *(_heading(*column) for column in columns)], rows


def _names(names: Iterable[str]) -> list[str]:
    """Held-out families first, the mean of tasks or slices last."""
    return sorted(
        dict.fromkeys(names),
        key=lambda name: (name == MEAN, name != "heldout"),
    )


def _heading(quantity: str, name: str) -> str:
    if quantity == "calibration":
        return f"KL gain, {SPLIT_NAMES.get(name, name)} (nats)"
    if quantity == "benchmark":
        return f"{'Mean score' if name == MEAN else name} (points)"
    return f"Perplexity, {name} (%)"


def _cell(row: Mapping | None) -> str:
    if row is None or pd.isna(row["change"]):
        return MISSING
    digits = 2 if row["quantity"] == "calibration" else 1
    change, low, high = (
        _shown(in_units(row[key], row["quantity"]), digits) for key in ("change", "low", "high")
    )
    return change if pd.isna(row["low"]) else f"{change} [{low}, {high}]"


def _shown(value: float, digits: int) -> str:
    """A number with its sign; none that is rounded to 0."""
    text = f"{value:+.{digits}f}" if abs(value) < 1e4 else f"{value:+.2g}"
    return text if text.strip("+-0.") else text[1:]


def in_units(change, quantity: str):
    """A change as it is shown: nats of calibration, points of a score, per cent of perplexity."""
    if quantity == "calibration":
        return change
    return 100 * (change if quantity == "benchmark" else np.expm1(change))


def latex_rows(header: Sequence[str], rows: Sequence[Sequence[str]], texts: int) -> str:
    """A LaTeX tabular with booktabs rules, whose first so many columns are texts."""
    special = str.maketrans({character: f"\\{character}" for character in "_%&#"})
    top, *body = (
        " & ".join(text.translate(special) for text in row) + r" \\" for row in (header, *rows)
    )
    form = "l" * texts + "r" * (len(header) - texts)
    inner = [f"\\begin{{tabular}}{{{form}}}", r"\toprule", top, r"\midrule", *body]
    return "\n".join([*inner, r"\bottomrule", r"\end{tabular}"]) + "\n"


def headline(table: pd.DataFrame) -> str:
    """The main changes as aligned lines for a terminal: held-out families and the means."""
    shown = (table["name"] == MEAN) | (table["name"] == "heldout")
    header, rows = to_rows(table[shown])
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for row in (header, *rows):
        padded = [
            text.ljust(width) if column < 3 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines) + "\n"
