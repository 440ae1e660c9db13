"""The figures: what is sampled against what was asked for, and how training went."""

import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, ScalarFormatter

from calibration_tuning import files
from calibration_tuning.errors import InputError
from calibration_tuning.evaluations.structured import valid_numbers
from calibration_tuning.families import Distribution
from calibration_tuning.tables import FIRST_METHODS

# The colours of Okabe and Ito, and two of Tol's: told apart by colour-blind readers, in grey and
# on paper.
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
COLOURS += ("#882255", "#999933")
TARGET_COLOUR = "#C8C8C8"
STYLE = {
    "font.size": 7,
    "axes.titlesize": 7,
    "axes.labelsize": 7,
    "xtick.labelsize": 6,
    "ytick.labelsize": 6,
    "legend.fontsize": 7,
    "axes.linewidth": 0.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.5,
    "ytick.major.width": 0.5,
    "pdf.fonttype": 42,  # text stays text
}
SPLIT_NAMES = {"unseen": "unseen", "heldout": "held out"}
MOST_BARS = 30
# The histogram shows the central part of the target; of a Cauchy distribution nothing would be
# left to see if the range were the whole target's.
SHOWN_PART = 0.95


def choose_prompts(
    sampled: set[tuple[str, int]], prompts: Mapping[str, Sequence[Mapping]], count: int
) -> list[tuple[str, int]]:
    """A few sampled prompts, as many of each split, no family twice while there are others.

    Parameters
    ----------
    sampled : set of (split, row of the prompt in its split's file)
    prompts : mapping of split to its prompt records
    count : int
        How many to choose; fewer if there are not so many.

    Returns
    -------
    list of (split, row), by split and row
    """
    chosen = []
    splits = [split for split in prompts if any(key[0] == split for key in sampled)]
    for place, split in enumerate(splits):
        rows = sorted(index for name, index in sampled if name == split)
        by_family: dict[str, list[int]] = {}
        for row in rows:
            by_family.setdefault(prompts[split][row]["family"], []).append(row)
        # The middle prompt of every family first: extremes are less typical.
        first = [group[len(group) // 2] for group in by_family.values()]
        rest = [row for row in rows if row not in first]
        share = (count - len(chosen)) // (len(splits) - place)
        spread = np.linspace(0, len(first) - 1, min(share, len(first))).astype(int)
        picked = [first[number] for number in spread] + rest[: max(0, share - len(first))]
        chosen += [(split, row) for row in sorted(picked)]
    return chosen


def target_bins(
    distribution: Distribution, decimals: int, max_bins: int
) -> tuple[np.ndarray, np.ndarray]:
    """Bins over the central part of the discretised target, and the probability in each.

    Every bin holds the same number of neighbouring points of the target; the few that are left
    over at the upper end are not shown.

    Returns
    -------
    edges : float64 array (bins + 1,)
        Half-way between points.
    probabilities : float64 array (bins,)
    """
    space = distribution.output_space(decimals, max_bins)
    points, probabilities = np.array(space.texts, dtype=np.float64), space.probabilities
    cumulative = np.cumsum(probabilities)
    tail = (1 - SHOWN_PART) / 2
    first = int(np.searchsorted(cumulative, tail))
    last = int(np.searchsorted(cumulative, 1 - tail))
    points_in_bin = math.ceil((last + 1 - first) / MOST_BARS)
    end = last + 1 - (last + 1 - first) % points_in_bin
    points, probabilities = points[first:end], probabilities[first:end]
    starts = np.arange(0, len(points), points_in_bin)
    half = (points[1] - points[0]) / 2 if len(points) > 1 else 0.5
    inner = (points[starts[1:]] + points[starts[1:] - 1]) / 2
    edges = np.concatenate([[points[0] - half], inner, [points[-1] + half]])
    return edges, np.add.reduceat(probabilities, starts)


def colours_of(methods: Iterable[str]) -> dict[str, str]:
    """A colour for each method: the same in every figure for `FIRST_METHODS`, others in turn."""
    fixed = dict(zip(FIRST_METHODS, COLOURS, strict=False))
    remaining = cycle(COLOURS[len(FIRST_METHODS) :])
    return {method: fixed.get(method) or next(remaining) for method in methods}


def gallery(
    samples: Mapping[str, pd.DataFrame],
    prompts: Mapping[str, Sequence[Mapping]],
    *,
    count: int,
    decimals: int,
    max_bins: int,
) -> Figure:
    """What each method samples for a few prompts, over the target.

    A block a prompt, in it a strip a method: the target in grey, the valid samples in colour.

    Parameters
    ----------
    samples : mapping of method to DataFrame
        Samples with the columns split, prompt_index and text.
    prompts : mapping of split to its prompt records
    count : int
        Number of prompts.
    decimals, max_bins : int
        Of the discretised target.

    Returns
    -------
    Figure
        At most 7.2 inches wide, a page's text width.
    """
    texts = {
        method: {
            key: list(group) for key, group in frame.groupby(["split", "prompt_index"])["text"]
        }
        for method, frame in samples.items()
    }
    chosen = choose_prompts(
        set.intersection(*(set(keys) for keys in texts.values())), prompts, count
    )
    if not chosen:
        raise InputError("gallery: no prompt was sampled by all methods")
    columns = min(4, len(chosen))
    rows = math.ceil(len(chosen) / columns)
    # Sizes in inches: a block's strips, and the room between blocks for axis and title.
    strips, between, above, below = 0.6 * len(samples), 0.78, 0.5, 0.35
    height = rows * strips + (rows - 1) * between + above + below
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, height))
        outer = figure.add_gridspec(
            rows,
            columns,
            left=0.075,
            right=0.99,
            top=1 - above / height,
            bottom=below / height,
            wspace=0.28,
            hspace=between / strips,
        )
        for cell, (split, index) in zip(outer, chosen, strict=False):
            record = prompts[split][index]
            distribution = Distribution(record["family"], record["params"])
            edges, probabilities = target_bins(distribution, decimals, max_bins)
            axes = cell.subgridspec(len(samples), 1, hspace=0.35).subplots(sharex=True)
            axes = np.atleast_1d(axes)
            for axis, (method, colour) in zip(axes, colours_of(samples).items(), strict=True):
                strip(axis, texts[method][split, index], distribution, edges, probabilities, colour)
                axis.text(0, 1.03, method, color=colour, transform=axis.transAxes, weight="bold")
            _name_prompt(axes[0], distribution, split)
            axes[-1].set_xlabel("value", labelpad=1)
        figure.supylabel("share of the valid samples in a bin (grey: target)", x=0.004, fontsize=7)
    return figure


