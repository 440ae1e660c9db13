"""Changes against the untuned model: worked by hand, paired, and from files to figures."""

import json
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest

import compare_retention
import plot_trade_off
import tabulate_trade_off
from calibration_tuning import errors, figures, retention_figures, trade_off
from calibration_tuning.errors import InputError
from calibration_tuning.trade_off import Measured, Stratum, compare

HERE = Path("somewhere")


def prompts_of(kl_of_family, split="heldout"):
    """Prompts of a metrics.json: sequence KLs by family."""
    return [
        {"split": split, "prompt_index": 10 * number + place, "family": family}
        | {"params": {"p": float(place)}, "sequence_kl": kl}
        for number, (family, values) in enumerate(kl_of_family.items())
        for place, kl in enumerate(values)
    ]


def calibration(path, **kl_of_family):
    return trade_off.measured_calibration(
        HERE / path, {"values": {"prompts": prompts_of(kl_of_family)}}
    )


def scores(path, **scores_of_task):
    rows = [
        (task, item, "acc,none", value)
        for task, values in scores_of_task.items()
        for item, value in enumerate(values)
    ]
    frame = pd.DataFrame(rows, columns=["task", "item", "metric", "value"])
    return trade_off.measured_benchmarks(HERE / path, frame)


def documents(path, **nll_and_tokens):
    rows = [
        (name, number, "scored", 100 + number, tokens, nll)
        for name, pairs in nll_and_tokens.items()
        for number, (nll, tokens) in enumerate(pairs)
    ]
    columns = ["data", "document", "status", "bytes", "tokens", "nll"]
    frame = pd.DataFrame(rows, columns=columns)
    frame.loc[len(frame)] = ["empty-slice", 0, "short", 1, 0, np.nan]
    return trade_off.measured_perplexity(HERE / path, frame)


def row_of(table, name, method="soft"):
    return table[(table["name"] == name) & (table["method"] == method)].iloc[0]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["acc,none", "acc_norm,none", "chance"], "acc_norm,none"),
        (["exact_match,flexible-extract", "exact_match,strict-match"], "exact_match,strict-match"),
        (["chance", "mc2,none", "f1,none"], "f1,none"),
    ],
)
def test_the_metric_that_stands_for_a_task(names, expected):
    assert trade_off.primary_metric(names) == expected


def test_calibration_gives_families_equal_weight():
    """Gains 1, 1, 1 in family a and 3, 5 in family b: means 1 and 4, together 2.5."""
    cells = {
        ("base", 1): calibration("base", a=[2.0, 3.0, 4.0], b=[5.0, 6.0]),
        ("soft", 1): calibration("soft", a=[1.0, 2.0, 3.0], b=[2.0, 1.0]),
    }
    table = compare("tiny", {"calibration": cells})
    assert list(table) == list(trade_off.COLUMNS)
    (row,) = table.to_dict("records")
    assert (row["model"], row["method"], row["quantity"]) == ("tiny", "soft", "calibration")
    assert (row["name"], row["n"], row["seeds"]) == ("heldout", 5, "1")
    # Family a's gain does not vary; b's draws give 3, 4 and 5.
    assert row["change"] == pytest.approx(2.5)
    assert (row["low"], row["high"]) == pytest.approx((2.0, 3.0))


def test_scores_and_their_mean_over_tasks():
    """x falls from 0.75 to 0.5, y rises from 0 to 0.5: 0.125 on average."""
    cells = {
        ("base", 1): scores("base", x=[1, 1, 1, 0], y=[0, 0]),
        ("soft", 1): scores("soft", x=[1, 1, 0, 0], y=[0, 1]),
    }
    table = compare("tiny", {"benchmark": cells})
    assert table["name"].tolist() == ["x", "y", "mean"]
    assert table["change"].tolist() == pytest.approx([-0.25, 0.5, 0.125])
    assert table["n"].tolist() == [4, 2, 6]
    assert row_of(table, "x")["high"] == 0
    assert (row_of(table, "y")["low"], row_of(table, "y")["high"]) == (0, 1)


