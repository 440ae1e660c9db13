"""Figures of the evaluations that do not ask for numbers, and of hotter decoding."""

from collections import Counter
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from calibration_tuning.errors import InputError
from calibration_tuning.figures import STYLE, colours_of

PLAIN = StrMethodFormatter("{x:g}")
"""1 and 0.1 on a logarithmic axis, not 10^0."""

WIDTH = 7.2
"""Inches: a page's text width."""

SHOWN_CATEGORIES = ("weekday", "city", "animal", "first name")
SHOWN_ANSWERS = 5
LONGEST_ANSWER = 20
LETTERS = "ABCD"

# Of `decoding`: evaluation, split, metric, axis label, whether the axis is logarithmic.
DECODING_PANELS = (
    ("structured", "heldout", "valid_rate", "valid rate", False),
    ("structured", "heldout", "wasserstein_normalised", "W1 of valid samples (sd)", True),
    ("structured", "heldout", "sequence_kl", "sequence KL (nats)", True),
    ("open_ended", "prompts", "support", "first tokens with 90 %", True),
    ("open_ended", "prompts", "unique_fraction", "different answers (share)", False),
    ("open_ended", "prompts", "top_share", "top answer (share)", False),
)


def open_ended(cells: Mapping[str, Mapping]) -> Figure:
    """Support of the first token against p, and the most common answers to a few prompts.

    Parameters
    ----------
    cells : mapping of method to the values of its metrics.json

    Returns
    -------
    Figure
    """
    categories = choose_categories(cells)
    colours = colours_of(cells)
    with matplotlib.rc_context(STYLE):
        bars = 0.5 + 0.09 * (SHOWN_ANSWERS * (len(cells) + 1))
        rows = -(-len(categories) // 2)
        figure = Figure(figsize=(WIDTH, 2.6 + rows * bars), layout="constrained")
        upper, lower = figure.subfigures(2, 1, height_ratios=[2.6, max(rows * bars, 0.1)])
        _draw_support(upper.subplots(), cells, colours)
        if categories:
            axes = lower.subplots(rows, 2, squeeze=False).flat
            for axis, category in zip(axes, categories, strict=False):
                _draw_answers(axis, category, cells, colours)
            for axis in list(axes)[len(categories) :]:
                axis.set_axis_off()
            lower.supxlabel("share of a prompt's answers", fontsize=7)
    return figure


def choose_categories(cells: Mapping[str, Mapping]) -> list[str]:
    """Categories that all methods sampled: those that the paper shows, or else the first few."""
    sampled = [
        [prompt["category"] for prompt in values["prompts"] if prompt["samples"]]
        for values in cells.values()
    ]
    common = [category for category in sampled[0] if all(category in other for other in sampled)]
    shown = [category for category in SHOWN_CATEGORIES if category in common]
    return shown or common[: len(SHOWN_CATEGORIES)]


def _draw_support(axis: Axes, cells: Mapping, colours: Mapping[str, str]) -> None:
    """Median over prompts as a line, quartiles as a band."""
    without = []
    for method, values in cells.items():
        curve = values["curve"]
        if curve is None:
            without.append(method)
            continue
        n = sum(prompt["support"] is not None for prompt in values["prompts"])
        p, colour = curve["thresholds"], colours[method]
        axis.fill_between(
            p, curve["lower_quartile"], curve["upper_quartile"], color=colour, alpha=0.15, lw=0
        )
        axis.plot(p, curve["median"], color=colour, lw=1.4, label=f"{method} ({n} prompts)")
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(PLAIN)
    axis.set(xlim=(0, 1), xlabel="probability p", ylabel="first tokens that hold p")
    axis.axvline(0.9, color="0.8", lw=0.8, zorder=0)
    title = "Support of the first token: median over prompts, and quartiles"
    if without:
        title += f" (none after the system prompt of {', '.join(without)})"
    axis.set_title(title, loc="left")
    if axis.get_lines()[1:]:
        axis.legend(frameon=False, loc="upper left")


def _draw_answers(axis: Axes, category: str, cells: Mapping, colours: Mapping[str, str]) -> None:
    """Bars of the answers that are most common over all methods, methods side by side."""
    prompts = {
        method: next(p for p in values["prompts"] if p["category"] == category)
        for method, values in cells.items()
    }
    total: Counter = Counter()
    for prompt in prompts.values():
        total.update(dict(prompt["top_answers"]))
    answers = [answer for answer, _ in total.most_common(SHOWN_ANSWERS)]
    height = 0.85 / len(prompts)
    for number, (method, prompt) in enumerate(prompts.items()):
        shares = dict(map(tuple, prompt["top_answers"]))
        places = np.arange(len(answers)) + (number - (len(prompts) - 1) / 2) * height
        widths = [shares.get(answer, 0) for answer in answers]
        axis.barh(places, widths, height * 0.9, color=colours[method])
    axis.set_yticks(range(len(answers)), [shorten(answer) for answer in answers])
    axis.set(xlim=(0, 1), ylim=(len(answers) - 0.5, -0.5))
    axis.set_title(category, loc="left", weight="bold")
    # Where the bars of less common answers leave room: how many differ, and of how many.
    for number, (method, prompt) in enumerate(prompts.items()):
        different = round(prompt["unique_fraction"] * prompt["samples"])
        text = f"{method}: {different} different of {prompt['samples']}"
        line = {"xycoords": "axes fraction", "textcoords": "offset points", "ha": "right"}
        offset = (0, 7 * (len(prompts) - 1 - number) + 2)
        axis.annotate(text, (1, 0), offset, fontsize=5.5, color=colours[method], **line)


def shorten(text: str, most: int = LONGEST_ANSWER) -> str:
    """An answer as a label: cut, on one line, without what matplotlib would read as mathematics."""
    text = " ".join(text.split())
    text = text if len(text) <= most else text[: most - 1] + "…"
    return text.replace("$", r"\$")


def mcq(cells: Mapping[str, Mapping]) -> Figure:
    """Shares of the right answers A to D, a panel a method.

    Parameters
    ----------
    cells : mapping of method to the values of its metrics.json
    """
    colours = colours_of(cells)
    columns = len(cells) if len(cells) <= 4 else 3
    rows = -(-len(cells) // columns)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 0.35 + 1.9 * rows), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, sharey=True)
        for axis, (method, values) in zip(axes.flat, cells.items(), strict=False):
            _draw_shares(axis, method, values["splits"]["all"], colours[method])
        for axis in list(axes.flat)[len(cells) :]:
            axis.set_axis_off()
        figure.supylabel("share of the parsed questions", fontsize=7)
        figure.supxlabel("right answer (line: 0.25 each; bars: 95 % for all four)", fontsize=7)
    return figure


def _draw_shares(axis: Axes, method: str, split: Mapping, colour: str) -> None:
    metrics = split["metrics"]
    shares = [metrics[f"share_{letter.lower()}"] for letter in LETTERS]
    parsed = shares[0]["n"]
    axis.set(xlim=(-0.6, 3.6), ylim=(0, 1))
    axis.set_xticks(range(4), list(LETTERS))
    axis.axhline(0.25, color="0.6", lw=0.8, ls="--", zorder=0)
    axis.set_title(method, loc="left", color=colour, weight="bold")
    if parsed == 0:
        axis.text(1.5, 0.6, f"nothing could be parsed\n(0 of {split['samples']})", ha="center")
        return
    means = [share["mean"] for share in shares]
    below = [share["mean"] - share["low"] for share in shares]
    above = [share["high"] - share["mean"] for share in shares]
    axis.bar(range(4), means, 0.65, color=colour, alpha=0.8)
    axis.errorbar(range(4), means, [below, above], fmt="none", ecolor="0.2", lw=0.8, capsize=2)
    distance = metrics["total_variation"]
    text = f"{parsed} of {split['samples']} parsed\nTV {distance['mean']:.2f}"
    text += f" [{distance['low']:.2f}, {distance['high']:.2f}]"
    axis.text(1, 1, text, ha="right", va="top", fontsize=6, transform=axis.transAxes)


def novelty(cells: Mapping[str, Mapping]) -> Figure:
    """Distinct generations and their utility by method, a group of points a data set.

    Parameters
    ----------
    cells : mapping of method to the values of its metrics.json
    """
    colours = colours_of(cells)
    values = next(iter(cells.values()))
    splits = list(values["splits"])
    with matplotlib.rc_context(STYLE):
        height = 1.1 + 0.17 * len(cells) * len(splits)
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        for axis, name in zip(axes, ("distinct", "utility"), strict=True):
            _draw_points(axis, name, splits, cells, colours)
        judges = values["judges"]
        figure.supxlabel(
            f"same or not: at most five words by their words, else {judges['partition']}\n"
            f"quality: {judges['quality']}",
            fontsize=5.5,
            x=0.01,
            ha="left",
        )
    return figure


def _draw_points(
    axis: Axes, name: str, splits: Sequence[str], cells: Mapping, colours: Mapping[str, str]
) -> None:
    """One metric of every method and data set, with its interval."""
    stand_in, labels, place = False, [], 0.0
    generations = 0
    for split in splits:
        for method, values in cells.items():
            found = values["splits"][split]
            stand_in = f"{name}_stand_in" in found["metrics"]
            metric = found["metrics"][f"{name}_stand_in" if stand_in else name]
            generations = round(found["samples"] / found["prompts"])
            if metric["low"] is not None:
                axis.plot([metric["low"], metric["high"]], [place] * 2, color=colours[method], lw=2)
            axis.plot(metric["mean"], place, "o", color=colours[method], markersize=5)
            labels.append((place, f"{split}: {method} ({found['prompts']} prompts)"))
            place += 1
        place += 0.6
    axis.set_yticks(*zip(*labels, strict=True))
    axis.set(ylim=(place - 1, -0.6))
    axis.grid(axis="x", color="0.9", lw=0.6)
    limit = {"distinct": (1, generations), "utility": (1, 10)}[name]
    what = {
        "distinct": f"different ones of {generations} generations",
        "utility": "utility (1 to 10)",
    }[name]
    axis.set(xlabel=what + " (stand-in)" * stand_in, xlim=(0, limit[1] + 0.3))


def decoding(tidy: pd.DataFrame, decodings: Mapping[str, Mapping[str, float]]) -> Figure:
    """What the untuned model does at several temperatures, other methods as lines.

    Parameters
    ----------
    tidy : DataFrame
        The tidy table's rows of one model.
    decodings : mapping of method to its temperature and min_p
        The untuned model's; those without rows are left out.

    Raises
    ------
    InputError
        If no such method has rows.
    """
    known = {method: how for method, how in decodings.items() if method in set(tidy["method"])}
    if not known:
        raise InputError("decoding: no method in the table draws in another way")
    others = [method for method in dict.fromkeys(tidy["method"]) if method not in known]
    colours = colours_of(["base", *others])
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 4.3), layout="constrained")
        for axis, panel in zip(figure.subplots(2, 3).flat, DECODING_PANELS, strict=True):
            evaluation, split, metric, label, logarithmic = panel
            rows = tidy[
                (tidy["evaluation"] == evaluation)
                & (tidy["split"] == split)
                & (tidy["metric"] == metric)
            ]
            values = rows.groupby("method")["value"].mean().dropna()
            if logarithmic:
                axis.set_yscale("log")
                axis.yaxis.set_major_formatter(PLAIN)
            else:
                axis.set_ylim(0, 1.02)
            _draw_temperatures(axis, values, known, colours["base"])
            _draw_references(axis, values, others, colours)
            n = rows.loc[rows["method"].isin(known), "n"].max()
            axis.set(xlabel="temperature", title=f"{label}, {n} prompts" if n > 0 else label)
            axis.set_xticks(sorted({how["temperature"] for how in known.values()}))
        handles, labels = axis.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure


