"""Figures of what calibration costs elsewhere: benchmarks, perplexity, cost against gain."""

import textwrap
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter
from matplotlib.transforms import Bbox

from calibration_tuning.errors import InputError
from calibration_tuning.figures import STYLE, colours_of
from calibration_tuning.trade_off import MEAN, in_units
from calibration_tuning.transfer_figures import WIDTH, shorten

COSTS = {
    "benchmark": ("change of mean benchmark score (points)", "task", "items"),
    "perplexity": ("change of geometric mean perplexity (%)", "slice", "documents"),
}
"""Of `trade_off`, by quantity: the axis, what its mean is over, what n counts."""
PANELS_IN_A_ROW = 3
# Where a point's name may stand: directions, then distances in points.
DIRECTIONS = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))
DISTANCES = (4, 8, 13, 19, 26, 34, 44)


def trade_off(table: pd.DataFrame, chains: Sequence[Sequence[str]] = ()) -> Figure:
    """Change elsewhere against the gain in calibration, a point a method.

    Parameters
    ----------
    table : DataFrame
        Of one model, as `calibration_tuning.trade_off.compare` returns it.
    chains : sequence of sequences of methods
        Each joined by a line, such as methods that differ in one coefficient only.

    Returns
    -------
    Figure
        A panel for benchmarks and one for perplexity, if there are both.

    Raises
    ------
    InputError
        Without a method that has a gain on held-out families and a change elsewhere.
    """
    means = table[table["name"] == MEAN]
    gains = table[(table["quantity"] == "calibration") & (table["name"] == "heldout")]
    merged = {
        quantity: gains.merge(rows, on=["model", "method"], suffixes=("_gain", "_cost"))
        for quantity in COSTS
        if not (rows := means[means["quantity"] == quantity]).empty
    }
    panels = {quantity: rows for quantity, rows in merged.items() if not rows.empty}
    if not panels:
        raise InputError(
            "trade_off: expected a method with a gain on held-out families and a change of "
            "benchmarks or perplexity"
        )
    colours = colours_of(["base", *dict.fromkeys(table["method"])])
    with matplotlib.rc_context(STYLE):
        size = (WIDTH if len(panels) > 1 else 0.6 * WIDTH, 3.3)
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axis, (quantity, rows) in zip(axes, panels.items(), strict=True):
            tasks = table[(table["quantity"] == quantity) & (table["name"] != MEAN)]
            _draw_trade_off(axis, quantity, rows, tasks["name"].nunique(), colours, chains)
        text = "gain in calibration: lower sequence KL on held-out families than base (nats)"
        text = f"{text}, {_counts(gains['n'])} prompts; bars: 95 %, paired"
        figure.supxlabel(text if len(panels) > 1 else textwrap.fill(text, 70), fontsize=7)
        # Names are placed where nothing else is, which needs the final size of the panels.
        figure.draw_without_rendering()
        for axis, rows in zip(axes, panels.values(), strict=True):
            _name_points(axis, rows, colours)
    return figure


def _draw_trade_off(
    axis: Axes,
    quantity: str,
    rows: pd.DataFrame,
    count: int,
    colours: Mapping[str, str],
    chains: Sequence[Sequence[str]],
) -> None:
    """Points with bars in both directions, the untuned model as a cross."""
    label, group, items = COSTS[quantity]
    _in_units(rows, quantity)
    axis.axhline(0, color="0.75", lw=0.6, zorder=0)
    axis.axvline(0, color="0.75", lw=0.6, zorder=0)
    axis.plot(0, 0, "x", color=colours["base"], ms=6, mew=1.5, zorder=3)
    places = rows.set_index("method")[["change_gain", "change_cost"]]
    for chain in chains:
        known = [method for method in chain if method in places.index]
        axis.plot(*places.loc[known].to_numpy().T, "-", color="0.6", lw=0.7, zorder=1)
    for row in rows.to_dict("records"):
        colour = colours[row["method"]]
        x, y = row["change_gain"], row["change_cost"]
        axis.plot([row["low_gain"], row["high_gain"]], [y, y], color=colour, lw=0.8, zorder=2)
        axis.plot([x, x], [row["low_cost"], row["high_cost"]], color=colour, lw=0.8, zorder=2)
        axis.plot(x, y, "o", color=colour, ms=4, zorder=3)
    axis.margins(0.12)
    # "11, 12 (without 13)" are two.
    seeds = max(text.partition(" (")[0].count(",") + 1 for text in rows["seeds_cost"])
    axis.set_title(
        f"{count} {group}{'s' * (count > 1)}, {_counts(rows['n_cost'])} {items}, "
        f"{seeds} seed{'s' * (seeds > 1)}",
        loc="left",
    )
    axis.set_ylabel(label)
    axis.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axis.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))


