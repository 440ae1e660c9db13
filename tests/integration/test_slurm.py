"""The smoke grid through a real Slurm, and what happens when it is disturbed.

The GPUs are pretended: Slurm counts and assigns them, and the CPU stands for them. README has the
drills as a table for users.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
import yaml
from test_faults import ADAPTER, CELL, adapter_bytes, finished_files, start, wait_for

import slurm_cluster
from repository import GRID_CONFIGURATION, snakemake

SLURM = (
    *("--workflow-profile", "profiles/slurm"),
    # This Slurm has no accounting, and its answers are wanted at once.
    *("--slurm-status-command", "squeue", "--slurm-init-seconds-before-status-checks", "1"),
    *("--latency-wait", "5"),
)
RUN = (*GRID_CONFIGURATION, *SLURM)


@pytest.fixture(scope="module")
def cluster():
    """The folder of a running Slurm; not pytest's, since munged's must be open to all."""
    if reason := slurm_cluster.install():
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    try:
        slurm_cluster.start(folder)
        yield folder
    finally:
        slurm_cluster.stop(folder)
        shutil.rmtree(folder)


@pytest.fixture(autouse=True, scope="module")
def _pretend_gpus():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CALIBRATION_TUNING_PRETEND_GPUS", "1")
        yield


def edit_registry(folder: Path, change) -> None:
    path = folder / "config" / "smoke_models.yaml"
    registry = yaml.safe_load(path.read_text())
    change(registry)
    path.write_text(yaml.safe_dump(registry))


@pytest.fixture(scope="module")
def through_slurm(cluster, grid, tmp_path_factory):
    """The grid run through Slurm with a GPU a model job: its folder, and what snakemake said."""
    folder = Path(shutil.copytree(grid, tmp_path_factory.mktemp("through") / "slurm"))
    for name in ("results", "logs", ".snakemake", "benchmarks"):
        shutil.rmtree(folder / name)
    edit_registry(folder, lambda registry: registry["defaults"].update(gpu=1))
    started = time.monotonic()
    result = snakemake(*RUN, cwd=folder)
    seconds = time.monotonic() - started
    assert result.returncode == 0, result.stdout + result.stderr
    assert (folder / "results/report.html").exists()
    return folder, result.stdout + result.stderr, seconds


def submitted(output: str) -> dict[str, str]:
    """Rule by Slurm's number of the job, as snakemake says at submission."""
    found = re.findall(r"SLURM jobid (\d+) \(log: \S+/rule_(\w+)/", output)
    return dict(found)


def seen_by_slurm(job: str) -> dict[str, str]:
    shown = subprocess.run(
        ["scontrol", "--oneliner", "show", "job", job], capture_output=True, text=True, check=True
    ).stdout
    return dict(part.split("=", 1) for part in shown.split() if "=" in part)


def test_every_job_is_seen_by_slurm_with_what_it_asks_for(through_slurm):
    _, output, seconds = through_slurm
    jobs = submitted(output)
    rules = sorted(jobs.values())
    assert rules == sorted(
        ["train_adapter"] * 2 + ["sample_structured"] * 4 + ["score_structured"] * 4
    )
    lines = [f"{seconds:.0f} s from submission to report"]
    for job, rule in jobs.items():
        seen = seen_by_slurm(job)
        keys = ("JobState", "Partition", "TimeLimit", "TRES", "RunTime")
        lines.append(f"{job} {rule} {' '.join(seen[key] for key in keys)}")
        assert seen["JobState"] == "COMPLETED"
        if rule == "score_structured":
            assert (seen["Partition"], seen["TimeLimit"]) == ("cpu", "01:00:00")
            assert "mem=4000M" in seen["TRES"]
            assert "TresPerJob" not in seen
        else:
            assert (seen["Partition"], seen["TimeLimit"]) == ("gpu", "00:10:00")
            assert "mem=1000M" in seen["TRES"]
            assert seen["TresPerJob"] == "gres:gpu:1"
    print("\n".join(lines))


def test_the_results_are_those_of_a_local_run(through_slurm, grid):
    folder, _, _ = through_slurm
    names = [
        path.relative_to(grid)
        for path in sorted((grid / "results").rglob("*"))
        if path.name in ("metrics.json", "samples.parquet", "adapter_model.safetensors")
    ]
    assert len(names) == 4 + 4 + 2
    for name in names:
        ours, theirs = ((where / name).read_bytes() for where in (folder, grid))
        if name.name == "metrics.json":
            ours, theirs = json.loads(ours), json.loads(theirs)
            assert ours.pop("provenance").keys() == theirs.pop("provenance").keys()
        assert ours == theirs, name
    tables = [path for path in (grid / "results/tables").iterdir() if path.suffix != ".html"]
    assert len(tables) > 3
    for path in tables:
        assert (folder / "results/tables" / path.name).read_bytes() == path.read_bytes()


@pytest.fixture
def copy(through_slurm, tmp_path):
    return Path(shutil.copytree(through_slurm[0], tmp_path / "copy"))


def training_process(folder: Path) -> psutil.Process | None:
    """The process that trains in a folder, if there is one."""
    for process in psutil.process_iter(["cmdline", "cwd"]):
        command = process.info["cmdline"] or []
        if process.info["cwd"] == str(folder) and "train_adapter.py" in " ".join(command[1:2]):
            return process
    return None


