"""The evaluations that do not ask for numbers, end to end on a tiny random model."""

import json

import pandas as pd
import pytest
from jsonschema import Draft202012Validator

from repository import copy_repository, snakemake
from tiny_models import save_tiny

TRANSFER = ("--configfile", "config/smoke.yaml", "config/smoke_transfer.yaml")
CELLS = {"base": ("open_ended", "mcq", "novelty"), "base-t2.0": ("open_ended",)}


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """A run with an empty prompt file."""
    folder = copy_repository(tmp_path_factory.mktemp("transfer"))
    save_tiny("qwen3", folder / "resources" / "tiny" / "qwen3")
    save_tiny("encoder", folder / "resources" / "tiny" / "encoder")
    (folder / "empty.jsonl").touch()
    (folder / "mine.yaml").write_text("evaluations: {open_ended: {prompts_file: empty.jsonl}}\n")
    return folder, snakemake(*TRANSFER, "mine.yaml", "--cores", "2", "metrics", cwd=folder)


@pytest.fixture(scope="module")
def run(broken):
    """The same, gone on with the prompts that come with it."""
    folder, _ = broken
    times = {p: p.stat().st_mtime_ns for p in (folder / "results").glob("*/*/*/*/*.json")}
    result = snakemake(*TRANSFER, "--cores", "2", cwd=folder)
    assert result.returncode == 0, result.stdout + result.stderr
    assert times
    assert all(path.stat().st_mtime_ns == before for path, before in times.items())
    return folder, result.stdout + result.stderr


def cell(folder, method, evaluation):
    return folder / "results/tiny-qwen3" / method / "seed11" / evaluation


def test_an_empty_prompt_file_is_one_line_and_other_cells_go_on(broken):
    folder, result = broken
    assert result.returncode != 0
    for method in CELLS:
        log = folder / f"logs/sample_open_ended/tiny-qwen3/{method}/seed11.log"
        last = log.read_text().strip().splitlines()[-1]
        assert last == "error: empty.jsonl: expected at least one prompt, found none"
        assert not (cell(folder, method, "open_ended") / "metrics.json").exists()
    assert "expected at least one prompt" in result.stdout + result.stderr
    for evaluation in ("mcq", "novelty"):
        assert (cell(folder, "base", evaluation) / "metrics.json").exists()


def test_every_cell_has_metrics_that_follow_the_schema(run):
    folder, _ = run
    schema = json.loads((folder / "workflow/schemas/metrics.schema.json").read_text())
    for method, evaluations in CELLS.items():
        for evaluation in evaluations:
            metrics = json.loads((cell(folder, method, evaluation) / "metrics.json").read_text())
            Draft202012Validator(schema).validate(metrics)
            assert metrics["cell"]["evaluation"] == evaluation
            assert not list(cell(folder, method, evaluation).glob("work-*"))
    assert not cell(folder, "base-t2.0", "mcq").exists()


def test_stand_ins_are_named_wherever_they_show(run):
    folder, output = run
    values = json.loads((cell(folder, "base", "novelty") / "metrics.json").read_text())["values"]
    assert all(judge.startswith("stand-in: ") for judge in values["judges"].values())
    for form in ("md", "tex", "txt"):
        table = (folder / f"results/tables/novelty.{form}").read_text()
        assert "Distinct (stand-in)" in table
        assert "Utility (stand-in)" in table
    assert "Distinct (stand-in)" in output
    tidy = pd.read_csv(folder / "results/tables/metrics.csv")
    names = set(tidy.loc[tidy["evaluation"] == "novelty", "metric"])
    assert {"distinct_stand_in", "utility_stand_in", "rating_stand_in"} <= names
    assert not {"distinct", "utility", "rating"} & names


def test_tables_figures_and_report_have_all_of_it(run):
    folder, _ = run
    report = (folder / "results/report.html").read_text()
    for evaluation in ("open_ended", "mcq", "novelty"):
        assert (folder / f"results/figures/{evaluation}/tiny-qwen3.pdf").stat().st_size > 0
        assert f"{evaluation}.html" in report
    assert (folder / "results/figures/decoding/tiny-qwen3.png").stat().st_size > 0
    table = pd.read_csv(folder / "results/tables/open_ended.csv")
    assert list(table["method"]) == ["base", "base-t2.0"]
    assert list(table["prompts"]) == [102, 102]
    assert list(table["samples"]) == [12, 12]


def test_a_model_that_never_stops_is_said_in_one_line(run):
    """A random model does not end its answers within a few tokens."""
    folder, _ = run
    log = (folder / "logs/sample_mcq/tiny-qwen3/base/seed11.log").read_text()
    warnings = [line for line in log.splitlines() if line.startswith("warning: ")]
    label = "tiny-qwen3/base/seed11/mcq"
    assert warnings == [f"warning: {label}: none of 6 answers ends within 8 tokens"]
