"""Tables of metrics: one tidy table of everything, and a summary of each evaluation."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from calibration_tuning import files
from calibration_tuning.errors import InputError

CELL_KEYS = ("model", "method", "seed", "evaluation")
METRIC_KEYS = ("mean", "low", "high", "n")
TIDY_COLUMNS = (
    *(*CELL_KEYS, "split", "metric", "value", "low", "high"),
    *("n", "prompts", "samples"),
)
TITLES = {
    "structured": "Structured sampling",
    "open_ended": "Open-ended random generation",
    "mcq": "Balance of multiple-choice answers",
    "novelty": "NoveltyBench",
    "benchmarks": "Benchmarks",
    "perplexity": "Perplexity",
}
_TOKENS = {"tokens_per_answer": ("Tokens per answer", 0)}
_ENDINGS = {"empty_rate": ("Empty", 2), "unfinished_rate": ("Unfinished", 2)} | _TOKENS

# By evaluation, the columns of its summary: heading, digits after the point.
SUMMARY_METRICS = {
    "structured": {
        "valid_rate": ("Valid rate", 3),
        "wasserstein_normalised": ("W1 (sd)", 2),
        "logit_kl": ("Logit KL (nats/token)", 3),
        "sequence_kl": ("Sequence KL (nats)", 2),
        "space_mass": ("Mass on space", 3),
    }
    | _TOKENS,
    "open_ended": {
        "support": ("Support at 0.9, mean", 1),
        "support_median": ("median", 1),
        "support_least": ("least", 0),
        "support_most": ("most", 0),
        "unique_fraction": ("Different answers, mean", 2),
        "unique_fraction_median": ("median", 2),
        "top_share": ("Top answer's share", 2),
        "entropy": ("Entropy (nats)", 2),
        "number_rate": ("Plain numbers", 2),
    }
    | _ENDINGS,
    "mcq": {
        "parse_rate": ("Parsed", 2),
        "share_a": ("A", 2),
        "share_b": ("B", 2),
        "share_c": ("C", 2),
        "share_d": ("D", 2),
        "total_variation": ("TV from uniform", 2),
        "p_value": ("Chi-square p", 3),
        "distinct_options_rate": ("Four different options", 2),
    }
    | _ENDINGS,
    "novelty": {
        "distinct": ("Distinct", 2),
        "distinct_stand_in": ("Distinct (stand-in)", 2),
        "utility": ("Utility", 2),
        "utility_stand_in": ("Utility (stand-in)", 2),
        "rating": ("Rating", 2),
        "rating_stand_in": ("Rating (stand-in)", 2),
    }
    | _ENDINGS,
    "benchmarks": {
        "score": ("Score", 3),
        "standard_error": ("Standard error", 3),
        "score_flexible": ("Flexible match", 3),
        "gp_irt": ("gp-IRT", 3),
        "chance": ("Chance", 3),
    },
    "perplexity": {
        "perplexity": ("Perplexity", 2),
        "bits_per_byte": ("Bits per byte", 3),
        "documents_short": ("Too short", 0),
        "documents_empty": ("Empty", 0),
        "rows_broken": ("Broken rows", 0),
    },
}
WITH_INTERVAL = {
    *("support", "unique_fraction", "parse_rate", "total_variation"),
    *("distinct", "distinct_stand_in", "utility", "utility_stand_in"),
    *("score", "score_flexible", "perplexity", "bits_per_byte"),
}
"""Metrics that are shown with their 95 % interval where there is one seed."""
SPLIT_NAMES = {
    "unseen": "unseen parameters",
    "heldout": "held-out families",
    "prompts": "our prompts",
    "all": "one prompt",
}
# Methods and splits come in this order, then any others by name.
FIRST_METHODS = ("base", "soft", "hard", "soft-exact", "string-seed", "verbalized")
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
        NaN where undefined, n, prompts, samples (of the split) and seed int64.

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
            where = ("values", "splits", split)
            counts = [_entry(content, path, *where, key) for key in ("prompts", "samples")]
            for metric in _entry(content, path, *where, "metrics"):
                keys = (*where, "metrics", metric)
                values = (_entry(content, path, *keys, key) for key in METRIC_KEYS)
                rows.append((*cell, split, metric, *values, *counts))
    table = pd.DataFrame(rows, columns=list(TIDY_COLUMNS))
    numbers = dict.fromkeys(("value", "low", "high"), float)
    numbers |= dict.fromkeys(("seed", "n", "prompts", "samples"), int)
    try:
        table = table.astype(numbers)
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
        Columns model, split, method, seeds, prompts and samples (how many; of all seeds together
        for samples), and for every metric of the evaluation in `SUMMARY_METRICS` its mean over
        seeds, `{metric}_sd`, the standard deviation over seeds (NaN for one), `{metric}_low` and
        `{metric}_high`, the interval of a single seed, and `{metric}_n`, the smallest number of
        prompts (or of samples, if there is one prompt) behind it in any seed.

    Raises
    ------
    InputError
        No such metrics.
    """
    known = SUMMARY_METRICS[evaluation]
    tidy = tidy[(tidy["evaluation"] == evaluation) & tidy["metric"].isin(known)]
    if tidy.empty:
        raise InputError(f"no metrics of the evaluation {evaluation} to summarise")
    keys = ["model", "split", "method"]
    groups = tidy.groupby([*keys, "metric"], dropna=False)
    wide = groups.agg(
        mean=("value", "mean"),
        sd=("value", "std"),
        n=("n", "min"),
        low=("low", "first"),
        high=("high", "first"),
    ).unstack("metric")
    table = pd.DataFrame(index=wide.index)
    of_seed = tidy.groupby([*keys, "seed"], dropna=False)[["prompts", "samples"]].first()
    of_seed = of_seed.groupby(keys, dropna=False)
    table["seeds"] = of_seed.size()
    table["prompts"] = of_seed["prompts"].max()
    table["samples"] = of_seed["samples"].sum()
    for metric in known:
        if metric in wide["mean"]:
            table[metric] = wide["mean"][metric]
            table[f"{metric}_sd"] = wide["sd"][metric]
            for bound in ("low", "high"):
                table[f"{metric}_{bound}"] = wide[bound][metric].where(table["seeds"] == 1)
            table[f"{metric}_n"] = wide["n"][metric].fillna(0).astype(int)
    rank = _rank(FIRST_METHODS, SPLIT_NAMES)
    return table.reset_index().sort_values(keys, key=rank, ignore_index=True)