def _name_prompt(axis: Axes, distribution: Distribution, split: str) -> None:
    """Title of a block: what was asked for, and of which split."""
    parameters = ", ".join(f"{key}={value:.3g}" for key, value in distribution.params.items())
    # In points above the axis: the parameters, and above them the names.
    above = {"xycoords": "axes fraction", "textcoords": "offset points"}
    axis.annotate(parameters, (0, 1), (0, 12), fontsize=6 if len(parameters) < 28 else 5, **above)
    axis.annotate(distribution.display_name, (0, 1), (0, 20.5), fontsize=7.5, **above)
    split_name = SPLIT_NAMES.get(split, split)
    axis.annotate(split_name, (1, 1), (0, 20.5), ha="right", fontsize=5.5, color="0.4", **above)


def strip(
    axis: Axes,
    texts: Sequence[str],
    distribution: Distribution,
    edges: np.ndarray,
    probabilities: np.ndarray,
    colour: str,
) -> None:
    """Draw one method's samples of one prompt over the target.

    Bars far above the target are cut and marked by a triangle, so that the target stays readable.
    """
    valid = valid_numbers(texts, distribution)
    outside = np.sum((valid < edges[0]) | (valid > edges[-1]))
    shares = np.histogram(valid, edges)[0] / max(1, len(valid))
    top = min(2.1 * probabilities.max(), 1.05)
    axis.stairs(probabilities, edges, fill=True, color=TARGET_COLOUR)
    axis.stairs(shares, edges, color=colour, linewidth=0.8)
    centres = (edges[:-1] + edges[1:]) / 2
    cut = shares > top
    axis.plot(centres[cut], np.full(cut.sum(), 0.94 * top), "^", color=colour, markersize=3)
    label = f"{len(valid) / len(texts):.0%} valid, {outside} out"
    axis.text(1, 1.03, label, transform=axis.transAxes, ha="right", fontsize=5.5)
    axis.set(xlim=(edges[0], edges[-1]), ylim=(0, top))
    axis.xaxis.set_major_locator(MaxNLocator(4, integer=distribution.is_integer))
    axis.yaxis.set_major_locator(MaxNLocator(2))
    axis.label_outer()


