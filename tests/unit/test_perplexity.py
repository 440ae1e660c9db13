"""Perplexity: windows, batching, whole cells by both programs, and lm-eval's own likelihood."""

import json
import math
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tqdm import tqdm

import sample_perplexity
import score_perplexity
from calibration_tuning import checkpoints, errors, files
from calibration_tuning.errors import InputError
from calibration_tuning.evaluations import perplexity
from calibration_tuning.evaluations.cell import Cell
from calibration_tuning.evaluations.perplexity import Window, windows
from tiny_models import (
    ARCHITECTURES,
    IMAGE_TEXT,
    build_image_text_model,
    build_model,
    build_tokenizer,
    save_tiny,
)


@pytest.mark.parametrize(
    ("tokens", "context", "stride", "expected"),
    [
        (10, 4, 2, [(0, 3, 1, 3), (2, 5, 4, 5), (4, 7, 6, 7), (6, 9, 8, 9)]),
        (9, 4, 4, [(0, 3, 1, 3), (4, 7, 5, 7)]),
        (2, 4, 2, [(0, 1, 1, 1)]),
        (1, 4, 2, []),
        (0, 4, 2, []),
    ],
)
def test_known_windows(tokens, context, stride, expected):
    """First and last token of a window, and those that it scores, both inclusive."""
    found = windows(tokens, context, stride)
    assert [(w.start, w.end - 1, w.scored_from, w.end - 1) for w in found] == expected


@pytest.mark.parametrize(("context", "stride"), [(1, 1), (4, 5), (4, 0), (0, 0)])
def test_windows_that_make_no_sense(context, stride):
    with pytest.raises(ValueError, match="expected 1 <= stride <= context"):
        windows(9, context, stride)


@given(st.integers(0, 200), st.integers(2, 40), st.data())
def test_every_token_is_scored_once_with_the_context_there_is(tokens, context, data):
    stride = data.draw(st.integers(1, context - 1))
    found = windows(tokens, context, stride)
    scored = [token for w in found for token in range(w.scored_from, w.end)]
    assert scored == list(range(1, tokens))
    for window in found:
        assert 0 <= window.start < window.end <= min(tokens, window.start + context)
        assert window.scored_from - window.start >= min(context - stride, window.scored_from)


@given(st.lists(st.tuples(st.integers(2, 30), st.integers(1, 9)), max_size=40), st.integers(1, 99))
def test_batches_keep_all_windows_and_the_limit(jobs, tokens_at_a_time):
    jobs = [(number, Window(0, length, 1)) for length, number in sorted(jobs, reverse=True)]
    found = perplexity._batches(jobs, tokens_at_a_time)
    assert [job for batch in found for job in batch] == jobs
    for batch in found:
        assert len(batch) == 1 or len(batch) * batch[0][1].end <= tokens_at_a_time


def make_documents(lengths=(50, 3, 17, 1, 0, 33, 2, 50), seed=5):
    rng = np.random.default_rng(seed)
    return [rng.integers(5, 90, size=length).tolist() for length in lengths]


def one_at_a_time(model, documents, context, stride):
    """As `score_documents`, with a plain forward pass for every window."""
    found = []
    for ids in documents:
        total, tokens = 0.0, 0
        for window in windows(len(ids), context, stride):
            row = torch.tensor([ids[window.start : window.end]])
            with torch.no_grad():
                logs = torch.log_softmax(model(row).logits[0].double(), dim=-1)
            for token in range(window.scored_from, window.end):
                total -= float(logs[token - window.start - 1, ids[token]])
                tokens += 1
        found.append((total, tokens))
    return found


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, IMAGE_TEXT])
@pytest.mark.parametrize(("context", "stride"), [(20, 8), (16, 16)])
def test_batched_is_one_at_a_time(architecture, context, stride):
    image_text = architecture == IMAGE_TEXT
    model = build_image_text_model() if image_text else build_model(architecture)
    documents, done = make_documents(), []
    expected = one_at_a_time(model, documents, context, stride)
    for limit in (1, 70, 10_000):
        done.clear()
        found = perplexity.score_documents(model, documents, context, stride, limit, done.append)
        assert [tokens for _, tokens in found] == [tokens for _, tokens in expected]
        assert sum(done) == sum(tokens for _, tokens in expected)
        for (nll, tokens), (right, _) in zip(found, expected, strict=True):
            if tokens:
                assert math.exp(nll / tokens) == pytest.approx(math.exp(right / tokens), rel=1e-5)
            else:
                assert nll == 0


def test_a_long_row_is_summed_in_pieces(monkeypatch):
    model, documents = build_model("qwen3"), make_documents((50,))
    whole = perplexity.score_documents(model, documents, 64, 32, 64)
    monkeypatch.setattr(perplexity, "POSITIONS_AT_A_TIME", 7)
    pieces = perplexity.score_documents(model, documents, 64, 32, 64)
    assert pieces[0] == pytest.approx(whole[0], rel=1e-9)


