"""What calibration costs, end to end on a tiny random model, with a method that replays."""

import gzip
import json

import pandas as pd
import pytest
from jsonschema import Draft202012Validator

from repository import copy_repository, snakemake
from tiny_models import save_tiny

RETENTION = ("--configfile", "config/smoke.yaml", "config/smoke_retention.yaml")
PROSE = "It was a day like any other, and 12 people came to see what was new. " * 3


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """A run with a slice whose file ends too early."""
    folder = copy_repository(tmp_path_factory.mktemp("retention"))
    tiny = folder / "resources" / "tiny"
    save_tiny("qwen3", tiny / "qwen3")
    gsm8k = [{"prompt": f"What is {n} plus 1?", "expected": str(n + 1)} for n in range(4)]
    hellaswag = [
        {"activity_label": "Sport", "ctx": "He", "endings": ["runs", "sits"], "expected_index": 0}
    ] * 4
    texts = [{"text": PROSE}, {"text": ""}, {"text": "a"}, {"words": 1}]
    for name, rows in (("gsm8k", gsm8k), ("hellaswag", hellaswag), ("texts", texts)):
        (tiny / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    whole = gzip.compress((json.dumps({"text": PROSE}) + "\n").encode())
    (folder / "cut.jsonl.gz").write_bytes(whole[:-12])
    (folder / "mine.yaml").write_text(
        'evaluations: {perplexity: {data: [{name: cut, source: "path:cut.jsonl.gz"}]}}\n'
    )
    return folder, snakemake(*RETENTION, "mine.yaml", "--cores", "2", "metrics", cwd=folder)


@pytest.fixture(scope="module")
def run(broken):
    """The same, gone on with a file that is whole."""
    folder, _ = broken
    result = snakemake(*RETENTION, "--cores", "2", cwd=folder)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


def cell(folder, method, evaluation):
    return folder / "results/tiny-qwen3" / method / "seed11" / evaluation


def test_a_truncated_file_is_one_line_and_other_cells_go_on(broken):
    folder, result = broken
    assert result.returncode != 0
    last = (folder / "logs/fetch_data/cut.log").read_text().strip().splitlines()[-1]
    assert last.startswith("error: path:cut.jsonl.gz: ")
    assert "truncated" in last
    for method in ("base", "soft-replay-1"):
        assert (cell(folder, method, "benchmarks") / "metrics.json").exists()
        assert not (cell(folder, method, "perplexity") / "metrics.json").exists()


def test_metrics_follow_the_schema_and_count_what_was_not_scored(run):
    schema = json.loads((run / "workflow/schemas/metrics.schema.json").read_text())
    for method in ("base", "soft-replay-1"):
        for evaluation in ("benchmarks", "perplexity"):
            content = json.loads((cell(run, method, evaluation) / "metrics.json").read_text())
            Draft202012Validator(schema).validate(content)
    metrics = content["values"]["splits"]["perplexity-tiny"]["metrics"]
    assert [metrics[m]["mean"] for m in ("documents_short", "documents_empty", "rows_broken")] == [
        1,
        1,
        1,
    ]
    assert metrics["perplexity"]["mean"] > 1


def test_the_trade_off_is_a_table_and_a_figure(run):
    table = pd.read_csv(run / "results/tiny-qwen3/trade_off.csv")
    assert set(table["method"]) == {"soft-replay-1"}
    assert {"heldout", "retention-mini-gsm8k", "perplexity-tiny"} <= set(table["name"])
    assert (run / "results/figures/trade_off/tiny-qwen3.png").stat().st_size > 0
    for name in ("trade_off", "benchmarks", "perplexity"):
        assert (run / f"results/tables/{name}.tex").stat().st_size > 0
    assert "retention-mini-hellaswag" in (run / "results/tables/benchmarks.md").read_text()
    report = (run / "results/report.html").read_text()
    assert "trade_off.html" in report


def test_the_untuned_model_is_asked_once_for_all_that_replays(run):
    replayed = pd.read_parquet(run / "results/tiny-qwen3/replay/samples.parquet")
    assert replayed["prompt_index"].nunique() == 64