def _in_units(rows: pd.DataFrame, quantity: str) -> None:
    """Costs in points or per cent, in place."""
    for key in ("change_cost", "low_cost", "high_cost"):
        rows[key] = in_units(rows[key], quantity)


def _counts(n: pd.Series) -> str:
    """A number, or the least and the most."""
    return f"{n.min()}" if n.min() == n.max() else f"{n.min()} to {n.max()}"


def _name_points(axis: Axes, rows: pd.DataFrame, colours: Mapping[str, str]) -> None:
    """Names beside their points, where they hide least; a thin line to one that is farther off."""
    points = [("base", 0.0, 0.0, [])]
    for row in rows.to_dict("records"):
        x, y = row["change_gain"], row["change_cost"]
        across = [(row["low_gain"], y), (row["high_gain"], y)]
        upright = [(x, row["low_cost"]), (x, row["high_cost"])]
        points.append((row["method"], x, y, [across, upright]))
    pixels = axis.figure.dpi / 72
    taken = [_around(axis, [(x, y)], 3 * pixels) for _, x, y, _ in points]
    bars = [_around(axis, bar, pixels) for *_, of_point in points for bar in of_point]
    bars = [bar for bar in bars if np.isfinite(bar.extents).all()]
    bars += [_around(axis, [(0, y) for y in axis.get_ylim()], pixels)]
    bars += [_around(axis, [(x, 0) for x in axis.get_xlim()], pixels)]
    for method, x, y, _ in points:
        text = axis.annotate(
            method,
            (x, y),
            (0, 0),
            textcoords="offset points",
            color=colours[method],
            fontsize=6,
            ha="center",
            va="center",
            zorder=4,
            path_effects=[withStroke(linewidth=1.5, foreground="white")],
        )
        text.set_in_layout(False)
        box = text.get_window_extent()
        offset = _free_place(box, taken, bars, axis.bbox, pixels)
        taken.append(box.translated(*offset))
        text.set_position((offset[0] / pixels, offset[1] / pixels))
        if _gap(box, offset) > DISTANCES[1] * pixels:
            place = {"textcoords": "offset points", "arrowprops": {"arrowstyle": "-", "lw": 0.4}}
            place["arrowprops"] |= {"color": colours[method], "shrinkA": 0, "shrinkB": 2}
            near = _nearest(box, offset) / pixels
            axis.annotate("", (x, y), near, **place).set_in_layout(False)


def _around(axis: Axes, places: Sequence[tuple[float, float]], margin: float) -> Bbox:
    """The box around places of an axis, in pixels."""
    corners = axis.transData.transform(places)
    return Bbox([corners.min(axis=0) - margin, corners.max(axis=0) + margin])


def _free_place(
    box: Bbox, taken: Sequence[Bbox], bars: Sequence[Bbox], inside: Bbox, pixels: float
) -> tuple[float, float]:
    """The offset in pixels from its point at which a text, now centred there, hides least."""
    best = None
    for distance in DISTANCES:
        for right, up in DIRECTIONS:
            # Sideways, half the text's width is needed beside the distance; a diagonal is longer.
            length = distance * pixels * (0.4 if right and up else 1)
            offset = (
                right * (length + box.width / 2),
                up * (length + box.height / 2),
            )
            moved = box.translated(*offset)
            outside = moved.width * moved.height - _overlap(moved, inside)
            cost = 20 * sum(_overlap(moved, other) for other in taken) + 20 * outside
            cost += 10 * sum(_overlap(moved, bar) for bar in bars) + distance * pixels**2
            if best is None or cost < best[0]:
                best = (cost, offset)
    return best[1]


def _overlap(one: Bbox, other: Bbox) -> float:
    """Area that two boxes have in common."""
    common = Bbox.intersection(one, other)
    return 0.0 if common is None else common.width * common.height


def _nearest(box: Bbox, offset: tuple[float, float]) -> np.ndarray:
    """Of a text moved by an offset, the place nearest to where its centre was, from there."""
    half = np.array([box.width / 2, box.height / 2])
    return np.clip(0, np.array(offset) - half, np.array(offset) + half)


def _gap(box: Bbox, offset: tuple[float, float]) -> float:
    return float(np.hypot(*_nearest(box, offset)))