def test_the_harness_has_the_same_likelihood():
    """lm-eval scores the first token too, after a token of its own."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    model, tokenizer = build_model("llama"), build_tokenizer("llama")
    texts = ["The cat sat on the mat, 123 times.", "a", "Other words: none!"]
    harness = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1, max_length=64)
    requests = [Instance("loglikelihood_rolling", {}, (text,), 0) for text in texts]
    expected = harness.loglikelihood_rolling(requests, disable_tqdm=True)
    documents = [[harness.prefix_token_id, *tokenizer.encode(text)] for text in texts]
    found = perplexity.score_documents(model, documents, 64, 32, 128)
    assert [-nll for nll, _ in found] == pytest.approx(expected, rel=1e-5)


def make_frame(rows, data="d"):
    columns = ["data", "document", *perplexity.SCHEMA.names[2:]]
    numbered = [(data, number, *row) for number, row in enumerate(rows)]
    return pd.DataFrame(numbered, columns=columns).astype({"nll": "float64"})


def test_known_perplexity():
    rows = [
        ("scored", 12, 4, 4 * math.log(8)),
        ("short", 1, 0, None),
        ("scored", 6, 2, 2 * math.log(8)),
        ("empty", 3, 0, None),
        ("broken", 0, 0, None),
        ("broken", 0, 0, None),
    ]
    split = perplexity.score_cell(make_frame(rows), seed=11)["splits"]["d"]
    assert (split["prompts"], split["samples"]) == (2, 6)
    metrics = split["metrics"]
    assert metrics["perplexity"] == pytest.approx({"mean": 8, "low": 8, "high": 8, "n": 2})
    assert metrics["bits_per_byte"] == pytest.approx({"mean": 1, "low": 1, "high": 1, "n": 2})
    for name, count in (("documents_short", 1), ("documents_empty", 1), ("rows_broken", 2)):
        assert metrics[name] == {"mean": count, "low": None, "high": None, "n": 6}


def test_long_documents_weigh_more_and_the_interval_holds_the_mean():
    rows = [("scored", 30, 10, 10 * math.log(2)), ("scored", 90, 30, 30 * math.log(16))] * 5
    frame = make_frame(rows)
    metrics = perplexity.score_cell(frame, seed=11)["splits"]["d"]["metrics"]
    found = metrics["perplexity"]
    assert found["mean"] == pytest.approx(2 ** (10 / 40 + 4 * 30 / 40))
    assert 2 < found["low"] < found["mean"] < found["high"] < 16
    shuffled = perplexity.score_cell(frame.sample(frac=1, random_state=1), seed=11)
    assert shuffled["splits"]["d"]["metrics"] == metrics


def test_what_has_no_perplexity_is_none():
    frame = pd.concat(
        [
            make_frame([("empty", 0, 0, None)], "nothing"),
            make_frame([("scored", 3, 1, 1e4)], "overflow"),
        ]
    )
    splits = perplexity.score_cell(frame, seed=1)["splits"]
    assert list(splits) == ["nothing", "overflow"]
    assert splits["nothing"]["prompts"] == splits["nothing"]["samples"] == 0
    nothing = {"mean": None, "low": None, "high": None, "n": 0}
    assert splits["nothing"]["metrics"]["perplexity"] == nothing
    assert splits["nothing"]["metrics"]["bits_per_byte"] == nothing
    metrics = splits["overflow"]["metrics"]
    assert metrics["perplexity"] == nothing | {"n": 1}
    assert metrics["bits_per_byte"]["mean"] == pytest.approx(1e4 / math.log(2) / 3)
    assert metrics["bits_per_byte"]["low"] is None
    json.dumps(splits, allow_nan=False)


def test_samples_on_disk(tmp_path):
    path = tmp_path / "samples.parquet"
    scored = {"a": [["scored", 5, 4, 9.5], ["broken", 0, 0, None]], "b": [["empty", 1, 0, None]]}
    perplexity.write_samples(path, scored)
    frame = perplexity.read_samples(path)
    assert list(frame["data"]) == ["a", "a", "b"]
    assert list(frame["document"]) == [0, 1, 0]
    assert list(frame["nll"].isna()) == [False, True, True]
    for change in ({"status": "lost"}, {"nll": None}, {"tokens": 0}, {"data": None}):
        frame.assign(**change).to_parquet(path)
        with pytest.raises(InputError, match=r"expected documents with a status of [^\n]*$"):
            perplexity.read_samples(path)
    frame.drop(columns="nll").to_parquet(path)
    with pytest.raises(InputError, match=r"with columns data, [^\n]*forcerun sample_perplexity"):
        perplexity.read_samples(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "x"}\n[]\n', "line 2: expected a JSON object with text"),
        ('{"text": 1}\n', "line 1: expected"),
        ("", "expected at least one document"),
        (None, "cannot be read"),
    ],
)
def test_data_that_fetch_data_did_not_write(tmp_path, content, message):
    path = tmp_path / "a.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=rf"{message}[^\n]*forcerun fetch_data"):
        perplexity.read_texts(path, 9)


# The programs, one after the other, on a tiny model.

TEXTS = {
    "news": ["The jury said that it had.", None, " \n", "x", "A longer text, 12 words? " * 4],
    "manual": ["def f(x): return x", "never read"],
}
SETTINGS = {
    "data": [{"name": "news"}, {"name": "manual"}],
    "documents": 5,
    "context": 16,
    "stride": 8,
    "tokens_at_a_time": 64,
    "dtype": "float32",
    "chat": {},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    source = save_tiny("gemma3", folder / "source")
    checkpoints.fetch("tiny", {"source": f"path:{source}"}, folder / "tiny", folder / "downloads")
    return folder / "tiny"


@pytest.fixture
def sample(monkeypatch, tmp_path, model):
    for name, texts in TEXTS.items():
        rows = [{"text": text} for text in texts]
        files.write_atomic(tmp_path / "data" / f"{name}.jsonl", files.to_jsonl(rows))

    def run(output="out", data=("manual", "news"), **changes):
        arguments = ["--model", str(model / "manifest.json"), "--seed", "11", "--threads", "1"]
        arguments += ["--settings", json.dumps(SETTINGS | changes), "--label", "tiny/base"]
        arguments += ["--data", *(str(tmp_path / "data" / f"{name}.jsonl") for name in data)]
        arguments += ["--output-directory", str(tmp_path / output)]
        monkeypatch.setattr(sys, "argv", ["sample_perplexity", *arguments])
        errors.run(sample_perplexity.main)
        return tmp_path / output

    return run


def test_from_texts_to_metrics(sample, monkeypatch, capsys):
    folder = sample()
    assert sorted(path.name for path in folder.iterdir()) == ["run.json", "samples.parquet"]
    frame = perplexity.read_samples(folder / "samples.parquet")
    assert list(frame["data"]) == ["news"] * 5 + ["manual"] * 2
    assert list(frame["status"]) == ["scored", "broken", "empty", "short", *["scored"] * 3]
    assert list(frame["tokens"]) == [25, 0, 0, 0, 99, 17, 9]
    assert list(frame["bytes"]) == [26, 0, 2, 1, 100, 18, 10]
    ids = build_tokenizer("gemma3").encode(TEXTS["manual"][0])
    ((expected, _),) = one_at_a_time(build_model("gemma3"), [ids], 16, 8)
    assert frame["nll"][5] == pytest.approx(expected, rel=1e-5)
    assert "tiny/base news" in capsys.readouterr().err
    arguments = ["--samples", str(folder / "samples.parquet"), "--run", str(folder / "run.json")]
    arguments += ["--model", "tiny", "--method", "base", "--seed", "11"]
    arguments += ["--output", str(folder / "metrics.json")]
    monkeypatch.setattr(sys, "argv", ["score_perplexity", *arguments])
    errors.run(score_perplexity.main)
    metrics = files.read_json(folder / "metrics.json")
    assert metrics["cell"]["evaluation"] == "perplexity"
    assert metrics["values"] == perplexity.score_cell(frame, 11)
    assert metrics["values"]["splits"]["manual"]["metrics"]["perplexity"]["mean"] > 1


def test_a_killed_run_goes_on_with_the_next_data_set(sample, monkeypatch):
    whole = perplexity.read_samples(sample("whole") / "samples.parquet")
    score_texts, seen = perplexity.score_texts, []

    def killed_at_the_second(cell, texts, settings, label, progress):
        seen.append(label)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return score_texts(cell, texts, settings, label, progress)

    monkeypatch.setattr(perplexity, "score_texts", killed_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        sample()
    again = sample()
    assert seen == ["tiny/base news", "tiny/base manual", "tiny/base manual"]
    pd.testing.assert_frame_equal(perplexity.read_samples(again / "samples.parquet"), whole)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"context": 513}, r"config\.json: .*expected at most 512, .*got 513"),
        ({"context": 8, "stride": 9}, "a stride of 1 to context, got context 8, stride 9"),
        ({"data": ("news",)}, r"expected a file \{name\}\.jsonl for each data set of news, manual"),
    ],
)
def test_settings_are_refused_before_any_work(sample, tmp_path, changes, message):
    with pytest.raises(SystemExit, match=rf"^error: [^\n]*{message}[^\n]*$"):
        sample(**changes)
    assert not (tmp_path / "out").exists()


def test_a_model_that_gives_no_numbers_is_named():
    cell = Cell(build_model("llama"), build_tokenizer("llama"), frozenset(), "cpu")
    with torch.no_grad():
        cell.model.lm_head.weight.fill_(math.nan)
    with pytest.raises(InputError, match="news: document 1: the model's log-likelihood is nan"):
        perplexity.score_texts(cell, [None, "some text"], SETTINGS, "news", tqdm)
