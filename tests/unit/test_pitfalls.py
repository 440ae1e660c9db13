"""Traps of libraries that have no other test of their own: each fails where we fall into it."""

import json
import math

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
import yaml
from transformers import GenerationConfig

from calibration_tuning import files, planning, statistics, tables
from calibration_tuning.errors import InputError
from calibration_tuning.families import Distribution
from calibration_tuning.sampling import sample_completions
from calibration_tuning.trie import FULL_RESOLUTION, build_trie
from tiny_models import build_model, build_tokenizer


def test_yaml_reads_a_number_without_a_point_as_text():
    assert yaml.safe_load("2e-4") == "2e-4"  # the trap; the schema's answer:
    with pytest.raises(InputError, match=r"YAML reads a number such as 1e-4 as text"):
        planning.validate({"a": "2e-4"}, {"properties": {"a": {"type": "number"}}}, "x.yaml")


def test_nan_never_gets_into_json():
    assert json.dumps(math.nan) == "NaN"  # the trap
    with pytest.raises(ValueError, match="JSON"):
        files.to_jsonl([{"loss": math.nan}])


def test_equal_values_have_an_interval():
    """scipy's BCa bootstrap gives (nan, nan) for them."""
    found = statistics.family_mean_interval([0.5] * 6, list("aaabbb"), seed=1)
    assert (found["mean"], found["low"], found["high"]) == (0.5, 0.5, 0.5)


def test_a_row_whose_key_is_missing_is_not_dropped():
    row = {"model": "m", "method": "base", "seed": 1, "evaluation": "structured", "low": None}
    row |= {"metric": "valid_rate", "value": 0.5, "high": None, "n": 3}
    summary = tables.summary(pd.DataFrame([row | {"split": None}, row | {"split": "unseen"}]))
    assert len(summary) == 2


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
    encode = lambda text: tokenizer.encode(text, add_special_tokens=False)  # noqa: E731
    trie = build_trie(distribution, 5, max_bins, encode, 3)
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
