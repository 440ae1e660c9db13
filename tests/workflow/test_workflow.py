"""The workflow: plans, mistakes, lint, and what triggers a re-run; real snakemake, no models."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import jsonschema
import pytest
import yaml

from calibration_tuning.planning import STAGES, load_yaml
from repository import ROOT, copy_repository, planned, replace, snakemake

MODULES = """
    allocator arguments errors files output_space families packing number_tokens prefix_trie
    cdf_trie trie prompts planning chat prompting sources checkpoints lora_dropout devices
    provenance data_sets texts benchmark_tasks token_weights objectives token_objectives
    divergences plain training branch_cache sampling statistics evaluations replay trade_off
    training_speed tables figures transfer_figures retention_figures
"""


MODEL_RULES = (
    *("sample_structured", "score_structured", "sample_open_ended", "score_open_ended"),
    *("sample_mcq", "score_mcq", "generate_novelty", "partition_novelty", "score_novelty"),
)
"""The rules that run once a cell."""
RETENTION_RULES = (
    *("sample_benchmarks", "score_benchmarks", "sample_perplexity", "score_perplexity"),
)
"""As many, but for methods without training that only ask or draw in another way."""


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    return copy_repository(tmp_path_factory.mktemp("clone"))


def test_the_default_plan(clone):
    result = snakemake("-n", cwd=clone)
    assert planned(result.stdout) == {
        "generate_prompts": 1,
        "fetch_model": 2,  # and the encoder
        "fetch_data": 1 + 1,
        "fetch_task": 3,
        "train_adapter": 2,
        **dict.fromkeys(MODEL_RULES, 4),
        **dict.fromkeys(RETENTION_RULES, 3),
        "collect_metrics": 1,
        "compare_retention": 1,
        "tabulate_evaluation": 6,
        "tabulate_trade_off": 1,
        "plot_gallery": 1,
        "plot_trade_off": 1,
        "plot_transfer": 5,
        "plot_training": 1,
        "write_report": 1,
        "all": 1,
    }


def test_one_cell_plans_that_cell_only(clone):
    cell = "results/gemma3-270m/hard/seed3/structured/metrics.json"
    assert planned(snakemake("-n", cell, cwd=clone).stdout) == {
        "generate_prompts": 1,
        "fetch_model": 1,
        "train_adapter": 1,
        "sample_structured": 1,
        "score_structured": 1,
    }


def test_the_grid_of_the_paper(clone):
    """12 models x (base, string-seed, soft, hard) x 4 evaluations, 2 more of 3 of them."""
    result = snakemake("-n", "--configfile", "config/paper.yaml", cwd=clone)
    assert planned(result.stdout) == {
        "generate_prompts": 1,
        "fetch_model": 12 + 2,  # NoveltyBench's classifier and reward model
        "fetch_data": 2 + 7,
        "fetch_task": 6,
        "train_adapter": 12 * 2,
        **dict.fromkeys(MODEL_RULES, 12 * 4),
        **dict.fromkeys(RETENTION_RULES, 12 * 3),
        "collect_metrics": 1,
        "compare_retention": 12,
        "tabulate_evaluation": 6,
        "tabulate_trade_off": 1,
        "plot_gallery": 12,
        "plot_trade_off": 12,
        "plot_transfer": 12 * 5,
        "plot_training": 12,
        "write_report": 1,
        "all": 1,
    }


@pytest.mark.parametrize("target", ["prompts", "fetch", "adapters", "samples", "tables"])
def test_collectors_plan(clone, target):
    result = snakemake("-n", target, cwd=clone)
    assert result.returncode == 0
    assert planned(result.stdout)[target] == 1


@pytest.mark.parametrize(
    ("target", "cells", "trained", "models"),
    [
        ("gemma-3-27b", 4, 2, 1),
        ("soft", 12, 12, 12),
        ("string-seed", 12, 0, 12),
        ("base", 12, 0, 12),
    ],
)
def test_a_model_or_a_method_is_a_target(clone, target, cells, trained, models):
    jobs = planned(snakemake("-n", target, "--configfile", "config/paper.yaml", cwd=clone).stdout)
    assert jobs["score_structured"] == jobs["sample_structured"] == cells
    assert jobs.get("train_adapter", 0) == trained
    assert jobs["fetch_model"] == models + 2  # and NoveltyBench's two judges


def test_a_model_that_is_not_selected_is_a_target_too(clone):
    jobs = planned(snakemake("-n", "gemma3-270m", cwd=clone).stdout)
    assert {jobs[rule] for rule in MODEL_RULES} == {4}


def test_the_study_has_every_method_and_decoding_where_it_belongs(clone):
    """17 methods: 7 decode the untuned model in another way, for two evaluations only."""
    jobs = planned(snakemake("-n", "--configfile", "config/study.yaml", cwd=clone).stdout)
    assert jobs["train_adapter"] == 7 * 3
    assert jobs["sample_replay"] == 1  # for the four methods that replay, and all seeds
    assert jobs["sample_structured"] == jobs["sample_open_ended"] == 17 * 3
    assert jobs["sample_mcq"] == jobs["generate_novelty"] == 10 * 3
    assert jobs["sample_benchmarks"] == jobs["sample_perplexity"] == 8 * 3
    assert jobs["plot_decoding"] == 1


def test_judges_and_data_are_fetched_before_a_cluster_needs_them(clone):
    jobs = planned(snakemake("-n", "fetch", "--configfile", "config/paper.yaml", cwd=clone).stdout)
    assert jobs == {"fetch_model": 14, "fetch_data": 9, "fetch_task": 6, "fetch": 1}


EXCLUDE = """
exclude:
  - {model: gpt-oss-20b, method: hard, reason: does not fit}
  - {model: qwen3-4b, method: soft, seed: 12, reason: node failed}
