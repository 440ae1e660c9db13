"""Remove the lock that a killed snakemake left, unless a run or one of its jobs is still alive.

Snakemake locks its folder and cannot tell a killed run from a living one; `make run` calls this
first, so that it goes on after any kill. Call it yourself before `snakemake` where a run on a
cluster was killed: it knows of jobs that are still in Slurm's queue.

Example:
    python workflow/scripts/clear_stale_lock.py
"""

import os
import shutil
import subprocess
from pathlib import Path

import psutil

from calibration_tuning import errors

LOCKS = Path(".snakemake/locks")
SLURM_LOGS = Path(".snakemake/slurm_logs")


def running_here() -> list[int]:
    """Processes of a snakemake or of one of its jobs whose working folder is this one."""
    found = []
    own = {psutil.Process().pid, *(parent.pid for parent in psutil.Process().parents())}
    for process in psutil.process_iter(["cmdline", "cwd"]):
        command = " ".join(process.info["cmdline"] or ())
        ours = "snakemake" in command or "workflow/scripts/" in command
        if ours and process.info["cwd"] == str(Path.cwd()) and process.pid not in own:
            found.append(process.pid)
    return found


def queued_here() -> list[str]:
    """Slurm jobs, waiting or running, that an earlier run submitted from this folder."""
    # No run here was on a cluster, or the folder was brought here from one.
    if not SLURM_LOGS.exists() or shutil.which("squeue") is None:
        return []
    query = ["squeue", "--noheader", f"--user={os.getuid()}", "--format=%i %Z"]
    result = subprocess.run(query, capture_output=True, text=True)
    if result.returncode:
        raise errors.InputError(
            "whether jobs of an earlier run are still in the queue cannot be known, since squeue "
            f"does not answer ({result.stderr.strip()}); call again when Slurm does"
        )
    jobs = [line.split(" ", 1) for line in result.stdout.splitlines()]
    return [job for job, folder in jobs if folder == str(Path.cwd())]


def main() -> None:
    running, queued = running_here(), queued_here()
    if queued:
        raise errors.InputError(
            f"Slurm jobs of an earlier run are still at work in this folder; wait for them or "
            f"cancel them, then call again: scancel {' '.join(queued)}"
        )
    if running:
        raise errors.InputError(
            f"a run in this folder is still at work (process {', '.join(map(str, running))}); "
            "wait for it or end it, then call again"
        )
    for lock in LOCKS.glob("*.lock"):
        lock.unlink()
        print(f"removed {lock}, left by a run that was killed")


if __name__ == "__main__":
    errors.run(main)