def test_log_perplexity_is_of_all_tokens():
    """Base: 20 + 10 nats over 10 + 20 tokens; soft: 40 + 20."""
    cells = {
        ("base", 1): documents("base", brown=[(20.0, 10), (10.0, 20)], c=[(6.0, 2)]),
        ("soft", 1): documents("soft", brown=[(40.0, 10), (20.0, 20)], c=[(7.0, 2)]),
    }
    table = compare("tiny", {"perplexity": cells})
    assert table["change"].tolist() == pytest.approx([1.0, 0.5, 0.75])
    assert table["n"].tolist() == [2, 1, 3]
    brown = row_of(table, "brown")
    assert (brown["low"], brown["high"]) == pytest.approx((0.5, 2.0))
    # One document says nothing about its spread, and neither does a mean that it is in.
    assert table["low"].isna().tolist() == [False, True, True]


def test_prompts_without_kl_in_one_cell_are_left_out_of_both():
    cells = {
        ("base", 1): calibration("base", a=[2.0, 9.0, None], b=[None]),
        ("soft", 1): calibration("soft", a=[1.0, None, 1.0], b=[1.0]),
    }
    (row,) = compare("tiny", {"calibration": cells}).to_dict("records")
    assert (row["change"], row["n"]) == (1.0, 1)
    assert np.isnan(row["low"])
    nothing = {cell: calibration("x", a=[None, None]) for cell in (("base", 1), ("soft", 1))}
    assert compare("tiny", {"calibration": nothing}).empty


def test_only_common_seeds_are_compared():
    values = {("base", 1): [0, 0], ("base", 2): [0, 0], ("base", 3): [1, 1]}
    values |= {("soft", 1): [0, 0], ("soft", 2): [1, 1], ("soft", 4): [1, 1]}
    cells = {cell: scores(f"{cell[0]}{cell[1]}", x=value) for cell, value in values.items()}
    row = row_of(compare("tiny", {"benchmark": cells}), "x")
    assert row["seeds"] == "1, 2 (without 3, 4)"
    # Items do not vary, but seeds do: 0 and 1.
    assert (row["change"], row["low"], row["high"]) == (0.5, 0, 1)


def correlated(n=300, seeds=(1, 2), seed=0):
    """Hard and easy items: what one gets right the other mostly does, too."""
    rng = np.random.default_rng(seed)
    difficulty = rng.random(n)
    return {
        (method, number): scores(
            f"{method}{number}", x=(difficulty + 0.05 * rng.normal(size=n) + shift > 0.5) * 1.0
        )
        for method, shift in (("base", 0.0), ("soft", 0.05))
        for number in seeds
    }


def test_the_paired_interval_is_narrower_and_known():
    cells = correlated(seeds=(1,))
    base, soft = (cells[method, 1].groups["x"]["x"].values[:, 0] for method in ("base", "soft"))
    row = row_of(compare("tiny", {"benchmark": cells}), "x")
    width = row["high"] - row["low"]
    unpaired = 2 * 1.96 * np.sqrt((base.var() + soft.var()) / base.size)
    assert width < 0.5 * unpaired
    assert width == pytest.approx(2 * 1.96 * (soft - base).std() / np.sqrt(base.size), rel=0.1)
    assert row["low"] < row["change"] == pytest.approx((soft - base).mean())


def test_the_same_numbers_every_time_and_in_any_order():
    cells = correlated()
    first = compare("tiny", {"benchmark": cells})
    again = compare("tiny", {"benchmark": dict(reversed(cells.items()))})
    pd.testing.assert_frame_equal(first, again)


