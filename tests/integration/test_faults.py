"""Fault drills on a finished grid: what is broken is found and named, and nothing else is redone.

README has the same drills as a table for users.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from repository import GRID, environment, replace, snakemake

CELL = "results/tiny-qwen3/soft/seed11"
METRICS = f"{CELL}/structured/metrics.json"
ADAPTER = f"{CELL}/adapter/adapter_model.safetensors"


@pytest.fixture
def copy(grid, tmp_path):
    return Path(shutil.copytree(grid, tmp_path / "copy"))


def start(folder: Path, *arguments: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "snakemake", *arguments]
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_for(find, process: subprocess.Popen, seconds: float = 120):
    """What a function finds once it finds something, while the process lives."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = find()
        if found:
            return found
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.05)
    raise AssertionError("waited in vain")


def finished_files(folder: Path) -> dict[Path, tuple]:
    """Every file of the other cells, with its time and content."""
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes())
        for path in (folder / "results").rglob("*")
        if path.is_file() and folder / CELL not in path.parents
    }


def make_again(message: str, folder: Path) -> subprocess.CompletedProcess:
    """Do what a message says: the command after 'make it again:' or 'train it again:'."""
    command = message.split(" again: snakemake ")[1].splitlines()[0]
    # As the user would: with the configuration of the run.
    return snakemake(*GRID, *shlex.split(command), cwd=folder)


def start_training_again(folder: Path) -> tuple[subprocess.Popen, psutil.Process]:
    """A run that trains one cell anew, and its job, held still at its first checkpoint."""
    shutil.rmtree(folder / CELL)
    run = start(folder, *GRID, ADAPTER)
    pattern = f"{CELL}/work-*/checkpoint-*/trainer_state.json"
    wait_for(lambda: list(folder.glob(pattern)), run)
    (job,) = [
        process
        for process in psutil.Process(run.pid).children(recursive=True)
        if "train_adapter.py" in " ".join(process.cmdline()[1:2])
    ]
    job.suspend()
    return run, job


def test_a_killed_job_is_resumed(copy):
    before, adapter = finished_files(copy), adapter_bytes(copy)
    run, job = start_training_again(copy)
    job.kill()
    output = run.communicate(timeout=120)[0]
    assert run.returncode != 0
    assert f"logs/train_adapter/{CELL.removeprefix('results/')}.log" in output
    assert not (copy / CELL / "adapter").exists()
    again = snakemake(*GRID, ADAPTER, cwd=copy)
    assert again.returncode == 0, again.stdout
    assert "resuming from" in again.stdout + again.stderr
    assert adapter_bytes(copy) == adapter
    assert finished_files(copy) == before


def adapter_bytes(folder: Path) -> bytes:
    return (folder / ADAPTER).read_bytes()


def test_a_killed_snakemake_leaves_a_lock_and_its_work_is_resumed(copy):
    before, adapter = finished_files(copy), adapter_bytes(copy)
    run, job = start_training_again(copy)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    job.wait(30)
    locked = snakemake(*GRID, ADAPTER, cwd=copy)
    assert locked.returncode != 0
    assert "--unlock" in locked.stdout + locked.stderr
    clear = [sys.executable, "workflow/scripts/clear_stale_lock.py"]  # what `make run` calls
    assert subprocess.run(clear, cwd=copy).returncode == 0
    again = snakemake(*GRID, ADAPTER, cwd=copy)
    assert again.returncode == 0, again.stdout
    assert "resuming from" in again.stdout + again.stderr
    assert adapter_bytes(copy) == adapter
    assert finished_files(copy) == before


def test_a_second_snakemake_at_once_is_refused_and_the_first_goes_on(copy):
    run, job = start_training_again(copy)
    second = snakemake(*GRID, METRICS, cwd=copy)
    clear = [sys.executable, "workflow/scripts/clear_stale_lock.py"]
    cleared = subprocess.run(clear, cwd=copy, capture_output=True, text=True)
    job.resume()
    output = run.communicate(timeout=120)[0]
    assert run.returncode == 0, output
    assert second.returncode != 0
    assert "Directory cannot be locked" in second.stdout + second.stderr
    assert cleared.returncode == 1
    assert "a run in this folder is still at work" in cleared.stderr


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif how == "another number":  # whole JSON, but no metrics
        replace(path, '"samples": 20', '"samples": "many"')


@pytest.mark.parametrize(
    ("file", "how", "found_by"),
    [
        (ADAPTER, "cut", METRICS),
        (f"{CELL}/structured/samples.parquet", "cut", METRICS),
        (METRICS, "another number", "results/tables/metrics.csv"),
    ],
)
def test_a_damaged_file_is_named_and_made_again_on_request(copy, file, how, found_by):
    whole = (copy / file).read_bytes()
    table = (copy / "results/tables/structured.csv").read_bytes()
    damage(copy / file, how)
    run = snakemake(*GRID, found_by, cwd=copy)
    output = run.stdout + run.stderr
    assert run.returncode != 0
    lines = [line for line in output.splitlines() if line.startswith("error: ")]
    assert lines
    assert all(file in line for line in lines), lines
    assert "Traceback" not in output
    again = make_again(lines[0], copy)
    assert again.returncode == 0, again.stdout + again.stderr
    assert without_provenance((copy / file).read_bytes()) == without_provenance(whole)
    assert snakemake(*GRID, "results/tables/structured.csv", cwd=copy).returncode == 0
    assert (copy / "results/tables/structured.csv").read_bytes() == table


def without_provenance(content: bytes) -> bytes:
    """What a file says but for when and how it was made, which metrics say at their end."""
    return content.split(b'"provenance"')[0]


def test_results_that_cannot_be_written_are_one_line(copy):
    results = copy / "results"
    mounts = (["--bind", results, results], ["-o", "remount,ro,bind", results])
    if os.geteuid() != 0 or any(
        subprocess.run(["mount", *mount], capture_output=True).returncode for mount in mounts
    ):
        pytest.skip("mounting a read-only file system needs root")
    cell = f"{CELL.replace('seed11', 'seed12')}/structured/metrics.json"
    try:
        run = snakemake(*GRID, cell, cwd=copy)
    finally:
        subprocess.run(["umount", results], check=True)
    output = run.stdout + run.stderr
    assert run.returncode != 0
    (line,) = [line for line in output.splitlines() if line.startswith("error: ")]
    assert line.startswith(f"error: {results}: cannot be written to; ")
    assert "Traceback" not in output
    after = snakemake("-n", *GRID, cwd=copy)  # nothing is lost
    assert "Nothing to be done" in after.stdout + after.stderr
