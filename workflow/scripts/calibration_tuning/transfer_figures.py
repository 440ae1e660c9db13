"""Figures of the evaluations that do not ask for numbers, and of hotter decoding."""

import textwrap
from collections.abc import Mapping, Sequence
from itertools import cycle

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from calibration_tuning.errors import InputError
from calibration_tuning.figures import STYLE, colours_of

WIDTH = 7.2
"""Inches: a page's text width."""

SHOWN_CATEGORIES = ("weekday", "city", "animal", "first name")
SHOWN_ANSWERS = 5
ROOM_FOR_ANSWERS = 120
"""Characters in a row of the figure, for all methods together."""
EMPTY = "(no answer)"
LETTERS = "ABCD"

# Of `decoding`: evaluation, split, metric, title, whether the axis is logarithmic.
DECODING_PANELS = (
    ("structured", "heldout", "valid_rate", "valid rate", False),
    ("structured", "heldout", "wasserstein_normalised", "W1 of valid samples (sd)", True),
    ("structured", "heldout", "sequence_kl", "sequence KL (nats)", True),
    ("open_ended", "prompts", "support", "first tokens for p = 0.9", True),
    ("open_ended", "prompts", "unique_fraction", "different answers (share)", False),
    ("open_ended", "prompts", "top_share", "top answer (share)", False),
)


