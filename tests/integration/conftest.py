"""A finished run of the smoke grid, two tiny models and three methods, made once a session."""

import pytest

from repository import copy_repository, snakemake
from tiny_models import save_tiny

CONFIGURATION = ("--configfile", "config/smoke.yaml", "config/smoke_grid.yaml")
GRID = (*CONFIGURATION, "--cores", "2")


@pytest.fixture(scope="session")
def grid(tmp_path_factory):
    """Its folder, in a copy of the repository."""
    folder = copy_repository(tmp_path_factory.mktemp("grid"))
    for architecture in ("qwen3", "gptoss", "llama"):
        save_tiny(architecture, folder / "resources" / "tiny" / architecture)
    result = snakemake(*GRID, cwd=folder)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder
