"""Copies of the repository and real snakemake runs in them, for workflow and integration tests."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
GRID_CONFIGURATION = ("--configfile", "config/smoke.yaml", "config/smoke_grid.yaml")
GRID = (*GRID_CONFIGURATION, "--cores", "2")
"""Arguments for the smoke grid here; the configuration alone goes through Slurm too."""


def copy_repository(folder: Path) -> Path:
    """Copy what git tracks or would track, so that the checkout's own results do not matter."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file() and not name.startswith("tests/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def environment() -> dict[str, str]:
    """The environment of a user who activated this Python's environment."""
    return os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def snakemake(*arguments: str, cwd: Path) -> subprocess.CompletedProcess:
    """Run snakemake as a user would."""
    return subprocess.run(
        [sys.executable, "-m", "snakemake", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        env=environment(),
    )


def planned(output: str) -> dict[str, int]:
    """Jobs by rule of a dry run."""
    table = output.split("Job stats:")[1] if "Job stats:" in output else ""
    found = re.findall(r"^([\w.-]+) +(\d+)$", table.split("total")[0], re.MULTILINE)
    return {rule: int(count) for rule, count in found}


def replace(path: Path, old: str, new: str) -> None:
    """Edit a file; the old text must be there."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
