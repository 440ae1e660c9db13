"""The figures show what they should, in the same bytes every time."""

import numpy as np
import pandas as pd
import pytest

from calibration_tuning import figures
from calibration_tuning.errors import InputError
from calibration_tuning.families import Distribution
from cells import PROMPTS, make_samples


def draw_gallery(count=2, **samples):
    return figures.gallery(samples, PROMPTS, count=count, decimals=2, max_bins=1001)


def test_choose_prompts_of_both_splits_and_all_families():
    sampled = {(split, row) for split, records in PROMPTS.items() for row in range(len(records))}
    assert figures.choose_prompts(sampled, PROMPTS, 4) == [
        ("unseen", 0),
        ("unseen", 1),
        ("heldout", 1),
        ("heldout", 3),
    ]
    # One split has too few: the other fills up.
    assert len(figures.choose_prompts(sampled, PROMPTS, 6)) == 6
    assert len(figures.choose_prompts(sampled, PROMPTS, 100)) == 6
    assert figures.choose_prompts(set(), PROMPTS, 4) == []


@pytest.mark.parametrize(
    ("family", "params"),
    [
        ("gaussian", {"mu": 3.5, "sigma": 3.0}),
        ("cauchy", {"x0": 3.5, "gamma": 3.0}),
        ("negative_binomial", {"r": 15.0, "p": 0.15}),
        ("bernoulli", {"p": 0.5}),
    ],
)
def test_target_bins(family, params):
    edges, probabilities = figures.target_bins(Distribution(family, params), 2, 1001)
    assert len(edges) == len(probabilities) + 1 <= figures.MOST_BARS + 1
    assert np.all(np.diff(edges) > 0)
    assert 0.9 < probabilities.sum() <= 1 + 1e-12


def test_bins_of_integers_are_centred_on_them():
    edges, probabilities = figures.target_bins(Distribution("bernoulli", {"p": 0.3}), 2, 1001)
    assert edges.tolist() == [-0.5, 0.5, 1.5]
    assert probabilities.tolist() == pytest.approx([0.7, 0.3])


def test_gallery_labels():
    figure = draw_gallery(base=make_samples(10), soft=make_samples(10, seed=1))
    texts = [text.get_text() for axis in figure.axes for text in axis.texts]
    assert len(figure.axes) == 2 * 2
    assert texts.count("base") == texts.count("soft") == 2
    assert sum(text.startswith("90% valid") for text in texts) == 4


def test_gallery_counts_what_lies_outside():
    samples = make_samples(10)
    samples.loc[:, "text"] = "1000000"
    texts = [text.get_text() for axis in draw_gallery(base=samples).axes for text in axis.texts]
    assert "100% valid, 10 out" in texts


def test_gallery_of_no_valid_sample():
    samples = make_samples(10)
    samples.loc[:, "text"] = "none"
    texts = [text.get_text() for axis in draw_gallery(base=samples).axes for text in axis.texts]
    assert "0% valid, 0 out" in texts


def test_gallery_needs_common_prompts():
    with pytest.raises(InputError, match="no prompt was sampled"):
        draw_gallery(base=make_samples(3), soft=make_samples(3).iloc[:0])


@pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_figures_have_the_same_bytes_twice(tmp_path, suffix, start):
    history = pd.DataFrame({"step": [1, 2, 3], "loss": [3.0, 2.0, 1.5]})
    contents = []
    for name in ("first", "second"):
        path = tmp_path / f"{name}.{suffix}"
        figures.save_figure(figures.training_curves({"soft": [history, history]}), path)
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]
    assert contents[0].startswith(start)


def test_other_formats_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"\.png or \.pdf"):
        figures.save_figure(draw_gallery(base=make_samples(3)), tmp_path / "figure.gif")


def test_seeds_of_a_method_share_one_entry():
    history = pd.DataFrame({"step": [1, 2], "loss": [3.0, 2.0]})
    axis = figures.training_curves({"soft": [history, history], "hard": [history]}).axes[0]
    labels = [text.get_text() for text in axis.get_legend().get_texts()]
    assert labels == ["soft", "hard"]
    assert axis.get_yscale() == "log"


@pytest.mark.parametrize("line", ["{", '{"step": 2}', '{"step": 2, "loss": null}', "[]"])
def test_broken_histories_are_named(tmp_path, line):
    path = tmp_path / "history.jsonl"
    path.write_text('{"step": 1, "loss": 2.5}\n')
    assert figures.read_history(path).to_dict("records") == [{"step": 1, "loss": 2.5}]
    path.write_text(f'{{"step": 1, "loss": 2.5}}\n{line}\n')
    with pytest.raises(InputError, match=r"history\.jsonl, line 2"):
        figures.read_history(path)


def test_missing_or_empty_histories_are_named(tmp_path):
    path = tmp_path / "history.jsonl"
    with pytest.raises(InputError, match=r"history\.jsonl"):
        figures.read_history(path)
    path.write_text("")
    with pytest.raises(InputError, match=r"history\.jsonl"):
        figures.read_history(path)


def test_a_method_has_the_same_colour_in_every_figure():
    everything = figures.colours_of(["base", "soft", "hard", "other", "another"])
    assert len(set(everything.values())) == 5
    trained = figures.colours_of(["soft", "hard"])
    assert trained == {method: everything[method] for method in trained}


def test_training_speed_has_a_line_a_way_in_both_panels(tmp_path):
    lines = [
        {"seconds": 50.0 * i, "values": 100 * i, "steps": i, "sequence_kl": 9.0 / i}
        for i in (1, 2, 3)
    ]
    figure = figures.training_speed({"ours": lines, "plain": lines[:2]})
    assert [len(axis.lines) for axis in figure.axes] == [2, 2]
    figures.save_figure(figure, tmp_path / "speed.png")
    assert (tmp_path / "speed.png").stat().st_size > 1000
