"""Remove the lock that a killed snakemake left, unless a run or one of its jobs is still alive.

Snakemake locks its folder and cannot tell a killed run from a living one; `make run` calls this
first, so that it goes on after any kill.

Example:
    python workflow/scripts/clear_stale_lock.py
"""

from pathlib import Path

import psutil

from calibration_tuning import errors

LOCKS = Path(".snakemake/locks")


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


def main() -> None:
    running = running_here()
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
