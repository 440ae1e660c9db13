"""The tidy table and the summaries made of it."""

import json

import pandas as pd
import pytest

from calibration_tuning import tables
from calibration_tuning.errors import InputError


def metric(mean, n=4, low=None, high=None):
    return {"mean": mean, "low": low, "high": high, "n": n}


def write_metrics(folder, model="tiny", method="base", seed=11, valid=0.5, distance=1.0, n=4):
    metrics = {
        "valid_rate": metric(valid),
        "wasserstein_normalised": metric(distance, n=n),
        "logit_kl": metric(1.5, low=1.0, high=2.0),
        "sequence_kl": metric(6.0),
        "space_mass": metric(None, n=0),
        "parse_rate": metric(0.75),
    }
    content = {
        "cell": {"model": model, "method": method, "seed": seed, "evaluation": "structured"},
        "values": {
            "splits": {
                split: {"prompts": 4, "samples": 80, "metrics": metrics}
                for split in ("unseen", "heldout")
            }
        },
        "provenance": {},
    }
    path = folder / f"{model}-{method}-{seed}.json"
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
def paths(tmp_path):
    return [
        write_metrics(tmp_path, method="hard", distance=0.25),
        write_metrics(tmp_path, method="soft", valid=0.8, distance=0.5),
        write_metrics(tmp_path, method="soft", seed=12, valid=0.9, distance=0.5),
        write_metrics(tmp_path, distance=None, n=0),
    ]


def test_collect(paths):
    table = tables.collect(paths)
    assert list(table.columns) == list(tables.TIDY_COLUMNS)
    assert len(table) == 4 * 2 * 6
    pd.testing.assert_frame_equal(table, tables.collect(reversed(paths)))
    row = table[(table["method"] == "base") & (table["metric"] == "logit_kl")].iloc[0]
    assert (row["value"], row["low"], row["high"], row["n"]) == (1.5, 1.0, 2.0, 4)


def test_tidy_table_survives_csv(paths, tmp_path):
    table = tables.collect(paths)
    table.to_csv(tmp_path / "metrics.csv", index=False)
    pd.testing.assert_frame_equal(
        tables.read_tidy(tmp_path / "metrics.csv"), table, check_dtype=False
    )


def test_summary(paths):
    table = tables.summary(tables.collect(paths))
    assert list(table["method"]) == ["base", "soft", "hard"] * 2
    assert list(table["split"]) == ["unseen"] * 3 + ["heldout"] * 3
    assert list(table["seeds"]) == [1, 2, 1] * 2
    assert list(table["prompts"]) == [4] * 6
    assert table["valid_rate"].tolist()[:3] == pytest.approx([0.5, 0.85, 0.5])
    assert table["valid_rate_sd"][1] == pytest.approx(0.0707, abs=1e-4)
    assert pd.isna(table["valid_rate_sd"][0])
    assert pd.isna(table["wasserstein_normalised"][0])


def test_methods_and_models_in_order(tmp_path):
    names = ["zeta", "hard", "alpha", "base", "soft"]
    paths = [write_metrics(tmp_path, model, name) for model in ("b", "a") for name in names]
    table = tables.summary(tables.collect(paths))
    assert list(table["method"][:5]) == ["base", "soft", "hard", "alpha", "zeta"]
    assert list(table["model"]) == ["a"] * 10 + ["b"] * 10


def test_markdown(paths):
    lines = tables.to_markdown(tables.summary(tables.collect(paths))).splitlines()
    assert len(lines) == 2 + 6
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2] == (
        "| tiny | unseen parameters | base | 1 | 4 | 80 | 0.500 | - | 1.500 | 6.00 | - |"
    )
    assert "0.850 ± 0.071" in lines[3]