"""


def test_no_stage_can_be_hidden_by_a_model_or_a_method(clone):
    """Every target that could be the name of one is refused as such."""
    plan = load_yaml(ROOT / "config" / "config.yaml")
    models = load_yaml(ROOT / plan["models_file"])["models"]
    listed = snakemake("--list-target-rules", cwd=clone).stdout.splitlines()
    names = {line.split(" (")[0] for line in listed}  # a description may follow in brackets
    slugs = {name for name in names if re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name)}
    assert {"all", "cells", *models, *plan["methods"]} <= slugs
    assert slugs - set(models) - set(plan["methods"]) == set(STAGES)


def test_excluded_cells_are_left_out_and_listed_with_their_reason(clone, tmp_path):
    extra = tmp_path / "exclude.yaml"
    extra.write_text("select: {seeds: [11, 12]}" + EXCLUDE)
    files = ("--configfile", "config/paper.yaml", str(extra))
    jobs = planned(snakemake("-n", *files, cwd=clone).stdout)
    assert jobs["score_structured"] == 12 * 4 * 2 - 3
    assert jobs["train_adapter"] == 12 * 2 * 2 - 3
    cell = "results/gpt-oss-20b/hard/seed11/structured/metrics.json"
    assert snakemake("-n", cell, *files, cwd=clone).returncode == 0  # by its path it still is
    listed = snakemake("--cores", "1", "cells", *files, cwd=clone).stdout.splitlines()
    assert "left out gpt-oss-20b/hard/seed11: does not fit" in listed
    assert "left out qwen3-4b/soft/seed12: node failed" in listed
    assert not any("qwen3-4b/soft/seed12/structured" in line for line in listed)
    assert "510 missing, 3 left out" in listed
    missing = (
        "missing  results/qwen3-4b/soft/seed11/structured/metrics.json  train_adapter: missing"
    )
    assert missing in listed


def test_a_model_without_trained_cells_has_no_training_curves(clone, tmp_path):
    extra = tmp_path / "exclude.yaml"
    cells = [{"model": "qwen3-4b", "method": m, "reason": "x"} for m in ("soft", "hard")]
    extra.write_text(yaml.safe_dump({"exclude": cells}))
    files = ("--configfile", "config/paper.yaml", str(extra))
    jobs = planned(snakemake("-n", *files, cwd=clone).stdout)
    assert (jobs["plot_gallery"], jobs["plot_training"]) == (12, 11)


def test_gated_models_are_fetched_first(clone):
    """The order of a dry run is not that of execution, so the priorities are looked at."""
    registry = yaml.safe_load((ROOT / "config" / "models.yaml").read_text())["models"]
    gated = {slug for slug, entry in registry.items() if "gate_page" in entry}
    assert gated == {slug for slug in registry if re.match(r"gemma-3-|llama-", slug)}
    result = snakemake("-n", "fetch", "--configfile", "config/paper.yaml", cwd=clone)
    jobs = result.stdout.split("rule fetch_model:")[1:]
    first = {re.search("model=(.*)", job)[1] for job in jobs if "priority: 100" in job}
    assert first == gated


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("config/config.yaml", "learning_rate: 1.0e-3", "learning_rate: 1e-3", "YAML reads"),
        ("config/families.yaml", "  chi:", "  khi:", "did you mean chi"),
        ("config/models.yaml", "license:", "licence:", "did you mean license"),
        ("config/models.yaml", "sha256: ", "sha256: x", "sha256"),
        ("config/models.yaml", "  gemma3-270m:", "  soft:", "this is the name of a method too"),
        ("config/config.yaml", "  soft-exact:", "  cells:", "methods.cells: this is the name of a"),
        (
            "config/config.yaml",
            "training_defaults:",
            "exclude: [{model: smollm, method: hard, reason: slow}]\ntraining_defaults:",
            "exclude: model 'smollm' does not exist; did you mean",
        ),
    ],
)
def test_a_mistake_is_one_line_and_an_exit_code(clone, tmp_path, file, old, new, message):
    copy = Path(shutil.copytree(clone, tmp_path / "copy"))
    text = (copy / file).read_text()
    assert old in text
    (copy / file).write_text(text.replace(old, new))
    result = snakemake("-n", cwd=copy)
    assert result.returncode != 0
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert message in lines[0]
    assert "Traceback" not in result.stderr


def test_an_unknown_cell_is_refused(clone):
    result = snakemake("-n", "results/no-model/soft/seed1/structured/metrics.json", cwd=clone)
    assert result.returncode != 0
    assert "MissingRuleException" in result.stdout + result.stderr


@pytest.fixture(scope="module")
def prompts_made(clone, tmp_path_factory):
    """A clone whose first stage has run."""
    copy = Path(shutil.copytree(clone, tmp_path_factory.mktemp("made") / "copy"))
    assert snakemake("--cores", "1", "prompts", cwd=copy).returncode == 0
    return copy


@pytest.mark.parametrize(
    ("change", "reruns"),
    [
        (lambda c: [p.touch() for p in c.rglob("*") if p.is_file()], False),
        (lambda c: replace(c / "config/families.yaml", "# Parameter grids", "# The grids"), True),
        (
            lambda c: replace(
                c / "workflow/scripts/calibration_tuning/prompts.py", '"""From parameter', '"""Of'
            ),
            False,
        ),
        (
            lambda c: replace(
                c / "workflow/scripts/calibration_tuning/prompts.py",
                "rows = [dict(",
                "rows = [ dict(",
            ),
            False,
        ),
        (
            lambda c: replace(
                c / "workflow/scripts/calibration_tuning/families.py", '".6g"', '".7g"'
            ),
            True,
        ),
        (lambda c: replace(c / "config/config.yaml", "epochs: ", "epochs: 1"), False),
    ],
    ids=["touch", "families file", "docstring", "layout", "code", "another stage's setting"],
)
def test_what_makes_prompts_again(prompts_made, tmp_path, change, reruns):
    copy = Path(shutil.copytree(prompts_made, tmp_path / "copy"))
    change(copy)
    jobs = planned(snakemake("-n", "prompts", cwd=copy).stdout)
    assert ("generate_prompts" in jobs) == reruns


def test_every_rule_has_a_docstring_a_log_and_an_environment():
    for path in (ROOT / "workflow" / "rules").glob("*.smk"):
        for rule in path.read_text().split("\nrule ")[1:]:
            assert '"""' in rule.splitlines()[1], rule.splitlines()[0]
            if "shell:" in rule:
                assert "log:" in rule
                assert "conda:" in rule