@pytest.mark.parametrize(
    ("other", "where"),
    [({"x": [1, 0, 1]}, "x"), ({"x": [1, 0], "y": [1, 0]}, "y"), ({"y": [1, 0]}, "x")],
)
def test_other_items_are_refused_naming_both_files(other, where):
    cells = {("base", 1): scores("base", x=[1, 0]), ("soft", 1): scores("soft", **other)}
    with pytest.raises(InputError, match=rf"^somewhere/base and somewhere/soft: {where}: expected"):
        compare("tiny", {"benchmark": cells})


def test_other_parameters_of_a_prompt_are_other_items():
    changed = prompts_of({"a": [1.0, 2.0]})
    changed[1]["params"] = {"p": 0.25}
    other = trade_off.measured_calibration(HERE / "soft", {"values": {"prompts": changed}})
    cells = {("base", 1): calibration("base", a=[1.0, 2.0]), ("soft", 1): other}
    with pytest.raises(InputError, match="base and somewhere/soft: heldout, a: expected the same"):
        compare("tiny", {"calibration": cells})


def test_a_method_without_a_partner_is_refused():
    cells = {("base", 1): scores("base", x=[1, 0]), ("soft", 2): scores("soft", x=[1, 0])}
    with pytest.raises(InputError, match=r"^somewhere/soft: expected a cell of base"):
        compare("tiny", {"benchmark": cells})


def with_prompt(**keys):
    return {"values": {"prompts": [keys]}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "expected a list as values.prompts"),
        ({"values": {}}, "expected a list as values.prompts"),
        ({"values": []}, "expected a list as values.prompts"),
        (with_prompt(), "expected the key values.prompts[0].prompt_index"),
        (with_prompt(prompt_index=1), "expected the key values.prompts[0].params"),
        (with_prompt(prompt_index=1, params={}, sequence_kl="x"), "values.prompts[0]: could not"),
        ({"values": {"prompts": [3]}}, "values.prompts[0]: "),
    ],
)
def test_metrics_without_prompts(content, message):
    with pytest.raises(InputError) as error:
        trade_off.measured_calibration(HERE, content)
    assert str(error.value).startswith(f"somewhere: {message}")
    assert "\n" not in str(error.value)


def many(methods=13, seeds=3, items=100):
    """As large as a study: six tasks, four slices and 20 families of 5 prompts."""
    rng = np.random.default_rng(0)
    names = ["base", *(f"method-{number}" for number in range(1, methods))]
    sizes = {
        "calibration": {"heldout": {f"f{i}": 5 for i in range(20)}, "unseen": {"f": items}},
        "benchmark": {f"task{i}": {f"task{i}": items} for i in range(6)},
        "perplexity": {f"slice{i}": {f"slice{i}": 20} for i in range(4)},
    }
    return {
        quantity: {
            (method, seed): Measured(
                HERE,
                {
                    name: {
                        stratum: Stratum(tuple(range(n)), rng.uniform(1, 2, (n, 2)))
                        for stratum, n in strata.items()
                    }
                    for name, strata in groups.items()
                },
            )
            for method in names
            for seed in range(seeds)
        }
        for quantity, groups in sizes.items()
    }


def made_up(chain=("soft", "soft-replay-0.3", "soft-replay-1", "soft-replay-3"), seed=3):
    """Results of several methods with a trade-off, for figures."""
    rng = np.random.default_rng(seed)
    strength = dict.fromkeys(chain, 0.0) | {"soft-exact": 1.05, "hard": 0.6, "hard-replay-1": 0.5}
    strength |= {method: 1 - 0.15 * number for number, method in enumerate(chain)}
    families = {f"family{i}": rng.uniform(6, 12, 4) for i in range(8)}
    difficulty = {task: rng.random(100) for task in ("tinyMMLU", "tinyArc", "tinyGSM8k")}
    nats = {name: rng.uniform(250, 350, 20) for name in ("brown", "python-manual")}
    measured = {"calibration": {}, "benchmark": {}, "perplexity": {}}
    for method, s in {"base": 0.0, **strength}.items():
        cell = (method, 11)
        measured["calibration"][cell] = calibration(
            method, **{f: kl * (1 - 0.7 * s * rng.uniform(0.8, 1, 4)) for f, kl in families.items()}
        )
        measured["benchmark"][cell] = scores(
            method,
            **{
                task: (d + 0.06 * rng.normal(size=100) > 0.5 + 0.06 * s**3) * 1.0
                for task, d in difficulty.items()
            },
        )
        measured["perplexity"][cell] = documents(
            method,
            **{
                name: [(x * (1 + 0.1 * s**2 * rng.uniform(0.8, 1.2)), 100) for x in values]
                for name, values in nats.items()
            },
        )
    return measured