def test_a_single_prompt_counts_its_samples_and_intervals_show(tmp_path):
    metrics = {
        "parse_rate": metric(0.5, n=40, low=0.34, high=0.66),
        "share_a": metric(0.25, n=20, low=0.1, high=0.5),
    }
    cell = {"model": "tiny", "method": "base", "seed": 11, "evaluation": "mcq"}
    splits = {"all": {"prompts": 1, "samples": 40, "metrics": metrics}}
    path = tmp_path / "mcq.json"
    path.write_text(json.dumps({"cell": cell, "values": {"splits": splits}}))
    text = tables.to_markdown(tables.summary(tables.collect([path]), "mcq"), "mcq")
    assert text.splitlines()[2] == (
        "| tiny | one prompt | base | 1 | 1 | 40 | 0.50 [0.34, 0.66] | 0.25 (n=20) |"
    )
    cell["seed"] = 12
    second = tmp_path / "second.json"
    second.write_text(json.dumps({"cell": cell, "values": {"splits": splits}}))
    text = tables.to_markdown(tables.summary(tables.collect([path, second]), "mcq"), "mcq")
    assert "| 2 | 1 | 80 | 0.50 ± 0.00 | 0.25 ± 0.00 (n=20) |" in text


def test_n_is_said_where_it_is_smaller(tmp_path):
    table = tables.summary(tables.collect([write_metrics(tmp_path, n=3)]))
    assert "1.00 (n=3)" in tables.to_markdown(table)


def test_latex(paths, tmp_path):
    paths.append(write_metrics(tmp_path, model="a_b", method="soft"))
    text = tables.to_latex(tables.summary(tables.collect(paths)))
    lines = text.splitlines()
    assert lines[0] == r"\begin{tabular}{lllrrrrrrrr}"
    assert lines[1] == r"\toprule"
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]
    rows = [line for line in lines if line.endswith(r"\\")]
    assert {row.count(" & ") for row in rows} == {10}
    assert r"a\_b" in text
    assert r"0.850 $\pm$ 0.071" in text
    # One rule below the header and one between each two of the four groups.
    assert lines.count(r"\midrule") == 4


def test_headline(paths):
    lines = tables.headline(tables.summary(tables.collect(paths))).splitlines()
    assert len(lines) == 7
    assert lines[0].startswith("Model")
    assert len({line.find("parameters") for line in lines[1:4]}) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "JSON"),
        ("{}", "expected the key cell"),
        ('{"cell": {"model": "m"}}', r"expected the key cell\.method"),
    ],
)
def test_broken_metrics_are_named(tmp_path, content, message):
    path = tmp_path / "metrics.json"
    path.write_text(content)
    with pytest.raises(InputError, match=rf"metrics\.json: .*{message}"):
        tables.collect([path])


def test_a_missing_key_of_a_metric_is_named(paths):
    content = json.loads(paths[0].read_text())
    del content["values"]["splits"]["unseen"]["metrics"]["logit_kl"]["n"]
    paths[0].write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"tiny-hard-11\.json.*unseen\.metrics\.logit_kl\.n"):
        tables.collect(paths)


def test_the_same_cell_twice_is_refused(paths):
    with pytest.raises(InputError, match="the same cell"):
        tables.collect([*paths, paths[0]])


def test_nothing_to_summarise(paths, tmp_path):
    with pytest.raises(InputError, match="no metrics of the evaluation mcq"):
        tables.summary(tables.collect(paths), "mcq")
    (tmp_path / "metrics.csv").write_text("model,method\n")
    with pytest.raises(InputError, match=r"metrics\.csv: expected the column seed"):
        tables.read_tidy(tmp_path / "metrics.csv")


def test_training_speed_rows_are_those_of_the_last_stop():
    last = {
        "seconds": 150.4, "steps": 79, "values": 2528, "sequence_kl": 1.234, "logit_kl": 0.5,
        "wasserstein": None, "wasserstein_median": 0.4567, "valid_rate": 0.9,
    }  # fmt: skip
    table = tables.training_speed_rows({"ours": [{"seconds": 75.0}, last]})
    assert table.to_numpy().tolist() == [
        ["ours", "150", "79", "2528", "1.23", "0.500", "-", "0.46", "0.900"]
    ]
    markdown = tables.markdown_rows(list(table), table.to_numpy().tolist(), texts=1)
    assert markdown.splitlines()[1].startswith("| --- | ---: |")
    assert "<title>Training speed</title>" in tables.html_page(table, "Training speed", texts=1)
