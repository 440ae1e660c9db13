"""Where a result comes from: code, libraries, model, adapter, machine."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import calibration_tuning
from calibration_tuning import files
from calibration_tuning.errors import InputError

LIBRARIES = ("torch", "transformers", "peft", "numpy", "scipy")


def provenance(
    *,
    model_directory: Path,
    adapter_directory: Path | None,
    device: str,
    dtype: str,
    seed: int,
    wall_time_seconds: float,
) -> dict:
    """Everything needed to know what a result was made with; plain JSON values.

    Parameters
    ----------
    model_directory : Path
        A fetched base model, with its manifest.json.
    adapter_directory : Path or None
        The folder of adapter_model.safetensors; None for an untuned model.
    device : str
        Device the model ran on, as torch names it.
    dtype : str
        Type of the base model's weights, such as "float32".
    seed : int
        The cell's seed.
    wall_time_seconds : float
        Run time of the step.

    Returns
    -------
    dict
        As workflow/schemas/metrics.schema.json describes it. "git" is None outside a checkout.

    Raises
    ------
    InputError
        The manifest can't be read or lacks a key, or the adapter isn't there.
    """
    return {
        "package_version": calibration_tuning.__version__,
        "git": git_state(Path(__file__)),
        "python": platform.python_version(),
        "libraries": {name: _library_version(name) for name in LIBRARIES},
        "base_model": base_model(model_directory),
        "adapter_sha256": None if adapter_directory is None else adapter_hash(adapter_directory),
        "device": device,
        "dtype": dtype,
        "seed": seed,
        "cpu_threads": available_cpu_threads(),
        "wall_time_seconds": round(wall_time_seconds, 3),
    }


def git_state(file: Path) -> dict[str, str | bool] | None:
    """Commit of the checkout that tracks a file, and whether tracked files differ from it.

    None where there is no such checkout: an installed package (also one in a virtual
    environment inside somebody's checkout), a downloaded archive, no git.
    """

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(file.parent), *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", file.name)
        commit = git("rev-parse", "--verify", "HEAD")
        changes = git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit, "dirty": bool(changes)}


def base_model(model_directory: Path) -> dict[str, str | None]:
    """Name, source and revision of a fetched model, from its manifest.json."""
    path = Path(model_directory) / "manifest.json"
    manifest = files.read_json(path)
    try:
        return {key: manifest[key] for key in ("model", "source", "revision")}
    except KeyError as error:
        raise InputError(f"{path}: no key {error}; fetch the model again") from None


def adapter_hash(adapter_directory: Path) -> str:
    """SHA-256 of an adapter's weights (adapter_model.safetensors), in hexadecimal."""
    path = Path(adapter_directory) / "adapter_model.safetensors"
    try:
        return files.sha256(path)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; expected a trained adapter") from None


def available_cpu_threads() -> int:
    """Number of CPU threads this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _library_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
