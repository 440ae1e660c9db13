"""Tables of metrics: one tidy table of everything, and the summary that a reader wants first."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from calibration_tuning import files
from calibration_tuning.errors import InputError

CELL_KEYS = ("model", "method", "seed", "evaluation")
METRIC_KEYS = ("mean", "low", "high", "n")
TIDY_COLUMNS = (*CELL_KEYS, "split", "metric", "value", "low", "high", "n")

# Column of the summary: heading, digits after the point.
SUMMARY_METRICS = {
    "valid_rate": ("Valid rate", 3),
    "wasserstein_normalised": ("W1 (sd)", 2),
    "logit_kl": ("Logit KL (nats/token)", 3),
    "sequence_kl": ("Sequence KL (nats)", 2),
    "space_mass": ("Mass on space", 3),
}
SPLIT_NAMES = {"unseen": "unseen parameters", "heldout": "held-out families"}
# Methods and splits come in this order, then any others by name.
FIRST_METHODS = ("base", "soft", "hard", "soft-exact", "string-seed")
MISSING = "-"


def collect(paths: Iterable[Path]) -> pd.DataFrame:
    """All metrics of many metrics.json files as one tidy table.

    Parameters
    ----------
    paths : iterable of Path
        Files as workflow/schemas/metrics.schema.json describes them.

    Returns
    -------
    DataFrame
        A row a metric with the columns `TIDY_COLUMNS`, sorted; value, low and high float64 with
        NaN where undefined, n and seed int64.

    Raises
    ------
    InputError
        A file that is no such, or two of the same cell.
    """
    rows, path_of = [], {}
    for path in paths:
        content = files.read_json(path)
        cell = tuple(_entry(content, path, "cell", key) for key in CELL_KEYS)
        if cell in path_of:
            raise InputError(f"{path}: the same cell as {path_of[cell]}; expected one file a cell")
        path_of[cell] = path
        splits = _entry(content, path, "values", "splits")
        for split in splits:
            for metric in _entry(content, path, "values", "splits", split, "metrics"):
                keys = ("values", "splits", split, "metrics", metric)
                values = (_entry(content, path, *keys, key) for key in METRIC_KEYS)
                rows.append((*cell, split, metric, *values))
    table = pd.DataFrame(rows, columns=list(TIDY_COLUMNS))
    try:
        table = table.astype({"seed": int, "value": float, "low": float, "high": float, "n": int})
    except (TypeError, ValueError) as error:
        raise InputError(f"{', '.join(map(str, path_of.values()))}: {error}") from error
    return table.sort_values(list(TIDY_COLUMNS[:6]), ignore_index=True)


def read_tidy(path: Path) -> pd.DataFrame:
    """A tidy table from its CSV; InputError if a column is missing."""
    try:
        table = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as CSV ({error})") from error
    missing = [column for column in TIDY_COLUMNS if column not in table]
    if missing:
        raise InputError(f"{path}: expected the column {missing[0]}")
    return table


def summary(tidy: pd.DataFrame, evaluation: str = "structured") -> pd.DataFrame:
    """Model x split x method: every summary metric, averaged over seeds.

    Parameters
    ----------
    tidy : DataFrame
        As `collect` returns it.
    evaluation : str
        The evaluation to summarise.

    Returns
    -------
    DataFrame
        Columns model, split, method, seeds (how many), prompts (how many), and for every key of
        `SUMMARY_METRICS` its mean over seeds, `{metric}_sd`, the standard deviation over seeds
        (NaN for one), and `{metric}_n`, the smallest number of prompts behind it in any seed.

    Raises
    ------
    InputError
        No such metrics.
    """
    tidy = tidy[(tidy["evaluation"] == evaluation) & tidy["metric"].isin(SUMMARY_METRICS)]
    if tidy.empty:
        raise InputError(f"no metrics of the evaluation {evaluation} to summarise")
    keys = ["model", "split", "method"]
    groups = tidy.groupby([*keys, "metric"], dropna=False)
    wide = groups.agg(mean=("value", "mean"), sd=("value", "std"), n=("n", "min")).unstack("metric")
    table = pd.DataFrame(index=wide.index)
    table["seeds"] = tidy.groupby(keys, dropna=False)["seed"].nunique()
    table["prompts"] = wide["n"].max(axis=1).astype(int)
    for metric in SUMMARY_METRICS:
        if metric in wide["mean"]:
            table[metric] = wide["mean"][metric]
            table[f"{metric}_sd"] = wide["sd"][metric]
            table[f"{metric}_n"] = wide["n"][metric].astype(int)
    rank = _rank(FIRST_METHODS, SPLIT_NAMES)
    return table.reset_index().sort_values(keys, key=rank, ignore_index=True)


def to_markdown(table: pd.DataFrame) -> str:
    """A summary as a Markdown table."""
    header, rows = _formatted(table, plus_minus="±")
    return markdown_rows(header, rows, texts=3)


def markdown_rows(header: Sequence[str], rows: Sequence[Sequence[str]], texts: int) -> str:
    """A Markdown table whose first so many columns are texts, the others numbers."""
    rule = ["---"] * texts + ["---:"] * (len(header) - texts)
    return "".join("| " + " | ".join(row) + " |\n" for row in (header, rule, *rows))


def to_latex(table: pd.DataFrame) -> str:
    """A summary as a LaTeX tabular with booktabs rules."""
    header, rows = _formatted(table, plus_minus=r"$\pm$")
    groups = [row[:2] for row in rows]
    lines = [f"\\begin{{tabular}}{{lll{'r' * (len(header) - 3)}}}", r"\toprule"]
    lines += [_latex_row(header), r"\midrule"]
    for number, row in enumerate(rows):
        if number and groups[number] != groups[number - 1]:
            lines.append(r"\midrule")
        lines.append(_latex_row(row))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def to_html(table: pd.DataFrame) -> str:
    """A summary as a page of its own, for the report."""
    header, rows = _formatted(table, plus_minus="±")
    return html_page(pd.DataFrame(rows, columns=header), "Structured sampling", texts=3)


def html_page(table: pd.DataFrame, title: str, texts: int) -> str:
    """A table of text as a page of its own; its first so many columns are texts."""
    style = (
        "body{font:13px system-ui,sans-serif;margin:1em;overflow-x:auto}"
        "table{border-collapse:collapse}"
        "th,td{padding:.3em .5em;text-align:right;border-bottom:1px solid #ddd;white-space:nowrap}"
        f"th:nth-child(-n+{texts}),td:nth-child(-n+{texts}){{text-align:left}}"
    )
    body = table.to_html(index=False, border=0)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{title}</title><style>{style}</style></head>\n"
        f"<body>{body}</body></html>\n"
    )


def headline(table: pd.DataFrame) -> str:
    """A summary as a few aligned lines for a terminal."""
    header, rows = _formatted(table, plus_minus="±")
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for row in (header, *rows):
        texts = [text.ljust(width) for text, width in zip(row[:3], widths[:3], strict=True)]
        numbers = [text.rjust(width) for text, width in zip(row[3:], widths[3:], strict=True)]
        lines.append("  ".join([*texts, *numbers]).rstrip())
    return "\n".join(lines) + "\n"


def training_speed_rows(runs: Mapping[str, Sequence[Mapping]]) -> pd.DataFrame:
    """What each way of training reached in its time: a row a way, as text.

    Parameters
    ----------
    runs : mapping of way to its lines, see `calibration_tuning.training_speed`
    """
    digits = {
        "seconds": ("Seconds", 0),
        "steps": ("Steps", 0),
        "values": ("Values", 0),
        "sequence_kl": ("Sequence KL (nats)", 2),
        "logit_kl": ("Logit KL (nats/token)", 3),
        "wasserstein": ("W1 (sd), mean", 2),
        "wasserstein_median": ("W1 (sd), median", 2),
        "valid_rate": ("Valid rate", 3),
    }
    rows = []
    for way, lines in runs.items():
        last = lines[-1]
        row = {"Way": way}
        for key, (heading, places) in digits.items():
            row[heading] = MISSING if last[key] is None else _plain(last[key], places)
        rows.append(row)
    return pd.DataFrame(rows)


def _formatted(table: pd.DataFrame, plus_minus: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a summary as text."""
    metrics = [metric for metric in SUMMARY_METRICS if metric in table]
    header = ["Model", "Split", "Method", "Seeds", "Prompts"]
    header += [SUMMARY_METRICS[metric][0] for metric in metrics]
    rows = []
    for row in table.to_dict("records"):
        texts = [row["model"], SPLIT_NAMES.get(row["split"], row["split"]), row["method"]]
        texts += [str(row["seeds"]), str(row["prompts"])]
        texts += [_number(row, metric, plus_minus) for metric in metrics]
        rows.append(texts)
    return header, rows


