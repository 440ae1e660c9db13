"""The prefix trie against expected targets, brute force and laws."""

import json
import re
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration_tuning.families import Distribution
from calibration_tuning.trie import PrefixTrie

EXPECTED = json.loads((Path(__file__).parents[1] / "data" / "expected.json").read_text())
END = 0


def single(text):
    """One token a character."""
    return [ord(character) for character in text]


def grouped(text):
    """Up to three digits a token, from the left, as Llama-3 and gpt-oss do."""
    parts = re.findall(r"\d{1,3}|.", text)
    return [int(p) + 1000 * len(p) if p.isdigit() else 10000 + ord(p) for p in parts]


TEXTS = st.dictionaries(
    st.from_regex(r"-?[0-9]{1,4}(\.[0-9]{1,4})?", fullmatch=True),
    st.floats(1e-3, 1.0),
    min_size=1,
    max_size=30,
)


def brute_force(texts, probabilities, encode):
    mass = defaultdict(Counter)
    for text, p in zip(texts, probabilities, strict=True):
        sequence = (*encode(text), END)
        for depth, token in enumerate(sequence):
            mass[sequence[:depth]][token] += p
    return {
        prefix: {token: m / sum(children.values()) for token, m in children.items()}
        for prefix, children in mass.items()
    }


@pytest.mark.parametrize("case", EXPECTED["trie_targets"], ids=lambda c: c["family"])
def test_expected_targets(case):
    space = Distribution(case["family"], case["params"]).output_space(
        case["num_decimals"], case["max_bins"]
    )
    trie = PrefixTrie(space.texts, space.probabilities, single, END)
    assert len({s[:i] for s in trie.sequences for i in range(len(s))}) == case["prefixes"]
    for target in case["targets"]:
        tokens, probabilities = trie.next_tokens(tuple(single(target["prefix"])))
        found = dict(zip(tokens.tolist(), probabilities, strict=True))
        expected = {END if t == "<end>" else ord(t): p for t, p in target["next"]}
        assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("encode", [single, grouped])
@given(weights=TEXTS)
def test_equals_enumeration(encode, weights):
    texts, probabilities = list(weights), list(weights.values())
    trie = PrefixTrie(texts, probabilities, encode, END)
    expected = brute_force(texts, probabilities, encode)
    for prefix, children in expected.items():
        tokens, q = trie.next_tokens(prefix)
        assert q.sum() == pytest.approx(1, abs=1e-12)
        assert dict(zip(tokens.tolist(), q, strict=True)) == pytest.approx(children, abs=1e-12)


@pytest.mark.parametrize("encode", [single, grouped])
@given(weights=TEXTS)
def test_the_product_along_a_path_is_the_probability_of_its_text(encode, weights):
    trie = PrefixTrie(list(weights), list(weights.values()), encode, END)
    assert trie.probabilities.sum() == pytest.approx(1)
    for path, probability in zip(trie.sequences, trie.probabilities, strict=True):
        product = 1.0
        for depth, token in enumerate(path):
            tokens, q = trie.next_tokens(path[:depth])
            product *= q[tokens == token].item()
        assert product == pytest.approx(probability, rel=1e-9)
        with pytest.raises(KeyError):
            trie.next_tokens(path)
        with pytest.raises(KeyError):
            trie.next_tokens((*path, 1, 2))


def test_prefixes_off_the_trie_are_key_errors():
    trie = PrefixTrie(["1.5", "12"], [0.5, 0.5], single, END)
    for prefix in ("2", "1.6", "120", "123456789"):
        with pytest.raises(KeyError):
            trie.next_tokens(tuple(single(prefix)))


def test_texts_without_probability_are_left_out():
    trie = PrefixTrie(["1", "2", "3"], [0.5, 0.0, 0.5], single, END)
    assert trie.next_tokens(())[0].tolist() == single("13")
    assert len(trie.sequences) == 2


def test_samples_follow_the_probabilities():
    trie = PrefixTrie(["1", "2", "30"], [1, 2, 7], single, END)
    rng = np.random.default_rng(3)
    counts = Counter(trie.sample(rng) for _ in range(5000))
    for path, probability in zip(trie.sequences, trie.probabilities, strict=True):
        assert path[-1] == END
        assert abs(counts[path] - 5000 * probability) < 4 * np.sqrt(5000 * probability)


@pytest.mark.parametrize(
    ("texts", "probabilities", "message"),
    [
        (["1", "1"], [0.5, 0.5], "same tokens"),
        (["1", ""], [0.5, 0.5], "empty in tokens"),
        (["1", "\0"], [0.5, 0.5], "end token"),
        (["1", "2"], [0.5, -0.1], "not negative"),
        (["1", "2"], [0.0, 0.0], "not all zero"),
        (["1", "2"], [np.nan, 1.0], "finite"),
        (["1", "2"], [1.0], "2 texts"),
    ],
)
def test_what_is_no_distribution_over_texts_is_refused(texts, probabilities, message):
    with pytest.raises(ValueError, match=message):
        PrefixTrie(texts, probabilities, single, END)
