"""Figures of the evaluations that do not ask for numbers: what is drawn is what was measured."""

import numpy as np
import pandas as pd
import pytest

from calibration_tuning import transfer_figures
from calibration_tuning.errors import InputError
from calibration_tuning.evaluations import open_ended
from calibration_tuning.figures import save_figure

THRESHOLDS = list(open_ended.THRESHOLDS)


def open_ended_values(factor, answers, support=True, categories=("weekday", "city", "pet")):
    curve = {"thresholds": THRESHOLDS, "mean": [2.0 * factor] * 21, "median": [factor] * 21}
    curve |= {"lower_quartile": [factor / 2] * 21, "upper_quartile": [factor * 3] * 21}
    prompts = [
        {
            "category": category,
            "support": [factor] * 21 if support else None,
            "samples": 10,
            "unique_fraction": 0.3,
            "top_answers": answers,
        }
        for category in categories
    ]
    return {"curve": curve if support else None, "prompts": prompts}


def texts(figure):
    """Every text of a figure."""
    return [text.get_text() for text in figure.findobj(lambda x: hasattr(x, "get_text"))]


def test_support_and_answers():
    cells = {
        "base": open_ended_values(
            2, [["Wednesday", 0.8], ["a $dollar$ and a very long answer", 0.1]]
        ),
        "string-seed": open_ended_values(1, [], support=False),
        "soft": open_ended_values(20, [["Friday", 0.2], ["Wednesday", 0.1]]),
    }
    figure = transfer_figures.open_ended(cells)
    axes = figure.get_axes()
    lines = [line for line in axes[0].get_lines() if len(line.get_xdata()) == 21]
    assert [line.get_ydata()[0] for line in lines] == [2, 20]
    assert "string-seed" in axes[0].get_title(loc="left")
    assert [axis.get_title(loc="left") for axis in axes[1:3]] == ["weekday", "city"]
    labels = [label.get_text() for label in axes[1].get_yticklabels()]
    assert labels == ["Wednesday", "Friday", r"a \$dollar\$ and a ver…"]
    widths = [round(bar.get_width(), 2) for bar in axes[1].patches]
    assert widths == [0.8, 0, 0.1, 0, 0, 0, 0.1, 0.2, 0]  # a method after another
    assert "base: 3 different of 10" in texts(axes[1])


def test_categories_are_those_that_every_method_sampled():
    cells = {
        "base": open_ended_values(1, [], categories=("a", "city", "b")),
        "soft": open_ended_values(1, [], categories=("a", "b", "weekday")),
    }
    assert transfer_figures.choose_categories(cells) == ["a", "b"]
    assert transfer_figures.choose_categories({"base": cells["base"]}) == ["city"]


def mcq_values(shares, parsed, samples):
    metrics = {
        f"share_{letter}": {"mean": share, "low": share and share / 2, "high": share and 0.9}
        | {"n": parsed}
        for letter, share in zip("abcd", shares, strict=True)
    }
    metrics["total_variation"] = {"mean": 0.15, "low": 0.05, "high": 0.4, "n": parsed}
    return {"splits": {"all": {"prompts": 1, "samples": samples, "metrics": metrics}}}


def test_shares_of_the_letters_and_nothing_parsed(tmp_path):
    cells = {
        "base": mcq_values([0.1, 0.2, 0.3, 0.4], 30, 40),
        "soft": mcq_values([None] * 4, 0, 40),
    }
    figure = transfer_figures.mcq(cells)
    left, right = figure.get_axes()
    assert [bar.get_height() for bar in left.patches] == [0.1, 0.2, 0.3, 0.4]
    assert "30 of 40 parsed\nTV 0.15 [0.05, 0.40]" in texts(left)
    assert not right.patches
    assert "nothing could be parsed\n(0 of 40)" in texts(right)
    save_figure(figure, tmp_path / "mcq.png")


def novelty_values(distinct, suffix):
    metrics = {
        f"distinct{suffix}": {"mean": distinct, "low": distinct - 1, "high": distinct + 1, "n": 8},
        f"utility{suffix}": {"mean": 5.0, "low": None, "high": None, "n": 8},
    }
    split = {"prompts": 8, "samples": 80, "metrics": metrics}
    return {"splits": {"curated": split}, "judges": {"partition": "P", "quality": "Q"}}


@pytest.mark.parametrize("suffix", ["", "_stand_in"])
def test_novelty_says_whether_judges_stand_in(suffix):
    cells = {"base": novelty_values(3.0, suffix), "soft": novelty_values(6.0, suffix)}
    figure = transfer_figures.novelty(cells)
    left, right = figure.get_axes()
    points = [line for line in left.get_lines() if line.get_marker() == "o"]
    assert [point.get_xdata()[0] for point in points] == [3, 6]
    assert [label.get_text() for label in left.get_yticklabels()] == [
        "curated: base (8 prompts)",
        "curated: soft (8 prompts)",
    ]
    for axis in (left, right):
        assert ("(stand-in)" in axis.get_xlabel()) == bool(suffix)
    assert any("else P" in text and "quality: Q" in text for text in texts(figure))


def tidy_rows(values):
    keys = {"model": "m", "seed": 11, "low": np.nan, "high": np.nan, "n": 18}
    return pd.DataFrame(
        [
            keys | {"method": m, "evaluation": e, "split": s, "metric": name, "value": value}
            for m, value in values.items()
            for e, s, name, _, _ in transfer_figures.DECODING_PANELS
        ]
    )


def test_temperatures_and_the_other_methods_as_lines():
    decodings = {
        "base": {"temperature": 1.0, "min_p": 0.0},
        "base-t2.0": {"temperature": 2.0, "min_p": 0.0},
        "base-t2.0-min-p": {"temperature": 2.0, "min_p": 0.1},
        "base-t9": {"temperature": 9.0, "min_p": 0.0},  # not in the table
    }
    values = {"base": 0.2, "base-t2.0": 0.4, "base-t2.0-min-p": np.nan, "soft": 0.9}
    figure = transfer_figures.decoding(tidy_rows(values), decodings)
    axis = figure.get_axes()[0]
    plain, cut = axis.get_lines()[:2]
    assert list(plain.get_xdata()) == [1, 2]
    assert list(plain.get_ydata()) == [0.2, 0.4]
    assert list(cut.get_xdata()) == []
    assert list(axis.get_lines()[2].get_ydata()) == [0.9, 0.9]
    assert "soft" in texts(axis)
    assert axis.get_title() == "valid rate, 18 prompts"
    with pytest.raises(InputError, match="no method in the table"):
        transfer_figures.decoding(tidy_rows({"soft": 1.0}), decodings)
