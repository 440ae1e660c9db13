"""Figures of the evaluations that do not ask for numbers: what is drawn is what was measured."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from calibration_tuning import transfer_figures
from calibration_tuning.errors import InputError
from calibration_tuning.evaluations import open_ended
from calibration_tuning.figures import colours_of, save_figure

THRESHOLDS = list(open_ended.THRESHOLDS)


def open_ended_values(factor, answers, support=True, sampled=("weekday", "city", "pet"), empty=0):
    """Values of a method: a prompt of each category, and one that was not sampled."""
    curve = {"thresholds": THRESHOLDS, "mean": [2.0 * factor] * 21, "median": [factor] * 21}
    curve |= {"lower_quartile": [factor / 2] * 21, "upper_quartile": [factor * 3] * 21}
    prompts = [
        {
            "prompt_index": index,
            "category": category,
            "support": [factor] * 21 if support else None,
            "samples": 10 if category in sampled else 0,
            "empty": empty,
            "unique_fraction": 0.3 if category in sampled else None,
            "top_answers": answers if category in sampled else [],
        }
        for index, category in enumerate(("pet", "weekday", "fruit", "city"))
    ]
    return {"curve": curve if support else None, "prompts": prompts}


def texts(figure):
    """Every text of a figure."""
    return [text.get_text() for text in figure.findobj(lambda x: hasattr(x, "get_text"))]


def widths(axis):
    return [round(bar.get_width(), 2) for bar in axis.patches if bar.get_height() < 1]


def test_support_is_a_line_and_a_band_for_those_that_have_it():
    cells = {
        "base": open_ended_values(2, []),
        "string-seed": open_ended_values(1, [], support=False),
        "soft": open_ended_values(20, []),
    }
    axis = transfer_figures.open_ended(cells).get_axes()[0]
    lines = [line for line in axis.get_lines() if len(line.get_xdata()) == 21]
    assert [line.get_ydata()[0] for line in lines] == [2, 20]
    assert [line.get_color() for line in lines] == [colours_of(cells)[m] for m in ("base", "soft")]
    bands = [band.get_paths()[0].get_extents() for band in axis.collections]
    assert [(band.y0, band.y1) for band in bands] == [(1, 6), (10, 60)]
    assert axis.get_yscale() == "log"
    assert axis.get_ylim()[1] > 60
    assert "string-seed" in axis.get_title(loc="left")
    assert {"base (n = 4)", "soft (n = 4)"} <= set(texts(axis))


def test_no_support_at_all_leaves_the_answers(tmp_path):
    cells = {"verbalized": open_ended_values(1, [["Monday", 0.3]], support=False)}
    figure = transfer_figures.open_ended(cells)
    assert not figure.get_axes()[0].axison
    assert "Monday" in texts(figure)
    save_figure(figure, tmp_path / "open_ended.png")


def test_each_method_has_its_own_answers():
    long = "a $dollar$\nand " + 10 * "very " + "long answer"
    cells = {
        "base": open_ended_values(2, [["Wednesday", 0.7], [long, 0.1]], empty=2),
        "soft": open_ended_values(20, [["Friday", 0.2], ["Wednesday", 0.1]]),
        "hard": open_ended_values(20, [], empty=10),
    }
    figure = transfer_figures.open_ended(cells)
    weekday, soft, hard, city = figure.get_axes()[1:5]
    assert [weekday.get_ylabel(), city.get_ylabel()] == ["weekday", "city"]
    assert [widths(axis) for axis in (weekday, soft, hard)] == [[0.7, 0.1, 0.2], [0.2, 0.1], [1]]
    assert [text.get_text() for text in weekday.texts] == [
        "Wednesday",
        r"a \$dollar\$ and very very very very very…",
        "(no answer)",
        "base",
    ]
    assert weekday.get_title(loc="left") == "3 different of 10"
    assert len(figure.get_axes()) == 1 + 2 * 3


def test_prompts_are_those_that_every_method_sampled():
    base = open_ended_values(1, [], sampled=("pet", "city", "fruit"))
    soft = open_ended_values(1, [], sampled=("pet", "fruit", "weekday"))
    assert transfer_figures.choose_prompts({"base": base}) == [3]
    assert transfer_figures.choose_prompts({"base": base, "soft": soft}) == [0, 2]
    # Two prompts of a category: the first of those that were sampled.
    soft["prompts"][0]["category"] = soft["prompts"][2]["category"] = "city"
    assert transfer_figures.choose_prompts({"soft": soft}) == [1, 0]


def test_without_common_prompts_there_is_only_the_support():
    cells = {"base": open_ended_values(1, [], sampled=()), "soft": open_ended_values(2, [])}
    assert transfer_figures.choose_prompts(cells) == []
    assert len(transfer_figures.open_ended(cells).get_axes()) == 1


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([], []),
        ([0.1, 0.9], [0.1, 0.9]),
        ([0.5, 0.5, 0.6], [0.5, 0.6, 0.7]),
        ([0.2, 0.95, 0.97, 1.2], [0.2, 0.8, 0.9, 1.0]),
    ],
)
def test_names_are_kept_apart_and_on_the_axis(places, expected):
    assert transfer_figures.spread(places, 0.1) == pytest.approx(expected)


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


def test_novelty_of_a_data_set_that_one_method_lacks():
    cells = {"base": novelty_values(3.0, ""), "soft": novelty_values(6.0, "")}
    cells["soft"]["splits"]["wildchat"] = cells["soft"]["splits"]["curated"]
    axis = transfer_figures.novelty(cells).get_axes()[0]
    labels = [label.get_text().split(" ")[0] for label in axis.get_yticklabels()]
    assert labels == ["curated", "base", "soft", "wildchat", "soft"]


@pytest.mark.parametrize("suffix", ["", "_stand_in"])
def test_novelty_says_whether_judges_stand_in(suffix):
    cells = {"base": novelty_values(3.0, suffix), "soft": novelty_values(6.0, suffix)}
    figure = transfer_figures.novelty(cells)
    left, right = figure.get_axes()
    points = [line for line in left.get_lines() if line.get_marker() == "o"]
    assert [point.get_xdata()[0] for point in points] == [3, 6]
    assert [label.get_text() for label in left.get_yticklabels()] == [
        "curated",
        "base (8 prompts)",
        "soft (8 prompts)",
    ]
    assert left.get_xlabel().startswith("distinct classes of 10 generations")
    intervals = [list(line.get_xdata()) for line in left.get_lines() if len(line.get_xdata()) == 2]
    assert intervals == [[2, 4], [5, 7]]
    assert all(len(line.get_xdata()) == 1 for line in right.get_lines())  # no interval
    for axis in (left, right):
        assert ("(stand-in)" in axis.get_xlabel()) == bool(suffix)
    assert any("others by P" in text and "quality: Q" in text for text in texts(figure))


def tidy_rows(values, seed=11, panels=transfer_figures.DECODING_PANELS):
    keys = {"model": "m", "seed": seed, "low": np.nan, "high": np.nan, "n": 18}
    return pd.DataFrame(
        [
            keys | {"method": m, "evaluation": e, "split": s, "metric": name, "value": value}
            for m, value in values.items()
            for e, s, name, _, _ in panels
        ]
    )


DECODINGS = {
    "base": {"temperature": 1.0, "min_p": 0.0},
    "base-t2.0": {"temperature": 2.0, "min_p": 0.0},
    "base-t0.5": {"temperature": 0.5, "min_p": 0.0},
    "base-t2.0-min-p": {"temperature": 2.0, "min_p": 0.1},
    "base-t9": {"temperature": 9.0, "min_p": 0.0},  # not in the table
}


def test_temperatures_and_the_other_methods_as_lines():
    values = {"base": 0.2, "base-t0.5": 0.3, "base-t2.0": 0.4, "base-t2.0-min-p": 0.5, "soft": 0.9}
    figure = transfer_figures.decoding(tidy_rows(values), DECODINGS)
    assert [axis.get_yscale() for axis in figure.get_axes()].count("log") == 3
    axis = figure.get_axes()[0]
    plain, cut, soft = axis.get_lines()
    assert list(zip(*plain.get_data(), strict=True)) == [(0.5, 0.3), (1, 0.2), (2, 0.4)]
    assert list(zip(*cut.get_data(), strict=True)) == [(2, 0.5)]
    assert list(soft.get_ydata()) == [0.9, 0.9]
    name = next(text for text in axis.texts if text.get_text() == "soft")
    assert name.xy[1] == pytest.approx(0.9 / 1.02)
    assert axis.get_title(loc="left") == "valid rate, 18 prompts"
    assert axis.get_xlabel() == "temperature"
    assert {"untuned", "untuned, min-p 0.1"} <= set(texts(figure.legends[0]))


def test_undefined_values_are_gaps():
    values = {"base": np.nan, "base-t0.5": 0.3, "base-t2.0": 0.4, "base-t2.0-min-p": np.nan}
    axis = transfer_figures.decoding(tidy_rows(values), DECODINGS).get_axes()[0]
    assert np.isnan(axis.get_lines()[0].get_ydata()).tolist() == [False, True, False]
    assert axis.get_xlabel() == "temperature (undefined: min-p 0.1)"


def test_several_seeds_are_averaged():
    tidy = pd.concat([tidy_rows({"base": 0.2}), tidy_rows({"base": 0.4}, seed=12)])
    axis = transfer_figures.decoding(tidy, DECODINGS).get_axes()[0]
    assert list(axis.get_lines()[0].get_ydata()) == pytest.approx([0.3])


def test_panels_are_those_that_were_evaluated(tmp_path):
    tidy = tidy_rows({"base": 0.2, "soft": 0.3}, panels=transfer_figures.DECODING_PANELS[:4])
    figure = transfer_figures.decoding(tidy, DECODINGS)
    assert [axis.axison for axis in figure.get_axes()] == [True] * 4 + [False] * 2
    save_figure(figure, tmp_path / "decoding.png")
    for other in (tidy_rows({"soft": 1.0}), tidy.assign(evaluation="mcq")):
        with pytest.raises(InputError, match="no method in the table"):
            transfer_figures.decoding(other, DECODINGS)


@pytest.mark.parametrize("count", [1, 3, 6])
def test_figures_fit_a_page(count):
    methods = ["base", "string-seed", "soft", "hard", "soft-exact", "verbalized"][:count]
    drawn = [
        transfer_figures.open_ended(dict.fromkeys(methods, open_ended_values(2, [["a", 0.5]]))),
        transfer_figures.mcq(dict.fromkeys(methods, mcq_values([0.25] * 4, 9, 10))),
        transfer_figures.novelty(dict.fromkeys(methods, novelty_values(3.0, ""))),
    ]
    for figure in drawn:
        width, height = figure.get_size_inches()
        assert width <= 7.2
        assert height <= 9.5
        figure.draw_without_rendering()
        sizes = [text.get_fontsize() for text in figure.findobj(Text) if text.get_text()]
        assert min(sizes) >= 5.5