def start_and_hold(folder: Path, *options: str) -> tuple[subprocess.Popen, psutil.Process, str]:
    """Train one cell anew through Slurm and stop the job's process at its first checkpoint."""
    shutil.rmtree(folder / CELL)
    run = start(folder, *RUN, *options, ADAPTER)
    pattern = f"{CELL}/work-*/checkpoint-*/trainer_state.json"
    wait_for(lambda: list(folder.glob(pattern)), run)
    process = training_process(folder)
    process.send_signal(signal.SIGSTOP)
    listed = subprocess.run(
        ["squeue", "--noheader", "--states=RUNNING", "--format=%i %Z"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    (job,) = [line.split()[0] for line in listed.splitlines() if line.endswith(str(folder))]
    return run, process, job


def check_survived(folder: Path, before: dict, adapter: bytes, output: str) -> None:
    """The cell is whole and as if nothing had happened, and no other file was touched."""
    log = (folder / "logs/train_adapter" / CELL.removeprefix("results/")).with_suffix(".log")
    assert "resuming from" in log.read_text(), output
    assert adapter_bytes(folder) == adapter
    assert finished_files(folder) == before
    assert set(submitted(output).values()) == {"train_adapter"}


def test_a_cancelled_job_is_resumed_by_the_next_call(copy):
    before, adapter = finished_files(copy), adapter_bytes(copy)
    run, process, job = start_and_hold(copy, "--retries", "0")
    subprocess.run(["scancel", job], check=True)
    output = run.communicate(timeout=120)[0]
    assert run.returncode != 0
    assert "CANCELLED" in output
    assert f"logs/train_adapter/{CELL.removeprefix('results/')}.log" in output
    process.wait(60)
    again = snakemake(*RUN, ADAPTER, cwd=copy)
    assert again.returncode == 0, again.stdout
    check_survived(copy, before, adapter, again.stdout + again.stderr)


def test_a_job_over_its_memory_gets_more(copy):
    before, adapter = finished_files(copy), adapter_bytes(copy)
    edit_registry(copy, lambda registry: registry["models"]["tiny-qwen3"].update(memory="400MB"))
    shutil.rmtree(copy / CELL)
    result = snakemake(*RUN, ADAPTER, cwd=copy)
    output = result.stdout + result.stderr
    assert result.returncode == 0, output
    asked = [re.search(r"mem=(\d+)M", seen_by_slurm(job)["TRES"])[1] for job in submitted(output)]
    states = [seen_by_slurm(job)["JobState"] for job in submitted(output)]
    assert asked[0] == "400"
    # Watched by sampling, as here, it is a failure whose log says why; cgroups name it.
    assert states[0] in ("FAILED", "OUT_OF_MEMORY")
    assert "memory limit" in output
    assert asked[1] == "800"
    assert states[1] == "COMPLETED"
    assert adapter_bytes(copy) == adapter
    assert finished_files(copy) == before


def test_a_job_over_its_time_gets_more_and_resumes(copy):
    before, adapter = finished_files(copy), adapter_bytes(copy)
    edit_registry(copy, lambda registry: registry["models"]["tiny-qwen3"].update(runtime="1m"))
    run, _, job = start_and_hold(copy)
    output = run.communicate(timeout=300)[0]
    assert run.returncode == 0, output
    assert seen_by_slurm(job)["JobState"] == "TIMEOUT"
    limits = [seen_by_slurm(number)["TimeLimit"] for number in submitted(output)]
    assert limits[:2] == ["00:01:00", "00:02:00"]
    check_survived(copy, before, adapter, output)


def test_a_dead_controller(copy, cluster):
    """The job goes on, but the plugin loses sight of it and waits for ever: ended, called again."""
    before, adapter = finished_files(copy), adapter_bytes(copy)
    run, process, _ = start_and_hold(copy)
    slurm_cluster.kill(cluster, "slurmctld")
    process.send_signal(signal.SIGCONT)
    process.wait(60)
    slurm_cluster.start_controller(cluster)
    try:
        run.wait(15)
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGINT)  # Ctrl-C
        run.wait(60)
    again = snakemake(*RUN, ADAPTER, cwd=copy)
    assert again.returncode == 0, again.stdout
    assert adapter_bytes(copy) == adapter
    assert finished_files(copy) == before


def test_a_killed_snakemake_leaves_jobs_that_are_found_before_the_next_run(copy):
    before, adapter = finished_files(copy), adapter_bytes(copy)
    run, process, job = start_and_hold(copy)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    clear = [sys.executable, "workflow/scripts/clear_stale_lock.py"]
    refused = subprocess.run(clear, cwd=copy, capture_output=True, text=True)
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert f"scancel {job}" in refused.stderr
    # Unlocked by hand all the same, a second job does not write beside the first one.
    assert snakemake(*RUN, "--unlock", cwd=copy).returncode == 0
    beside = snakemake(*RUN, "--retries", "0", ADAPTER, cwd=copy)
    assert beside.returncode != 0
    assert "another job is at work on this cell" in beside.stdout + beside.stderr
    subprocess.run(["scancel", job], check=True)
    process.wait(60)
    again = snakemake(*RUN, ADAPTER, cwd=copy)
    assert again.returncode == 0, again.stdout
    check_survived(copy, before, adapter, again.stdout + again.stderr)