@pytest.fixture(scope="module")
def table():
    return compare("tiny", made_up())


def test_every_change_of_a_study_has_an_interval():
    table = compare("tiny", many())
    assert len(table) == 12 * (2 + 7 + 5)
    assert table[["low", "high"]].notna().all(axis=None)


def test_rows_of_text(table):
    header, rows = trade_off.to_rows(table)
    assert header[:5] == [
        "Model",
        "Method",
        "Seeds",
        "KL gain, held-out (nats)",
        "tinyArc (points)",
    ]
    assert header[-1] == "Perplexity, mean (%)"
    assert [row[1] for row in rows][:2] == ["soft", "soft-replay-0.3"]
    one = table[(table["method"] == "soft") & (table["name"] == "heldout")].iloc[0]
    assert rows[0][3] == f"+{one['change']:.2f} [+{one['low']:.2f}, +{one['high']:.2f}]"
    latex = trade_off.latex_rows(header, rows, texts=3)
    assert r"\begin{tabular}{lll" + "r" * (len(header) - 3) + "}" in latex
    assert r"Perplexity, mean (\%)" in latex
    assert "KL gain" in trade_off.headline(table)
    assert "tinyArc" not in trade_off.headline(table)


def test_what_is_missing_or_without_interval_in_rows_of_text():
    cells = {
        ("base", 1): documents("base", a=[(10.0, 10)]),
        ("soft", 1): documents("soft", a=[(11.0, 10)]),
    }
    both = {("base", 1): scores("b", x=[1, 1]), ("hard", 1): scores("h", x=[1, 1])}
    text = trade_off.to_rows(compare("tiny", {"perplexity": cells, "benchmark": both}))[1]
    assert text == [
        ["tiny", "soft", "1", "-", "-", "+10.5", "+10.5"],
        ["tiny", "hard", "1", "0.0 [0.0, 0.0]", "0.0 [0.0, 0.0]", "-", "-"],
    ]


def test_a_point_a_method_with_its_bars(table, tmp_path):
    chain = ["soft", "soft-replay-0.3", "soft-replay-1", "soft-replay-3"]
    figure = retention_figures.trade_off(table, [chain])
    left, right = figure.get_axes()
    soft = row_of(table, "heldout")["change"], 100 * row_of(table, "mean")["change"]
    places = [
        (line.get_xdata()[0], line.get_ydata()[0])
        for line in left.get_lines()
        if line.get_marker() == "o"
    ]
    assert len(places) == 7
    assert places[0] == pytest.approx(soft)
    (joined,) = [line for line in left.get_lines() if len(line.get_xdata()) == 4]
    assert joined.get_xdata()[0] == soft[0]
    assert "3 tasks, 300 items, 1 seed" in left.get_title(loc="left")
    assert "2 slices, 40 documents, 1 seed" in right.get_title(loc="left")
    figures.save_figure(figure, tmp_path / "trade_off.png")


def test_names_of_points_do_not_overlap(table):
    figure = retention_figures.trade_off(table)
    for axis in figure.get_axes():
        names = [text for text in axis.texts if text.get_text()]
        assert {"base", "soft", "hard-replay-1"} <= {name.get_text() for name in names}
        boxes = [text.get_window_extent() for text in names]
        for number, box in enumerate(boxes):
            assert not any(box.overlaps(other) for other in boxes[:number])


