"""What a finished grid plans again after a change: what depends on it, and nothing else."""

import shutil
from pathlib import Path

import pytest
import yaml

from repository import GRID, copy_repository, planned, replace, snakemake

SUMMARIES = {"collect_metrics": 1, "tabulate_evaluation": 1, "write_report": 1, "all": 1}


@pytest.fixture
def copy(grid, tmp_path):
    """A checkout of its own with the finished results and Snakemake's notes of them."""
    folder = copy_repository(tmp_path / "checkout")
    for name in ("results", "resources", "logs", "benchmarks", ".snakemake"):
        if (grid / name).exists():
            shutil.copytree(grid / name, folder / name)
    return folder


def edit_yaml(path: Path, change) -> None:
    content = yaml.safe_load(path.read_text())
    change(content)
    path.write_text(yaml.safe_dump(content, sort_keys=False))


def reverse_keys(content):
    """The same YAML with every mapping in the opposite order."""
    if isinstance(content, dict):
        return {key: reverse_keys(content[key]) for key in reversed(content)}
    return content


def reorder(folder: Path) -> None:
    for name in ("config.yaml", "smoke.yaml", "smoke_grid.yaml", "smoke_models.yaml"):
        path = folder / "config" / name
        path.write_text(
            yaml.safe_dump(reverse_keys(yaml.safe_load(path.read_text())), sort_keys=False)
        )


def touch(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file() and ".snakemake" not in path.parts:
            path.touch()


def add_comments(folder: Path) -> None:
    for name in ("config/config.yaml", "config/smoke_models.yaml", "workflow/scripts/launch.py"):
        path = folder / name
        path.write_text(path.read_text() + "\n# a comment\n")
    library = folder / "workflow/scripts/calibration_tuning"
    replace(library / "training.py", '"""LoRA training', '"""Training of LoRA')
    replace(library / "tables.py", '"""Tables of', '"""The tables of')


def ask_for_more(folder: Path) -> None:
    def change(registry: dict) -> None:
        registry["defaults"].update(memory="2GB", runtime="20m", threads=2, gpu=1)
        registry["models"]["tiny-qwen3"].update(memory="3GB")

    edit_yaml(folder / "config" / "smoke_models.yaml", change)


@pytest.mark.parametrize(
    "change",
    [lambda folder: None, touch, add_comments, reorder, ask_for_more],
    ids=["fresh clone", "touch", "comments", "order of keys", "what jobs ask for"],
)
def test_nothing_is_planned(copy, change):
    change(copy)
    result = snakemake("-n", *GRID, cwd=copy)
    assert result.returncode == 0, result.stderr
    assert "Nothing to be done" in result.stdout + result.stderr, result.stdout


def test_a_models_learning_rate_plans_its_cells_and_the_summaries(copy):
    edit_yaml(
        copy / "config" / "smoke_models.yaml",
        lambda c: c["models"]["tiny-qwen3"].update(training={"learning_rate": 0.002}),
    )
    result = snakemake("-n", *GRID, cwd=copy)
    cells = {"train_adapter": 1, "sample_structured": 1, "score_structured": 1}
    figures = {"plot_gallery": 1, "plot_training": 1}
    assert planned(result.stdout) == cells | figures | SUMMARIES
    assert "model=tiny-gptoss" not in result.stdout
    listed = snakemake("cells", *GRID, cwd=copy).stdout
    assert "3 done, 1 stale" in listed
    stale = "stale    results/tiny-qwen3/soft/seed11/structured/metrics.json"
    assert f"{stale}  train_adapter: params changed" in listed


def test_another_model_plans_its_cells_and_the_summaries(copy):
    edit_yaml(
        copy / "config" / "smoke_grid.yaml", lambda c: c["select"]["models"].append("tiny-llama")
    )
    result = snakemake("-n", *GRID, cwd=copy)
    cells = {"fetch_model": 1, "train_adapter": 1, "sample_structured": 2, "score_structured": 2}
    figures = {"plot_gallery": 1, "plot_training": 1}
    assert planned(result.stdout) == cells | figures | SUMMARIES
    assert "model=tiny-qwen3" not in result.stdout


def test_a_statement_plans_the_rules_that_run_it(copy):
    replace(
        copy / "workflow/scripts/calibration_tuning/evaluations/structured.py",
        "SIGNIFICANCE = 0.05",
        "SIGNIFICANCE = 0.01",
    )
    jobs = planned(snakemake("-n", *GRID, cwd=copy).stdout)
    assert jobs["score_structured"] == 4
    assert "train_adapter" not in jobs
    assert "sample_structured" not in jobs


def test_results_without_snakemakes_notes_are_adopted_by_touch(copy):
    shutil.rmtree(copy / ".snakemake")
    assert planned(snakemake("-n", *GRID, cwd=copy).stdout)["train_adapter"] == 2
    assert snakemake("--touch", *GRID, cwd=copy).returncode == 0
    result = snakemake("-n", *GRID, cwd=copy)
    assert "Nothing to be done" in result.stdout + result.stderr


def test_one_cell_can_be_forced_and_retrained(copy):
    cell = "results/tiny-gptoss/soft/seed11/structured/metrics.json"
    assert planned(snakemake("-n", cell, "-f", *GRID, cwd=copy).stdout) == {"score_structured": 1}
    retrained = planned(snakemake("-n", cell, *GRID, "-R", "train_adapter", cwd=copy).stdout)
    assert retrained == {"train_adapter": 1, "sample_structured": 1, "score_structured": 1}