def _draw_temperatures(axis: Axes, values: pd.Series, known: Mapping, colour: str) -> None:
    """A line over temperature without min-p, and one with it."""
    for cut, style, label in ((False, "o-", "untuned"), (True, "s--", "untuned, min-p")):
        points = sorted(
            (how["temperature"], values[method])
            for method, how in known.items()
            if (how["min_p"] > 0) == cut and method in values
        )
        if points:
            axis.plot(*zip(*points, strict=True), style, color=colour, ms=3.5, lw=1.2, label=label)
        else:
            axis.plot([], [], style, color=colour, ms=3.5, lw=1.2, label=label)


def _draw_references(
    axis: Axes, values: pd.Series, others: Sequence[str], colours: Mapping[str, str]
) -> None:
    """A line with its name for every other method, names apart from each other."""
    shown = sorted((values[method], method) for method in others if method in values)
    for value, method in shown:
        axis.axhline(value, color=colours[method], lw=1, zorder=0)
    axis.autoscale_view()  # the names' places are those of the final limits
    last = None
    for value, method in shown:
        place = axis.transData.transform((0, value))[1]
        # In points: a name needs about seven.
        offset = 0 if last is None else max(0.0, last + 7.5 - place * 72 / axis.figure.dpi)
        last = place * 72 / axis.figure.dpi + offset
        axis.annotate(
            method,
            (1, value),
            (2, offset),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            color=colours[method],
            fontsize=5.5,
            va="center",
            annotation_clip=False,
        )
