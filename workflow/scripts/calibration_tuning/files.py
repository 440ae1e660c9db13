"""Reading and writing the files between steps: whole or not at all, and never a bare traceback."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from calibration_tuning.errors import InputError


def write_atomic(path: Path | str, content: bytes | str) -> None:
    """Write a file under a temporary name and rename it, so that no reader sees half of it.

    Raises
    ------
    InputError
        If it cannot be written, for example because the disk is full.
    """
    path = Path(path)
    data = content.encode() if isinstance(content, str) else content
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise InputError(
            f"{path}: cannot be written ({error.strerror}); what is already finished is kept"
        ) from None


def lock(path: Path) -> FileLock:
    """A lock on a file or folder that is being made, to hold by `with`.

    Another process that wants it waits; a process that dies lets it go. It works between the
    nodes of a cluster where the shared file system knows flock, as NFS 4 and most others do.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path.with_name(f".{path.name}.lock"))


def claim(work: Path) -> FileLock:
    """Hold a work folder until this process ends or lets the lock go.

    A run whose snakemake was killed may have a job left on a cluster; a second one that writes
    the same checkpoints beside it would spoil both.

    Raises
    ------
    InputError
        If another process holds it.
    """
    work.mkdir(parents=True, exist_ok=True)
    held = FileLock(work / "lock")
    try:
        held.acquire(timeout=0)
    except Timeout:
        raise InputError(
            f"{work}: another job is at work on this cell; wait for it or cancel it"
        ) from None
    return held


def read_json(path: Path | str) -> dict:
    """Read a JSON object.

    Raises
    ------
    InputError
        If the file is missing or not a JSON object.
    """
    try:
        content = json.loads(Path(path).read_text())
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError:
        raise InputError(f"{path}: not valid JSON") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected a JSON object")
    return content


def read_or_make(part: Path, make: Callable[[], dict]) -> dict:
    """What a part of long work gave: read if an earlier run finished it, else made and kept."""
    if part.exists():
        return read_json(part)
    result = make()
    write_atomic(part, json.dumps(result, allow_nan=False))
    return result


def to_jsonl(records: list[dict]) -> str:
    """One JSON object a line; NaN is refused, since it is not JSON."""
    return "".join(json.dumps(record, allow_nan=False) + "\n" for record in records)


def sha256(path: Path | str) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