def to_markdown(table: pd.DataFrame, evaluation: str = "structured") -> str:
    """A summary as a Markdown table."""
    header, rows = _formatted(table, evaluation, plus_minus="±")
    return markdown_rows(header, rows, texts=3)


def markdown_rows(header: Sequence[str], rows: Sequence[Sequence[str]], texts: int) -> str:
    """A Markdown table whose first so many columns are texts, the others numbers."""
    rule = ["---"] * texts + ["---:"] * (len(header) - texts)
    return "".join("| " + " | ".join(row) + " |\n" for row in (header, rule, *rows))


def to_latex(table: pd.DataFrame, evaluation: str = "structured") -> str:
    """A summary as a LaTeX tabular with booktabs rules."""
    header, rows = _formatted(table, evaluation, plus_minus=r"$\pm$")
    groups = [row[:2] for row in rows]
    lines = [f"\\begin{{tabular}}{{lll{'r' * (len(header) - 3)}}}", r"\toprule"]
    lines += [_latex_row(header), r"\midrule"]
    for number, row in enumerate(rows):
        if number and groups[number] != groups[number - 1]:
            lines.append(r"\midrule")
        lines.append(_latex_row(row))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def to_html(table: pd.DataFrame, evaluation: str = "structured") -> str:
    """A summary as a page of its own, for the report."""
    header, rows = _formatted(table, evaluation, plus_minus="±")
    return html_page(pd.DataFrame(rows, columns=header), TITLES[evaluation], texts=3)


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


def headline(table: pd.DataFrame, evaluation: str = "structured") -> str:
    """A summary as a few aligned lines for a terminal."""
    header, rows = _formatted(table, evaluation, plus_minus="±")
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


def _formatted(
    table: pd.DataFrame, evaluation: str, plus_minus: str
) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a summary as text."""
    known = SUMMARY_METRICS[evaluation]
    metrics = [metric for metric in known if metric in table]
    header = ["Model", "Split", "Method", "Seeds", "Prompts", "Samples"]
    header += [known[metric][0] for metric in metrics]
    rows = []
    for row in table.to_dict("records"):
        texts = [row["model"], SPLIT_NAMES.get(row["split"], row["split"]), row["method"]]
        texts += [str(row["seeds"]), str(row["prompts"]), str(row["samples"])]
        texts += [_number(row, metric, known[metric][1], plus_minus) for metric in metrics]
        rows.append(texts)
    return header, rows


def _number(row: dict, metric: str, digits: int, plus_minus: str) -> str:
    """Mean, spread over seeds or interval of one, and n if it isn't all prompts or samples."""
    value, deviation, n = row[metric], row[f"{metric}_sd"], row[f"{metric}_n"]
    if pd.isna(value):
        return MISSING
    text = _plain(value, digits)
    low, high = row[f"{metric}_low"], row[f"{metric}_high"]
    if not pd.isna(deviation):
        text += f" {plus_minus} {_plain(deviation, digits)}"
    elif metric in WITH_INTERVAL and not pd.isna(low):
        text += f" [{_plain(low, digits)}, {_plain(high, digits)}]"
    everything = row["samples"] // row["seeds"] if row["prompts"] == 1 else row["prompts"]
    return text if n == everything else f"{text} (n={n})"


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