def test_only_one_side_is_one_panel_and_none_is_refused(table):
    figure = retention_figures.trade_off(table[table["quantity"] != "perplexity"])
    assert len(figure.get_axes()) == 1
    with pytest.raises(InputError, match="expected a method with a gain"):
        retention_figures.trade_off(table[table["quantity"] == "calibration"])


def values_of(metric, n, by_split, **more):
    """Values of a metrics.json: (mean, low, high) by split."""
    return {
        "splits": {
            split: {
                "metrics": {metric: dict(zip(("mean", "low", "high"), value, strict=True), n=n)}
                | {
                    name: {"mean": mean, "low": None, "high": None, "n": n}
                    for name, mean in more.items()
                }
            }
            for split, value in by_split.items()
        }
    }


def made_up_benchmarks():
    rng, tasks = np.random.default_rng(0), ("tinyArc", "tinyMMLU", "tinyGSM8k", "tinyHellaswag")
    return {
        method: values_of(
            "score",
            100,
            {t: (m, m - 0.09, m + 0.09) for t in tasks for m in [rng.uniform(0.2, 0.8)]},
            chance=0.25,
        )
        for method in ("base", "soft", "hard", "soft-exact", "soft-replay-1", "hard-replay-1")
    }


def test_benchmarks_are_a_panel_a_task(tmp_path):
    cells = made_up_benchmarks()
    del cells["hard"]["splits"]["tinyMMLU"]
    figure = retention_figures.benchmarks(cells)
    panels = [axis for axis in figure.get_axes() if axis.axison]
    titles = [axis.get_title(loc="left") for axis in panels]
    assert titles[:2] == ["tinyArc (100 items)", "tinyMMLU (100 items)"]
    means = [line.get_xdata()[0] for line in panels[0].get_lines() if line.get_marker() == "o"]
    expected = [
        values["splits"]["tinyArc"]["metrics"]["score"]["mean"] for values in cells.values()
    ]
    assert means == expected
    assert "none" in [text.get_text() for text in panels[1].texts]
    figures.save_figure(figure, tmp_path / "benchmarks.png")


def made_up_perplexity():
    slices = {"brown-news": 31.0, "python-manual": 8.0, "c4": 400.0}
    cells = {
        method: values_of(
            "perplexity",
            20,
            {s: (p * factor, p * factor * 0.93, p * factor * 1.1) for s, p in slices.items()},
        )
        for method, factor in (("base", 1.0), ("soft", 1.08), ("hard", 1.6), ("soft-exact", 1.1))
    }
    cells["hard"]["splits"]["c4"]["metrics"]["perplexity"] |= {"mean": 9e6, "low": 1e6, "high": 2e8}
    cells["soft"]["splits"]["brown-news"]["metrics"]["perplexity"] = dict.fromkeys(
        ("mean", "low", "high")
    ) | {"n": 0}
    return cells


def test_perplexity_is_a_panel_a_slice(tmp_path):
    figure = retention_figures.perplexity(made_up_perplexity())
    panels = figure.get_axes()
    assert [axis.get_xscale() for axis in panels] == ["log"] * 3
    assert "none" in [text.get_text() for text in panels[0].texts]
    for axis in panels:
        low, high = axis.get_xlim()
        assert sum(low <= tick <= high for tick in axis.get_xticks()) >= 2
    figures.save_figure(figure, tmp_path / "perplexity.png")


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def run_program(program, *arguments):
        monkeypatch.setattr(sys, "argv", [program.__name__, *arguments])
        errors.run(program.main)

    return run_program