def _number(row: dict, metric: str, plus_minus: str) -> str:
    """Mean, spread over seeds if there are several, and n if it isn't all prompts."""
    value, deviation, n = row[metric], row[f"{metric}_sd"], row[f"{metric}_n"]
    if pd.isna(value):
        return MISSING
    digits = SUMMARY_METRICS[metric][1]
    text = _plain(value, digits)
    if not pd.isna(deviation):
        text += f" {plus_minus} {_plain(deviation, digits)}"
    return text if n == row["prompts"] else f"{text} (n={n})"


def _plain(value: float, digits: int) -> str:
    """A number; one that a few wild samples drove up needs no digits after its point."""
    return f"{value:.{digits}f}" if abs(value) < 1e4 or digits == 0 else f"{value:.2g}"


def _latex_row(texts: Sequence[str]) -> str:
    escaped = (text.replace("_", r"\_").replace("%", r"\%").replace("&", r"\&") for text in texts)
    return " & ".join(escaped) + r" \\"


def _rank(*orders: Iterable[str]):
    """A sort key for columns of names: the names of these orders first, in their order."""
    position = {name: number for order in orders for number, name in enumerate(order)}
    return lambda column: column.map(lambda name: (position.get(name, len(position)), name))


def _entry(content: object, path: Path, *keys: str) -> object:
    """A nested entry of a file's content; InputError naming the first key that isn't there."""
    for depth, key in enumerate(keys, start=1):
        if not isinstance(content, dict) or key not in content:
            raise InputError(f"{path}: expected the key {'.'.join(keys[:depth])}")
        content = content[key]
    return content