def test_the_environment_file_has_the_pins_of_pyproject():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    environment = yaml.safe_load((ROOT / "envs" / "calibration.yaml").read_text())
    assert environment["dependencies"][-1]["pip"] == project["dependencies"]
    assert environment["dependencies"][0] == "python=3.11"


def test_the_container_takes_its_pins_from_pyproject():
    """Nothing is pinned there, so nothing can drift; what it copies and starts from exists."""
    recipe = (ROOT / "envs" / "calibration.def").read_text()
    assert "==" not in recipe
    assert "From: python:3.11-" in recipe
    copied = re.search(r"%files\n((?:    .*\n)+)", recipe)[1].split()[::2]
    assert "pyproject.toml" in copied
    assert all((ROOT / name).exists() for name in copied)


def test_the_cluster_plugin_has_the_same_pin_for_users_and_tests():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = extras["optional-dependencies"]
    assert set(extras["cluster"]) <= set(extras["development"])


def test_every_schema_is_a_schema():
    for path in (ROOT / "workflow" / "schemas").iterdir():
        jsonschema.Draft202012Validator.check_schema(yaml.safe_load(path.read_text()))


def test_modules_import_only_from_those_before_them():
    """Data flows one way; the order is the one of CONTRIBUTING.md."""
    order = MODULES.split()
    package = ROOT / "workflow" / "scripts" / "calibration_tuning"
    for path in package.rglob("*.py"):
        module = path.relative_to(package).parts[0].removesuffix(".py")
        if module == "__init__":
            continue
        text = path.read_text()
        imported = re.findall(r"^\s*from calibration_tuning\.(\w+)", text, re.MULTILINE)
        for names in re.findall(
            r"^\s*from calibration_tuning import ([\w, ]+)$", text, re.MULTILINE
        ):
            imported += names.split(", ")
        for other in imported:
            assert other == module or order.index(other) < order.index(module), (module, other)


