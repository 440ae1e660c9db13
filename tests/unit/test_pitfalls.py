"""Traps of libraries that have no other test of their own: each fails where we fall into it."""

import json
import math
import sys

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
import yaml
from transformers import GenerationConfig

import sample_structured
import score_structured
from calibration_tuning import (
    chat,
    checkpoints,
    devices,
    files,
    planning,
    statistics,
    tables,
    training,
)
from calibration_tuning.errors import InputError
from calibration_tuning.evaluations import structured_sampling
from calibration_tuning.families import Distribution
from calibration_tuning.sampling import sample_completions
from calibration_tuning.trie import FULL_RESOLUTION, build_trie
from repository import ROOT
from tiny_models import build_model, build_tokenizer


def test_yaml_reads_a_number_without_a_point_as_text():
    assert yaml.safe_load("2e-4") == "2e-4"  # the trap; the schema's answer:
    with pytest.raises(InputError, match=r"YAML reads a number such as 1e-4 as text"):
        planning.validate({"a": "2e-4"}, {"properties": {"a": {"type": "number"}}}, "x.yaml")


def test_nan_never_gets_into_json():
    assert json.dumps(math.nan) == "NaN"  # the trap
    with pytest.raises(ValueError, match="JSON"):
        files.to_jsonl([{"loss": math.nan}])


def test_nan_never_gets_into_what_an_evaluation_writes(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="JSON"):
        files.read_or_make(tmp_path / "part.json", lambda: {"kl": math.nan})
    monkeypatch.setattr(score_structured.structured, "score_cell", lambda *a, **k: {"kl": math.nan})
    monkeypatch.setattr(score_structured.samples, "read_samples", lambda *a: None)
    monkeypatch.setattr(score_structured.structured, "read_divergences", lambda path: None)
    monkeypatch.setattr(score_structured.prompts, "read_prompts", lambda path: [])
    (tmp_path / "run.json").write_text("{}")
    arguments = "--samples s --divergences d --prompts-directory p --decimals 1 --max-bins 9"
    arguments += " --model m --method base --seed 1 --run run.json --output metrics.json"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["score_structured", *arguments.split()])
    with pytest.raises(ValueError, match="JSON"):
        score_structured.main()
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_equal_values_have_an_interval():
    """scipy's BCa bootstrap gives (nan, nan) for them."""
    found = statistics.family_mean_interval([0.5] * 6, list("aaabbb"), seed=1)
    assert (found["mean"], found["low"], found["high"]) == (0.5, 0.5, 0.5)


def test_a_row_whose_key_is_missing_is_not_dropped():
    row = {"model": "m", "method": "base", "seed": 1, "evaluation": "structured", "low": None}
    row |= {"metric": "valid_rate", "value": 0.5, "high": None, "n": 3}
    row |= {"prompts": 3, "samples": 30}
    summary = tables.summary(pd.DataFrame([row | {"split": None}, row | {"split": "unseen"}]))
    assert summary["seeds"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("family", "params"),
    [
        # scipy's survival function of it is nan at small mu / lambda.
        ("inverse_gaussian", {"mu": 1e-3, "lambda": 1e3}),
        ("inverse_gaussian", {"mu": 0.5, "lambda": 50.0}),
        ("poisson", {"lambda": 0.5}),
        ("binomial", {"n": 5.0, "p": 0.2}),
    ],
)
@pytest.mark.parametrize("max_bins", [1001, FULL_RESOLUTION])
def test_targets_are_finite_and_inside_the_support(family, params, max_bins):
    distribution = Distribution(family, params)
    tokenizer = build_tokenizer("qwen3")
    trie = build_trie(distribution, 5, max_bins, chat.completion_encoder(tokenizer), 3)
    tokens, probabilities = trie.next_tokens(())
    assert np.isfinite(probabilities).all()
    assert probabilities.sum() == pytest.approx(1)
    low, _ = distribution.support
    texts = [
        tokenizer.decode(path[:-1]) for path in trie.sample_paths(np.random.default_rng(0), 50)
    ]
    # ppf(0) of a discrete family lies below its support.
    assert min(map(float, texts)) >= low
    assert len(tokens) >= 1