def write_cell(folder, shift, rng):
    """The three files of a cell, better by a shift in calibration and worse elsewhere."""
    folder.mkdir(parents=True)
    kl = {"a": rng.uniform(3, 4, 5) - shift, "b": rng.uniform(5, 6, 5) - shift}
    content = {"values": {"prompts": prompts_of({f: v.tolist() for f, v in kl.items()})}}
    (folder / "metrics.json").write_text(json.dumps(content))
    rows = [
        (task, item, metric, float(rng.random() > 0.4 + 0.1 * shift))
        for task in ("tinyArc", "tinyMMLU")
        for item in range(20)
        for metric in ("acc,none", "acc_norm,none", "chance")
    ]
    frame = pd.DataFrame(rows, columns=["task", "item", "metric", "value"])
    frame.astype({"item": "int32"}).to_parquet(folder / "benchmarks.parquet")
    texts = [("c4", i, "scored", 400, 100, float(rng.uniform(290, 310) + shift)) for i in range(9)]
    frame = pd.DataFrame(texts, columns=["data", "document", "status", "bytes", "tokens", "nll"])
    frame.astype({"document": "int32"}).to_parquet(folder / "perplexity.parquet")


def test_from_cells_to_figures_by_the_programs(run, tmp_path, capsys):
    rng, given = np.random.default_rng(0), ["--model", "tiny"]
    for method, shift in (("base", 0.0), ("soft", 2.0), ("soft-replay-1", 1.5)):
        for seed in (11, 12):
            write_cell(tmp_path / method / f"seed{seed}", shift, rng)
            cell = f"{method}/seed{seed}"
            given += ["--structured", f"{cell}={cell}/metrics.json"]
            given += ["--benchmarks", f"{cell}={cell}/benchmarks.parquet"]
            given += ["--perplexity", f"{cell}={cell}/perplexity.parquet"]
    run(compare_retention, *given, "--output", "trade_off.csv")
    table = pd.read_csv("trade_off.csv")
    assert len(table) == 2 * (1 + 3 + 2)
    assert row_of(table, "heldout")["change"] == pytest.approx(2.0, abs=0.3)
    assert set(table["seeds"]) == {"11, 12"}
    outputs = ["--csv", "t.csv", "--markdown", "t.md", "--latex", "t.tex", "--html", "t.html"]
    run(tabulate_trade_off, "--table", "trade_off.csv", "trade_off.csv", *outputs)
    assert "KL gain, held-out (nats)" in capsys.readouterr().out
    assert len(pd.read_csv("t.csv")) == 2 * len(table)
    assert "| tiny | soft |" in Path("t.md").read_text()
    assert r"\toprule" in Path("t.tex").read_text()
    assert "<table" in Path("t.html").read_text()
    chains = json.dumps([["soft", "soft-replay-1", "not selected"]])
    files = ["--table", "trade_off.csv", "--chains", chains, "--png", "t.png", "--pdf", "t.pdf"]
    run(plot_trade_off, *files)
    assert Path("t.png").read_bytes().startswith(b"\x89PNG")
    first = Path("t.pdf").read_bytes()
    run(plot_trade_off, *files)
    assert Path("t.pdf").read_bytes() == first


def test_mistakes_are_one_line(run, tmp_path):
    (tmp_path / "table.csv").write_text("model,method\n")
    with pytest.raises(SystemExit, match=r"^error: table\.csv: expected the column quantity$"):
        run(plot_trade_off, "--table", "table.csv", "--png", "a.png", "--pdf", "a.pdf")
    with pytest.raises(SystemExit, match=r"^error: no\.csv: cannot be read as CSV"):
        run(plot_trade_off, "--table", "no.csv", "--png", "a.png", "--pdf", "a.pdf")
    with pytest.raises(SystemExit):
        run(compare_retention, "--model", "m", "--structured", "base=x", "--output", "a.csv")


def test_figures_do_not_change_the_style():
    before = matplotlib.rcParams["font.size"]
    retention_figures.perplexity(made_up_perplexity())
    assert matplotlib.rcParams["font.size"] == before