def clear_stale_lock(folder: Path, **environment: str) -> subprocess.CompletedProcess:
    program = ROOT / "workflow" / "scripts" / "clear_stale_lock.py"
    return subprocess.run(
        [sys.executable, program],
        cwd=folder,
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )


def test_a_stale_lock_is_removed_and_a_living_run_is_left_alone(tmp_path):
    locks = tmp_path / ".snakemake" / "locks"
    locks.mkdir(parents=True)
    (locks / "0.input.lock").write_text("results/report.html\n")
    sleeping = [sys.executable, "-c", "import time; time.sleep(60)  # workflow/scripts/train"]
    job = subprocess.Popen(sleeping, cwd=tmp_path)
    try:
        refused = clear_stale_lock(tmp_path)
        assert refused.returncode == 1
        assert refused.stderr.startswith("error: a run in this folder is still at work")
        assert str(job.pid) in refused.stderr
        assert list(locks.iterdir())
    finally:
        job.kill()
        job.wait()
    assert clear_stale_lock(tmp_path).returncode == 0
    assert not list(locks.iterdir())


@pytest.mark.parametrize(
    ("squeue", "message"),
    [
        (None, None),  # the folder was copied from a cluster
        ("exit 1", "whether jobs of an earlier run are still in the queue cannot be known"),
        ('echo "7 $PWD"; echo "8 /elsewhere"', "call again: scancel 7\n"),
        ('echo "8 /elsewhere"', None),
    ],
)
def test_a_lock_is_kept_while_slurm_may_have_jobs_of_the_folder(tmp_path, squeue, message):
    for name in ("locks", "slurm_logs"):
        (tmp_path / ".snakemake" / name).mkdir(parents=True)
    (tmp_path / ".snakemake" / "locks" / "0.input.lock").touch()
    programs = tmp_path / "programs"
    programs.mkdir()
    if squeue:
        (programs / "squeue").write_text(f"#!/bin/sh\n{squeue}\n")
        (programs / "squeue").chmod(0o755)
    result = clear_stale_lock(tmp_path, PATH=str(programs))
    assert (result.returncode == 1) == (message is not None)
    assert (message or "") in result.stderr
    assert bool(list((tmp_path / ".snakemake" / "locks").iterdir())) == (message is not None)
