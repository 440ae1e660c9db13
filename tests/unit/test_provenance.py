"""Provenance names code, model and adapter, and says so where it cannot."""

import hashlib
import json
import subprocess
from pathlib import Path

import jsonschema
import pytest

import calibration_tuning
from calibration_tuning import provenance
from calibration_tuning.errors import InputError

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "workflow" / "schemas" / "metrics.schema.json").read_text()
)


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    manifest = {"model": "tiny", "source": "path:tiny", "revision": "abc", "files": {}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def describe(model, adapter=None):
    return provenance.provenance(
        model_directory=model,
        adapter_directory=adapter,
        device="cpu",
        dtype="float32",
        seed=11,
        wall_time_seconds=1.23456,
    )


def test_base_and_adapter(model, tmp_path):
    base = describe(model)
    assert base["adapter_sha256"] is None
    assert base["base_model"] == {"model": "tiny", "source": "path:tiny", "revision": "abc"}
    assert base["package_version"] == calibration_tuning.__version__
    assert base["libraries"]["scipy"].count(".") == 2
    assert base["wall_time_seconds"] == 1.235

    (tmp_path / "adapter_model.safetensors").write_bytes(b"weights")
    tuned = describe(model, tmp_path)
    assert tuned["adapter_sha256"] == hashlib.sha256(b"weights").hexdigest()
    for result in (base, tuned):
        jsonschema.validate(result, {**SCHEMA["$defs"]["provenance"], "$defs": SCHEMA["$defs"]})


def test_missing_files_are_named(model, tmp_path):
    with pytest.raises(InputError, match=r"adapter_model\.safetensors"):
        describe(model, tmp_path)
    with pytest.raises(InputError, match=r"manifest\.json"):
        describe(tmp_path)
    (model / "manifest.json").write_text("{}")
    with pytest.raises(InputError, match=r"manifest\.json: no key 'model'"):
        describe(model)


def test_git_state(tmp_path, monkeypatch):
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "A")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "a@example.org")
    file = tmp_path / "code.py"
    file.write_text("x = 1\n")
    assert provenance.git_state(file) is None

    def git(*arguments):
        subprocess.run(["git", "-C", tmp_path, *arguments], check=True, capture_output=True)

    git("init")
    assert provenance.git_state(file) is None  # there, but not tracked
    git("add", "code.py")
    assert provenance.git_state(file) is None  # no commit yet
    git("commit", "-m", "first")
    state = provenance.git_state(file)
    assert len(state["commit"]) == 40
    assert state["dirty"] is False
    file.write_text("x = 2\n")
    assert provenance.git_state(file)["dirty"] is True


def test_git_may_be_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance.git_state(Path(provenance.__file__)) is None
