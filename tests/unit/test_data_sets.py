"""Prompts of data sets, from a local repository such as those of the hub, and from a file."""

import json

import pandas as pd
import pytest

from calibration_tuning import data_sets
from calibration_tuning.errors import InputError

ROWS = [{"id": "c1", "prompt": "name a colour", "extra": 1}, {"id": "c2", "prompt": "a joke"}]


@pytest.fixture
def repository(tmp_path):
    """A data set as the hub has them: a folder with a file a split."""
    folder = tmp_path / "novelty-bench"
    folder.mkdir()
    for split in ("curated", "wildchat"):
        pd.DataFrame(ROWS).to_parquet(folder / f"{split}-00000-of-00001.parquet")
    splits = "".join(f"  - split: {s}\n    path: {s}-*\n" for s in ("curated", "wildchat"))
    card = f"---\nconfigs:\n- config_name: default\n  data_files:\n{splits}---\n"
    (folder / "README.md").write_text(card)
    return folder


def fetch(source, tmp_path, **settings):
    return data_sets.fetch_prompts({"source": source, **settings}, tmp_path / "downloads")


def test_a_split_of_a_repository(repository, tmp_path):
    for split in ("curated", "wildchat"):
        records = fetch(f"path:{repository}", tmp_path, split=split)
        assert records == [{"id": row["id"], "prompt": row["prompt"]} for row in ROWS]


def test_a_file_of_ones_own(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "hello", "kind": "facts", "note": "x"}\n')
    assert fetch(f"path:{path}", tmp_path) == [{"kind": "facts", "prompt": "hello"}]
    path.write_text('{"prompt": "hello"}\n{"text": "hello"}\n')
    with pytest.raises(InputError, match=r"mine\.jsonl, line 2: expected a JSON object with the t"):
        fetch(f"path:{path}", tmp_path)


def test_a_missing_column_names_those_that_are_there(repository, tmp_path):
    for path in repository.glob("*.parquet"):
        pd.DataFrame(ROWS).rename(columns={"prompt": "question"}).to_parquet(path)
    with pytest.raises(InputError, match="split curated has no column prompt; it has id, question"):
        fetch(f"path:{repository}", tmp_path, split="curated")


def test_a_row_without_a_prompt_is_refused(repository, tmp_path):
    frame = pd.DataFrame([*ROWS, {"id": "c3", "prompt": None}])
    frame.to_parquet(repository / "curated-00000-of-00001.parquet")
    with pytest.raises(InputError, match="split curated: expected a prompt in every row"):
        fetch(f"path:{repository}", tmp_path, split="curated")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("path:nowhere/at-all", "no such file or folder"),
        ("hub:owner/name@main", "split curated cannot be loaded"),
        ("elsewhere:x", "expected hub:"),
    ],
)
def test_what_cannot_be_had_is_one_line(tmp_path, monkeypatch, source, message):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=message) as caught:
        fetch(source, tmp_path, split="curated")
    assert "\n" not in str(caught.value)


def test_a_split_that_is_not_there(repository, tmp_path):
    with pytest.raises(InputError, match="split test cannot be loaded"):
        fetch(f"path:{repository}", tmp_path, split="test")


def test_a_broken_file_of_a_repository_is_one_line(repository, tmp_path):
    (repository / "curated-00000-of-00001.parquet").write_text(json.dumps(ROWS))
    with pytest.raises(InputError, match="split curated cannot be loaded") as caught:
        fetch(f"path:{repository}", tmp_path, split="curated")
    assert "\n" not in str(caught.value)