def training_curves(histories: Mapping[str, Sequence[pd.DataFrame]]) -> Figure:
    """Training loss against step: every step faint, smoothed strong.

    Parameters
    ----------
    histories : mapping of label to DataFrames
        The columns step and loss (nats per token); several DataFrames are several seeds, drawn
        in one colour.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.8, 3.0), layout="constrained")
        axis = figure.subplots()
        colours = colours_of(histories)
        for number, (label, runs) in enumerate(histories.items()):
            colour = colours[label]
            line = ("-", "--", ":")[number // len(COLOURS) % 3]
            for seed, run in enumerate(runs):
                window = max(1, len(run) // 20)
                smooth = run["loss"].rolling(window, center=True, min_periods=1).mean()
                axis.plot(run["step"], run["loss"], color=colour, alpha=0.2, linewidth=0.5)
                axis.plot(
                    run["step"],
                    smooth,
                    line,
                    color=colour,
                    linewidth=1.2,
                    label=label if seed == 0 else None,
                )
        axis.set_yscale("log", nonpositive="mask")
        axis.set(xlabel="optimiser step", ylabel="training loss (nats per token)")
        axis.margins(x=0.01)
        axis.legend(frameon=False)
    return figure


def training_speed(runs: Mapping[str, Sequence[Mapping]]) -> Figure:
    """Held-out divergence against the time trained, and against the values trained on.

    Parameters
    ----------
    runs : mapping of way to its lines, see `calibration_tuning.training_speed`
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 2.8), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        for number, (way, lines) in enumerate(runs.items()):
            kl = [line["sequence_kl"] for line in lines]
            for axis, key in ((left, "seconds"), (right, "values")):
                axis.plot(
                    [line[key] for line in lines],
                    kl,
                    "o-" if number < len(COLOURS) else "s--",
                    color=COLOURS[number % len(COLOURS)],
                    markersize=3,
                    linewidth=1.2,
                    label=way,
                )
        left.set(xlabel="training time (s)", ylabel="sequence KL, held-out families (nats)")
        left.set_xlim(left=0)
        right.set(xlabel="values trained on", xscale="log")
        left.set_yscale("log")
        left.yaxis.set_minor_formatter(ScalarFormatter())
        left.yaxis.set_major_formatter(ScalarFormatter())
        figure.legend(
            *left.get_legend_handles_labels(), loc="outside upper center", ncols=5, frameon=False
        )
    return figure


def read_history(path: Path) -> pd.DataFrame:
    """Step and loss of a history.jsonl; InputError naming a line that lacks them."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            rows.append((int(record["step"]), float(record["loss"])))
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(f"{path}, line {number}: expected a step and a loss") from error
    if not rows:
        raise InputError(f"{path}: expected a line a training step")
    return pd.DataFrame(rows, columns=["step", "loss"])


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG (150 dots an inch) or PDF, the same bytes every time."""
    kind = Path(path).suffix.removeprefix(".")
    # Dates and versions are left out of the file.
    no_metadata = {"png": {"Software": None}, "pdf": {"CreationDate": None, "Producer": None}}
    if kind not in no_metadata:
        raise InputError(f"{path}: expected a file name that ends in .png or .pdf")
    content = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(content, format=kind, dpi=150, metadata=no_metadata[kind])
    files.write_atomic(path, content.getvalue())