def benchmarks(cells: Mapping[str, Mapping]) -> Figure:
    """Scores by task, a dot with its 95 % interval a method; the untuned model's as a line.

    Parameters
    ----------
    cells : mapping of method to the values of its metrics.json
    """
    figure, axes = _panels(cells, "score", "items")
    for axis, split in axes.items():
        found = [values["splits"][split]["metrics"] for values in _with(cells, split).values()]
        chance = next((metrics["chance"]["mean"] for metrics in found if "chance" in metrics), None)
        if chance is not None:
            axis.axvline(chance, color="0.5", lw=0.8, ls=":", zorder=1)
        axis.set_xlim(-0.02, 1.02)
    text = "score: share of items that are right (bars: 95 %; dashed: base; dotted: guessing)"
    with matplotlib.rc_context(STYLE):
        figure.supxlabel(text, fontsize=7)
    return figure


def perplexity(cells: Mapping[str, Mapping]) -> Figure:
    """Perplexity by slice, a dot with its 95 % interval a method; the untuned model's as a line.

    Parameters
    ----------
    cells : mapping of method to the values of its metrics.json
        A perplexity may be None.
    """
    figure, axes = _panels(cells, "perplexity", "documents")
    for axis in axes:
        _logarithmic(axis)
    text = "perplexity (logarithmic; bars: 95 %; dashed: base)"
    with matplotlib.rc_context(STYLE):
        figure.supxlabel(text, fontsize=7)
    return figure


def _with(cells: Mapping[str, Mapping], split: str) -> dict[str, Mapping]:
    return {method: values for method, values in cells.items() if split in values["splits"]}


def _panels(
    cells: Mapping[str, Mapping], metric: str, items: str
) -> tuple[Figure, dict[Axes, str]]:
    """A panel for every task or slice, in it a row a method."""
    splits = list(dict.fromkeys(split for values in cells.values() for split in values["splits"]))
    colours = colours_of(cells)
    columns = min(PANELS_IN_A_ROW, len(splits))
    lines = -(-len(splits) // columns)
    with matplotlib.rc_context(STYLE):
        height = 0.35 + lines * (0.5 + 0.15 * len(cells))
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        grid = list(figure.subplots(lines, columns, squeeze=False).flat)
        drawn = {}
        for number, (axis, split) in enumerate(zip(grid, splits, strict=False)):
            _draw_methods(axis, cells, split, metric, items, colours)
            # Methods are named once a line of panels: all panels have the same rows.
            names = list(cells) if number % columns == 0 else []
            axis.set_yticks(range(len(cells)), names or [""] * len(cells))
            for label, method in zip(axis.get_yticklabels(), names, strict=False):
                label.set_color(colours[method])
            drawn[axis] = split
        for axis in grid[len(splits) :]:
            axis.set_axis_off()
    return figure, drawn


def _draw_methods(
    axis: Axes,
    cells: Mapping[str, Mapping],
    split: str,
    metric: str,
    items: str,
    colours: Mapping[str, str],
) -> None:
    """One metric of one split by method, with intervals; words where there is none."""
    axis.set_ylim(len(cells) - 0.5, -0.5)
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="x", color="0.92", lw=0.6)
    axis.set_axisbelow(True)
    n = []
    for place, (method, values) in enumerate(cells.items()):
        found = values["splits"].get(split, {}).get("metrics", {}).get(metric)
        if found is None or found["mean"] is None:
            here = {"transform": axis.get_yaxis_transform(), "fontsize": 5.5, "color": "0.5"}
            axis.text(0.02, place, "none", va="center", **here)
            continue
        n.append(found["n"])
        if found["low"] is not None and found["high"] is not None:
            axis.plot([found["low"], found["high"]], [place] * 2, color=colours[method], lw=1.6)
        axis.plot(found["mean"], place, "o", color=colours[method], ms=4)
        if method == "base":
            axis.axvline(found["mean"], color=colours[method], lw=0.7, ls="--", zorder=1)
    counts = f" ({_counts(pd.Series(n))} {items})" if n else ""
    axis.set_title(f"{shorten(split, 28)}{counts}", loc="left")


def _logarithmic(axis: Axes) -> None:
    """A logarithmic axis with a few plain labels, be it over decades or over a few per cent."""
    axis.set_xscale("log")
    low, high = axis.get_xlim()
    wide = high > 8 * low
    locator = LogLocator(subs=(1, 2, 5) if high < 1e3 * low else (1,), numticks=6)
    axis.xaxis.set_major_locator(locator if wide else MaxNLocator(4, steps=[1, 2, 5, 10]))
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