def test_true_draws_of_an_integer_family_are_not_rejected():
    """A Kolmogorov-Smirnov test would: its p value is near 0 for a discrete distribution."""
    distribution = Distribution("poisson", {"lambda": 4.0})
    draws = scipy.stats.poisson(4).rvs(500, random_state=1).astype(float)
    assert scipy.stats.kstest(draws, scipy.stats.poisson(4).cdf).pvalue < 1e-6  # the trap
    assert statistics.chi_square(np.sort(draws), distribution)[1] > 0.01


def test_the_ids_that_were_sampled_are_scored_not_those_of_their_text():
    """A model may write 12 with two tokens where the tokenizer has one for it."""
    tokenizer = build_tokenizer("llama")
    encode = chat.completion_encoder(tokenizer)
    trie = build_trie(Distribution("poisson", {"lambda": 12.0}), 0, FULL_RESOLUTION, encode, 3)
    canonical, other = (*encode("12"), 3), (*encode("1"), *encode("2"), 3)
    assert tokenizer.decode(canonical) == tokenizer.decode(other)
    assert structured_sampling.is_canonical(trie, canonical)
    assert not structured_sampling.is_canonical(trie, other)


def test_what_moves_scores_in_bfloat16_is_part_of_an_evaluations_settings(monkeypatch):
    """The shape of its batches and the dtype: a change of either makes the evaluation anew."""
    monkeypatch.chdir(ROOT)
    config = planning.load_yaml("config/config.yaml")
    plan = planning.load_plan(config, ["config/config.yaml"], ROOT)
    settings = plan.evaluation_settings("smollm2-135m", "soft", "structured")
    assert {"max_rows", "dtype"} <= settings.keys()


@pytest.mark.parametrize(("dtype", "merged"), [("float32", True), ("bfloat16", False)])
def test_adapters_are_not_added_into_bfloat16_weights(dtype, merged, tmp_path, monkeypatch):
    """Their rounding is larger than what an adapter changes."""

    class Loaded(Exception):
        pass

    def load_adapter(model, folder, merge):
        assert merge == merged
        raise Loaded

    monkeypatch.setattr(checkpoints, "load_tokenizer", lambda folder: None)
    monkeypatch.setattr(checkpoints, "load_model", lambda *a: build_model("llama"))
    monkeypatch.setattr(checkpoints, "load_adapter", load_adapter)
    monkeypatch.setattr(chat, "stop_ids", lambda *a: frozenset())
    monkeypatch.setattr(sample_structured.prompts, "read_prompts", lambda path: [])
    settings = json.dumps({"dtype": dtype, "chat": {}})
    arguments = ["--model", "m/manifest.json", "--adapter", "a/adapter_model.safetensors"]
    arguments += ["--prompts-directory", "p", "--seed", "1", "--output-directory", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["sample_structured", *arguments, "--settings", settings])
    with pytest.raises(Loaded):
        sample_structured.main()


def test_a_run_that_should_be_sharded_is_looked_at_before_it_trains(tmp_path, monkeypatch):
    """FSDP through the Trainer on CPUs silently trains whole copies."""
    monkeypatch.setattr(devices, "process_count", lambda: 2)
    model = checkpoints.attach_new_adapter(
        build_model("llama"), {"rank": 4, "alpha": 8, "dropout": 0.0}, 1
    )
    settings = {"batch": 8, "packing": 2, "parallelism": "sharded"}
    with pytest.raises(InputError, match="parallelism is sharded, but"):
        training.train(model, range(8), settings, 1, 1, tmp_path, "test")


def test_sampling_inherits_nothing_from_the_models_generation_config():
    """generate would: its top_k is 50 where nothing is said, or what the model's own file says."""
    model, tokenizer = build_model("llama"), build_tokenizer("llama")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.01)  # nearly uniform over the vocabulary
    model.generation_config = GenerationConfig(
        do_sample=True, top_k=1, temperature=0.1, top_p=0.1, eos_token_id=4
    )
    samples = sample_completions(
        model, tokenizer, [1, 20], 400, stop_ids=frozenset(), max_new_tokens=1, seed=[1]
    )
    assert len({sample.token_ids for sample in samples}) > 100
