"""The pipeline end to end on a tiny random model, and what happens when it is disturbed."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pandas as pd
import pytest
import yaml
from snakemake.utils import update_config

from calibration_tuning import planning
from repository import copy_repository, replace, snakemake
from tiny_models import save_tiny

SMOKE = ("--configfile", "config/smoke.yaml", "--cores", "2")
CELL = "results/tiny-qwen3/soft/seed11"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished smoke run, in a copy of the repository."""
    folder = copy_repository(tmp_path_factory.mktemp("smoke"))
    save_tiny("qwen3", folder / "resources" / "tiny" / "qwen3")
    result = snakemake(*SMOKE, cwd=folder)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder, result


def program(folder: Path, name: str, *arguments: str) -> list[str]:
    return [sys.executable, str(folder / "workflow" / "scripts" / name), *map(str, arguments)]


@pytest.fixture
def plan(run, monkeypatch):
    """The plan of the smoke configuration, as the Snakefile makes it."""
    folder, _ = run
    monkeypatch.chdir(folder)
    config = planning.load_yaml("config/config.yaml")
    update_config(config, planning.load_yaml("config/smoke.yaml"))
    return planning.load_plan(config, ["config/smoke.yaml"], folder)


def test_all_results_are_there(run):
    folder, result = run
    for method in ("base", "soft", "hard"):
        cell = folder / f"results/tiny-qwen3/{method}/seed11"
        metrics = json.loads((cell / "structured/metrics.json").read_text())
        schema = yaml.safe_load((folder / "workflow/schemas/metrics.schema.json").read_text())
        jsonschema.validate(metrics, schema)
        assert metrics["provenance"]["seed"] == 11
        assert (metrics["provenance"]["adapter_sha256"] is None) == (method == "base")
        samples = pd.read_parquet(cell / "structured/samples.parquet")
        assert len(samples) == 42 * 20
        assert not list(cell.glob("**/work-*"))
    for name in ("structured.csv", "structured.md", "structured.tex", "metrics.csv"):
        assert (folder / "results/tables" / name).stat().st_size > 0
    assert "Sequence KL" in result.stdout + result.stderr  # the headline numbers
    report = (folder / "results/report.html").read_text()
    for part in ("gallery", "structured.html", "training", "training_speed"):
        assert part in report
    speed = pd.read_csv(folder / "results/tables/training_speed/tiny-qwen3.csv")
    ways = ["soft-exact", "hard", "one-value", "plain-soft", "plain-hard"]
    assert sorted(speed["Way"]) == sorted(ways)


def test_the_adapter_is_one_that_anyone_can_load(run):
    from peft import PeftModel

    from tiny_models import build_model

    folder, _ = run
    model = PeftModel.from_pretrained(build_model("qwen3"), folder / CELL / "adapter")
    assert model.peft_config["default"].r == 16


def test_a_second_run_does_nothing(run):
    folder, _ = run
    result = snakemake(*SMOKE, cwd=folder)
    assert "Nothing to be done" in result.stdout + result.stderr


def test_a_killed_training_gives_the_same_adapter(run, plan, tmp_path):
    folder, _ = run
    arguments = [
        *("--model", folder / "resources/models/tiny-qwen3/manifest.json"),
        *("--prompts", folder / "results/prompts/train.jsonl"),
        *(
            "--settings",
            planning.canonical(plan.training_settings("tiny-qwen3", "soft")),
            "--seed",
            "11",
            "--threads",
            "1",
        ),
        *("--output-directory", tmp_path / "cell"),
    ]
    command = program(folder, "train_adapter.py", *arguments)
    # Relative like Snakemake's, since the adapter's configuration names its base.
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL)
    deadline = time.time() + 120
    while time.time() < deadline and process.poll() is None:
        if list((tmp_path / "cell").glob("work-*/checkpoint-*/trainer_state.json")):
            break
        time.sleep(0.05)
    assert process.poll() is None, "the training ended before it could be killed"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "cell" / "adapter").exists()
    resumed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert "resuming from" in resumed.stderr
    hashes = {
        hashlib.sha256((cell / "adapter/adapter_model.safetensors").read_bytes()).hexdigest()
        for cell in (folder / CELL, tmp_path / "cell")
    }
    assert len(hashes) == 1


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 KiB."""
    mount = tmp_path / "small"
    mount.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", mount], capture_output=True
        ).returncode
    ):
        pytest.skip("mounting a small file system needs root")
    yield mount
    subprocess.run(["umount", mount], check=True)


def test_a_full_disk_is_one_line_and_loses_nothing(run, plan, small_disk):
    folder, _ = run
    command = program(
        folder,
        "sample_structured.py",
        *("--model", folder / "resources/models/tiny-qwen3/manifest.json"),
        *("--prompts-directory", folder / "results/prompts"),
        *(
            "--settings",
            planning.canonical(plan.evaluation_settings("tiny-qwen3", "soft", "structured")),
            "--seed",
            "11",
        ),
        *("--output-directory", small_disk),
    )
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 1
    assert "No space left on device" in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr
    kept = list(small_disk.glob("work-*/*.json"))
    assert kept
    assert all(json.loads(path.read_text())["samples"] for path in kept)


@pytest.fixture
def other_model(run, tmp_path):
    """A copy of the finished run, and the folder of another tiny model in it."""
    folder = Path(shutil.copytree(run[0], tmp_path / "copy"))
    return folder, save_tiny("llama", folder / "resources" / "tiny" / "llama")


def test_a_tokenizer_without_an_end_of_turn_token(other_model):
    folder, model = other_model
    replace(model / "chat_template.jinja", "<end>", "")
    result = snakemake(
        *SMOKE, "results/tiny-llama/soft/seed11/adapter/adapter_model.safetensors", cwd=folder
    )
    assert result.returncode != 0
    log = (folder / "logs/train_adapter/tiny-llama/soft/seed11.log").read_text()
    assert "no end-of-turn token" in log.strip().splitlines()[-1]
    assert "Traceback" not in log
    assert "no end-of-turn token" in result.stdout + result.stderr  # shown, not only logged


def test_a_model_that_cannot_be_resolved_stops_only_what_needs_it(other_model):
    folder, model = other_model
    shutil.rmtree(model)
    good = "results/tiny-qwen3/hard/seed12/structured/metrics.json"
    bad = "results/tiny-llama/hard/seed11/structured/metrics.json"
    result = snakemake(*SMOKE, good, bad, cwd=folder)
    assert result.returncode != 0
    assert (folder / good).exists()
    log = (folder / "logs/fetch_model/tiny-llama.log").read_text().strip()
    assert log.splitlines()[-1].startswith("error: path:resources/tiny/llama: no such file")
