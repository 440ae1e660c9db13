"""From samples to metrics, tables and figures by the programs, one after another."""

import json
import sys
from pathlib import Path

import jsonschema
import pandas as pd
import pytest

import collect_metrics
import plot_gallery
import plot_training
import score_structured
import tabulate_evaluation
from calibration_tuning import errors, files
from cells import PROMPTS, make_divergences, make_provenance, make_samples

SCHEMA_FILE = Path(__file__).parents[2] / "workflow" / "schemas" / "metrics.schema.json"
SCHEMA = json.loads(SCHEMA_FILE.read_text())


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def run_program(program, arguments):
        monkeypatch.setattr(sys, "argv", [program.__name__, *arguments.split()])
        errors.run(program.main)

    return run_program


@pytest.fixture
def cell(tmp_path):
    for split, records in PROMPTS.items():
        files.write_atomic(
            tmp_path / "prompts" / f"{split}_selected.jsonl", files.to_jsonl(records)
        )
    make_samples().to_parquet(tmp_path / "samples.parquet")
    files.write_atomic(tmp_path / "divergences.jsonl", files.to_jsonl(make_divergences()))
    files.write_atomic(tmp_path / "run.json", json.dumps(make_provenance()))
    return tmp_path


SCORE = (
    "--samples samples.parquet --divergences divergences.jsonl --run run.json"
    " --prompts-directory prompts --decimals 2 --max-bins 1001 --model tiny --seed 11"
)


def test_scores_follow_the_schema(run, cell):
    run(score_structured, f"{SCORE} --method base --output metrics.json")
    metrics = json.loads((cell / "metrics.json").read_text())
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(metrics, SCHEMA)
    assert metrics["cell"]["method"] == "base"
    assert metrics["provenance"] == make_provenance()
    first = (cell / "metrics.json").read_bytes()
    run(score_structured, f"{SCORE} --method base --output metrics.json")
    assert (cell / "metrics.json").read_bytes() == first


@pytest.mark.parametrize("content", ["", '{"cell": {', "[]", '{"cell": {}, "values": {}}', "\0\0"])
def test_damaged_metrics_are_named_with_what_makes_them_again(run, cell, capsys, content):
    path = cell / "structured" / "metrics.json"
    files.write_atomic(path, content)
    with pytest.raises(SystemExit) as stopped:
        run(collect_metrics, f"{path} --schema {SCHEMA_FILE} --output metrics.csv")
    message = str(stopped.value)
    assert message.startswith(f"error: {path}: ")
    assert message.endswith(f"make it again: snakemake --forcerun score_structured -- {path}")
    assert "\n" not in message
    assert not (cell / "metrics.csv").exists()


def test_from_scores_to_tables(run, cell, capsys):
    for method in ("base", "soft"):
        run(score_structured, f"{SCORE} --method {method} --output {method}/metrics.json")
    run(
        collect_metrics,
        f"base/metrics.json soft/metrics.json --schema {SCHEMA_FILE} --output metrics.csv",
    )
    assert len(pd.read_csv(cell / "metrics.csv")) == 2 * 2 * 14
    run(
        tabulate_evaluation,
        "--evaluation structured --metrics metrics.csv --csv t.csv --markdown t.md"
        " --latex t.tex --html t.html",
    )
    assert "<table" in (cell / "t.html").read_text()
    assert len(pd.read_csv(cell / "t.csv")) == 4
    assert "held-out families" in (cell / "t.md").read_text()
    assert r"\toprule" in (cell / "t.tex").read_text()
    assert "0.900" in capsys.readouterr().out


def test_figures(run, cell):
    run(
        plot_gallery,
        "--prompts-directory prompts --samples base=samples.parquet --samples soft=samples.parquet"
        " --decimals 2 --max-bins 1001 --count 2 --png gallery.png --pdf gallery.pdf",
    )
    (cell / "history.jsonl").write_text('{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2.0}\n')
    run(plot_training, "--history soft=history.jsonl --png training.png --pdf training.pdf")
    for name in ("gallery", "training"):
        assert (cell / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (cell / f"{name}.pdf").read_bytes().startswith(b"%PDF")


def test_a_broken_file_is_one_line(run, cell):
    (cell / "samples.parquet").write_bytes(b"")
    with pytest.raises(SystemExit, match=r"^error: samples\.parquet: expected Parquet[^\n]*$"):
        run(score_structured, f"{SCORE} --method base --output metrics.json")
    assert not (cell / "metrics.json").exists()


def test_a_path_without_its_label_is_refused(run, cell):
    with pytest.raises(SystemExit):
        run(plot_training, "--history history.jsonl --png a.png --pdf a.pdf")