def open_ended(cells: Mapping[str, Mapping]) -> Figure:
    """Support of the first token against p, and each method's most common answers.

    Methods often have no answer in common, so each has a column of its own.

    Parameters
    ----------
    cells : mapping of method to the values of its metrics.json

    Returns
    -------
    Figure
    """
    chosen = choose_prompts(cells)
    colours = colours_of(cells)
    with matplotlib.rc_context(STYLE):
        # Without a curve there is only the line that says so.
        above = 2.3 if any(values["curve"] for values in cells.values()) else 0.4
        below = 0.5 + 0.95 * len(chosen)
        figure = Figure(figsize=(WIDTH, above + below * bool(chosen)), layout="constrained")
        if not chosen:
            _draw_support(figure.subplots(), cells, colours)
            return figure
        upper, lower = figure.subfigures(2, 1, height_ratios=[above, below])
        _draw_support(upper.subplots(), cells, colours)
        axes = lower.subplots(len(chosen), len(cells), squeeze=False, sharex=True, sharey=True)
        for row, index in zip(axes, chosen, strict=True):
            for axis, (method, values) in zip(row, cells.items(), strict=True):
                prompt = next(p for p in values["prompts"] if p["prompt_index"] == index)
                _draw_answers(axis, prompt, colours[method], ROOM_FOR_ANSWERS // len(cells))
            row[0].set_ylabel(textwrap.fill(prompt["category"], 12), weight="bold")
        for axis, method in zip(axes[0], cells, strict=True):
            over = {"xycoords": "axes fraction", "textcoords": "offset points"}
            axis.annotate(method, (0, 1), (0, 11), color=colours[method], weight="bold", **over)
        lower.supxlabel("share of all samples of a prompt", fontsize=7)
    return figure


def choose_prompts(cells: Mapping[str, Mapping]) -> list[int]:
    """Indices of prompts that all methods sampled: the paper's categories, or else the first."""
    sampled = [
        {p["prompt_index"]: p["category"] for p in values["prompts"] if p["samples"]}
        for values in cells.values()
    ]
    common = [index for index in sampled[0] if all(index in other for other in sampled)]
    # Of each category the first prompt: it is written last.
    first = {sampled[0][index]: index for index in reversed(common)}
    shown = [first[category] for category in SHOWN_CATEGORIES if category in first]
    return shown or common[: len(SHOWN_CATEGORIES)]


def _draw_support(axis: Axes, cells: Mapping, colours: Mapping[str, str]) -> None:
    """Median over prompts as a line, quartiles as a band, the method's name at the end."""
    title = "Support of the first token: median and quartiles over prompts"
    without = [method for method, values in cells.items() if values["curve"] is None]
    if without:
        title += f"\n(none after the system prompt of {', '.join(without)})"
    axis.set_title(title, loc="left")
    if len(without) == len(cells):
        axis.set_axis_off()
        return
    _logarithmic(axis)
    axis.set(xlim=(0, 1), xlabel="probability p", ylabel="number of first tokens")
    axis.axvline(0.9, color="0.8", lw=0.8, zorder=0)
    axis.text(0.895, 1, "p = 0.9", transform=axis.transAxes, color="0.4", ha="right", va="top")
    ends, most = [], 10.0
    for method, values in cells.items():
        if method in without:
            continue
        curve, colour = values["curve"], colours[method]
        p = curve["thresholds"]
        band = (curve["lower_quartile"], curve["upper_quartile"])
        axis.fill_between(p, *band, color=colour, alpha=0.15, lw=0)
        axis.plot(p, curve["median"], color=colour, lw=1.4)
        n = sum(prompt["support"] is not None for prompt in values["prompts"])
        ends.append((curve["median"][-1], f"{method} (n = {n})", colour))
        most = max(most, *band[1])
    axis.set_ylim(0.8, 1.3 * most)
    _name_lines(axis, ends, gap=0.07)


def _draw_answers(axis: Axes, prompt: Mapping, colour: str, most: int) -> None:
    """Bars of one method's most common answers to one prompt, each with its text on it."""
    top = list(prompt["top_answers"][:SHOWN_ANSWERS])
    axis.barh(range(len(top)), [share for _, share in top], 0.86, color=colour, alpha=0.4)
    if prompt["empty"]:
        axis.barh(len(top), prompt["empty"] / prompt["samples"], 0.86, color="0.85")
        top.append((EMPTY, None))
    for place, (answer, _) in enumerate(top):
        here = {"textcoords": "offset points", "va": "center_baseline", "fontsize": 6}
        axis.annotate(shorten(answer, most), (0, place), (2, 0), **here)
    axis.set(xlim=(0, 1), ylim=(SHOWN_ANSWERS + 0.5, -0.5), xticks=(0, 0.5, 1), yticks=())
    different = round(prompt["unique_fraction"] * prompt["samples"])
    text = f"{different} different of {prompt['samples']}"
    axis.set_title(text, loc="left", fontsize=5.5, color="0.35", pad=2)


def shorten(text: str, most: int) -> str:
    """An answer as a label: cut, on one line, without what matplotlib would read as mathematics."""
    text = " ".join(text.split())
    text = text if len(text) <= most else text[: most - 1] + "…"
    return text.replace("$", r"\$")


def _logarithmic(axis: Axes) -> None:
    """A logarithmic axis with the labels 1, 2, 5 and 10, not 10^0, even if it is short.

    To be called again when everything is drawn: over many decades there is only room for a few.
    """
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1e6 * low else (1,)))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def _name_lines(axis: Axes, lines: Sequence[tuple[float, str, str]], gap: float) -> None:
    """Names right of an axis with its final limits, at the height of their lines.

    Parameters
    ----------
    axis : Axes
    lines : sequence of (value, name, colour)
    gap : float
        The least distance of names, as a part of the axis' height.
    """
    lines = sorted(lines)
    to_axes = axis.transData - axis.transAxes
    places = spread([to_axes.transform((0, value))[1] for value, *_ in lines], gap)
    for place, (_, name, colour) in zip(places, lines, strict=True):
        axis.annotate(
            name,
            (1, place),
            (3, 0),
            xycoords="axes fraction",
            textcoords="offset points",
            color=colour,
            fontsize=6,
            va="center",
        )


