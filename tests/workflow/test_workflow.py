"""The workflow: plans, mistakes, lint, and what triggers a re-run; real snakemake, no models."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import jsonschema
import pytest
import yaml

from repository import ROOT, copy_repository, replace, snakemake

MODULES = """
    allocator arguments errors files output_space families packing number_tokens prefix_trie
    cdf_trie trie
    prompts planning chat sources checkpoints lora_dropout objectives divergences plain training
    branch_cache sampling statistics evaluations training_speed tables figures provenance
"""


def planned(output: str) -> dict[str, int]:
    """Jobs by rule of a dry run."""
    table = output.split("Job stats:")[1] if "Job stats:" in output else ""
    found = re.findall(r"^(\w+) +(\d+)$", table.split("total")[0], re.MULTILINE)
    return {rule: int(count) for rule, count in found}


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    return copy_repository(tmp_path_factory.mktemp("clone"))


def test_the_default_plan(clone):
    result = snakemake("-n", cwd=clone)
    assert planned(result.stdout) == {
        "generate_prompts": 1,
        "fetch_model": 1,
        "train_adapter": 2,
        "sample_structured": 3,
        "score_structured": 3,
        "collect_metrics": 1,
        "tabulate_structured": 1,
        "plot_gallery": 1,
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


@pytest.mark.parametrize("target", ["prompts", "models", "adapters", "samples", "tables"])
def test_collectors_plan(clone, target):
    result = snakemake("-n", target, cwd=clone)
    assert result.returncode == 0
    assert planned(result.stdout)[target] == 1


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("config/config.yaml", "learning_rate: 1.0e-3", "learning_rate: 1e-3", "YAML reads"),
        ("config/config.yaml", "learning_rate:", "learnin_rate:", "did you mean learning_rate"),
        ("config/config.yaml", "[smollm2-135m]", "[smolm2-135m]", "did you mean smollm2-135m"),
        (
            "config/config.yaml",
            "[base, soft, hard]",
            "[base, sotf]",
            "did you mean soft",
        ),
        ("config/families.yaml", "  chi:", "  khi:", "did you mean chi"),
        ("config/models.yaml", "license:", "licence:", "did you mean license"),
        ("config/models.yaml", "sha256: ", "sha256: x", "sha256"),
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


def clear_stale_lock(folder: Path) -> subprocess.CompletedProcess:
    program = ROOT / "workflow" / "scripts" / "clear_stale_lock.py"
    return subprocess.run([sys.executable, program], cwd=folder, capture_output=True, text=True)


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
