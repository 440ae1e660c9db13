"""A finished run of the smoke grid, two tiny models by two methods, made once for all tests."""

import pytest
from filelock import FileLock

from repository import GRID, copy_repository, snakemake
from tiny_models import save_tiny


@pytest.fixture(scope="session")
def grid(tmp_path_factory, worker_id):
    """Its folder, in a copy of the repository; tests that change something copy it."""
    base = tmp_path_factory.getbasetemp()
    # The workers of pytest-xdist have a folder each in a common one.
    common = base if worker_id == "master" else base.parent
    folder = common / "grid"
    with FileLock(common / "grid.lock"):
        if not (folder / "results" / "report.html").exists():
            copy_repository(folder)
            for architecture in ("qwen3", "gptoss", "llama"):
                save_tiny(architecture, folder / "resources" / "tiny" / architecture)
            result = snakemake(*GRID, cwd=folder)
            assert result.returncode == 0, result.stdout + result.stderr
    return folder