def spread(places: Sequence[float], gap: float) -> list[float]:
    """Ascending places moved apart by at least `gap`, none above 1.

    >>> spread([0.5, 0.5, 1.0], 0.25)
    [0.5, 0.75, 1.0]
    """
    moved, least = [], float("-inf")
    for place in places:
        moved.append(max(place, least))
        least = moved[-1] + gap
    most = 1.0
    for number in reversed(range(len(moved))):
        moved[number] = min(moved[number], most)
        most = moved[number] - gap
    return moved


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
        width = min(WIDTH, 0.5 + 2.2 * columns)
        figure = Figure(figsize=(width, 0.45 + 1.9 * rows), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, sharey=True)
        for axis, (method, values) in zip(axes.flat, cells.items(), strict=False):
            _draw_shares(axis, method, values["splits"]["all"], colours[method])
        for axis in list(axes.flat)[len(cells) :]:
            axis.set_axis_off()
        figure.supylabel("share of the parsed questions", fontsize=7)
        text = "letter of the right answer\n(dashed: 0.25 each; whiskers: 95 %, all four at once)"
        figure.supxlabel(text, fontsize=7)
    return figure


def _draw_shares(axis: Axes, method: str, split: Mapping, colour: str) -> None:
    """Bars of one method's four shares, whiskers, and above them how many and how far off."""
    metrics = split["metrics"]
    shares = [metrics[f"share_{letter.lower()}"] for letter in LETTERS]
    parsed = shares[0]["n"]
    axis.set(xlim=(-0.6, 3.6), ylim=(0, 1.02))
    axis.set_xticks(range(4), list(LETTERS))
    axis.axhline(0.25, color="0.6", lw=0.8, ls="--", zorder=0)
    # Above the panel: inside it, any bar may be as high as the panel.
    axis.set_title(method, loc="left", color=colour, weight="bold", pad=18)
    if parsed == 0:
        text = f"nothing could be parsed\n(0 of {split['samples']})"
        axis.text(1.5, 0.6, text, ha="center", fontsize=6)
        return
    means = [share["mean"] for share in shares]
    below = [share["mean"] - share["low"] for share in shares]
    above = [share["high"] - share["mean"] for share in shares]
    axis.bar(range(4), means, 0.65, color=colour, alpha=0.8)
    axis.errorbar(range(4), means, [below, above], fmt="none", ecolor="0.2", lw=0.8, capsize=2)
    distance = metrics["total_variation"]
    text = f"{parsed} of {split['samples']} parsed\nTV {distance['mean']:.2f}"
    text += f" [{distance['low']:.2f}, {distance['high']:.2f}]"
    over = {"xycoords": "axes fraction", "textcoords": "offset points"}
    axis.annotate(text, (0, 1), (0, 3), fontsize=6, **over)


def novelty(cells: Mapping[str, Mapping]) -> Figure:
    """Distinct generations and their utility by method, a group of points a data set.

    Parameters
    ----------
    cells : mapping of method to the values of its metrics.json
    """
    colours = colours_of(cells)
    splits = list(dict.fromkeys(split for values in cells.values() for split in values["splits"]))
    # A heading, and below it the methods that have this data set.
    rows = [
        (split, method)
        for split in splits
        for method in (None, *cells)
        if method is None or split in cells[method]["splits"]
    ]
    judges = next(iter(cells.values()))["judges"]
    small_print = (
        "same or different: texts of at most five words by their words, others by "
        + judges["partition"],
        f"quality: {judges['quality']}",
    )
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 0.9 + 0.17 * len(rows)), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        for axis, name in zip(axes, ("distinct", "utility"), strict=True):
            _draw_points(axis, name, rows, cells, colours)
        for label, (_, method) in zip(axes[0].get_yticklabels(), rows, strict=True):
            label.set(color=colours.get(method, "black"), weight="normal" if method else "bold")
        text = "\n".join(textwrap.fill(line, 160, break_on_hyphens=False) for line in small_print)
        figure.supxlabel(text, fontsize=5.5, x=0.01, ha="left")
    return figure


def _draw_points(
    axis: Axes,
    name: str,
    rows: Sequence[tuple[str, str | None]],
    cells: Mapping,
    colours: Mapping[str, str],
) -> None:
    """One metric of every data set and method, with its interval."""
    stand_in, labels, generations = False, [], 0
    for place, (split, method) in enumerate(rows):
        if method is None:
            labels.append(split)
            continue
        found, colour = cells[method]["splits"][split], colours[method]
        stand_in = f"{name}_stand_in" in found["metrics"]
        metric = found["metrics"][f"{name}_stand_in" if stand_in else name]
        generations = round(found["samples"] / found["prompts"])
        if metric["low"] is not None:
            axis.plot([metric["low"], metric["high"]], [place] * 2, color=colour, lw=2)
        axis.plot(metric["mean"], place, "o", color=colour, markersize=5)
        labels.append(f"{method} ({found['prompts']} prompts)")
    axis.set_yticks(range(len(labels)), labels)
    axis.tick_params(axis="y", length=0)
    axis.set_ylim(len(labels) - 0.4, -0.5)
    axis.grid(axis="x", color="0.9", lw=0.6)
    # Utility may be below 1, the worst rating: repeated answers count 0.
    label, most = {
        "distinct": (f"distinct classes of {generations} generations", generations),
        "utility": ("utility (at most 10)", 10),
    }[name]
    axis.set(xlabel=label + " (stand-in)" * stand_in, xlim=(0, 1.03 * most))


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
        If no such method has rows of what is shown.
    """
    known = {method: how for method, how in decodings.items() if method in set(tidy["method"])}
    others = [method for method in dict.fromkeys(tidy["method"]) if method not in known]
    keys = ["evaluation", "split", "metric"]
    groups = {key: rows for key, rows in tidy.groupby(keys) if rows["method"].isin(known).any()}
    panels = [panel for panel in DECODING_PANELS if panel[:3] in groups]
    if not panels:
        raise InputError("decoding: no method in the table draws in another way")
    colours = colours_of(["base", *others])
    with matplotlib.rc_context(STYLE):
        columns = min(3, len(panels))
        lines = -(-len(panels) // columns)
        figure = Figure(figsize=(WIDTH, 0.3 + 2.0 * lines), layout="constrained")
        axes = list(figure.subplots(lines, columns, squeeze=False).flat)
        for axis, (*key, title, logarithmic) in zip(axes, panels, strict=False):
            rows = groups[tuple(key)]
            if logarithmic:
                _logarithmic(axis)
            else:
                axis.set_ylim(0, 1.02)
            values = rows.groupby("method")["value"].mean()
            _draw_temperatures(axis, values, known, colours["base"])
            _draw_references(axis, values.dropna(), others, colours)
            if logarithmic:
                _logarithmic(axis)
            n = rows.loc[rows["method"].isin(known), "n"].max()
            axis.set_title(f"{title}, {n} prompts", loc="left")
        for axis in axes[len(panels) :]:
            axis.set_axis_off()
        handles = figure.axes[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=4, frameon=False)
    return figure


def _draw_temperatures(axis: Axes, values: pd.Series, known: Mapping, colour: str) -> None:
    """A line over temperature without min-p, and one for each min-p; gaps where undefined."""
    undefined = []
    styles = cycle(("o-", "s--", "^:"))
    for min_p in sorted({how["min_p"] for how in known.values()}):
        points = sorted(
            (how["temperature"], values.get(method, float("nan")))
            for method, how in known.items()
            if how["min_p"] == min_p
        )
        label = f"untuned, min-p {min_p:g}" if min_p else "untuned"
        axis.plot(*zip(*points, strict=True), next(styles), color=colour, ms=3.5, label=label)
        if all(pd.isna(value) for _, value in points):
            undefined.append(label.removeprefix("untuned, "))
    axis.set_xticks(sorted({how["temperature"] for how in known.values()}))
    axis.set_xlabel(
        f"temperature (undefined: {', '.join(undefined)})" if undefined else "temperature"
    )


def _draw_references(
    axis: Axes, values: pd.Series, others: Sequence[str], colours: Mapping[str, str]
) -> None:
    """A line with its name for every other method."""
    shown = [(values[method], method, colours[method]) for method in others if method in values]
    for value, _, colour in shown:
        axis.axhline(value, color=colour, lw=1, zorder=0)
    axis.autoscale_view()  # the names' places are those of the final limits
    _name_lines(axis, shown, gap=0.085)
