"""Divergences against enumeration with plain forward passes, and exact = limit of sampled."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import wasserstein_distance
from test_objectives import END, make_trie, plain_loss

from calibration_tuning.divergences import divergence, heaviest_prefixes
from calibration_tuning.families import Distribution
from calibration_tuning.objectives import Example
from calibration_tuning.trie import CdfTrie, PrefixTrie, path_targets
from tiny_models import ARCHITECTURES, build_model, build_tokenizer

PROMPT = [30, 31, 32, 33, 34, 35, 36, 37, 38, 39]


@torch.inference_mode()
def sequence_log_probability(model, path):
    logits = model(torch.tensor([[*PROMPT, *path[:-1]]])).logits[0].double()
    log_p = logits.log_softmax(-1)[len(PROMPT) - 1 :]
    return log_p[torch.arange(len(path)), torch.tensor(path)].sum().item()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_exact_values_equal_enumeration(architecture):
    model = build_model(architecture)
    trie = make_trie(mu=0.0, sigma=0.5)
    found = divergence(
        model, PROMPT, trie, exact_prefixes=100, sampled_paths=2, seed=0, max_prefixes=7
    )
    log_p = np.array([sequence_log_probability(model, path) for path in trie.sequences])
    q = trie.probabilities
    assert found.paths is None
    assert found.sequence_kl == pytest.approx((q * (np.log(q) - log_p)).sum(), rel=1e-5)
    assert found.space_mass == pytest.approx(np.exp(log_p).sum(), rel=1e-4)
    with torch.inference_mode():
        losses = [
            plain_loss(model, [Example(PROMPT, [path], path_targets(trie, [path]))]).item()
            for path in trie.sequences
        ]
    assert found.logit_kl == pytest.approx(q @ np.array(losses), rel=1e-5)


def test_sampled_paths_estimate_the_exact_value_within_their_standard_error():
    model = build_model("qwen3")
    trie = make_trie(mu=0.0, sigma=1.0)
    exact = divergence(model, PROMPT, trie, exact_prefixes=100, sampled_paths=2, seed=0)
    sampled = divergence(model, PROMPT, trie, exact_prefixes=3, sampled_paths=400, seed=0)
    assert sampled.space_mass is None
    assert sampled.paths == 400
    for name in ("logit_kl", "sequence_kl"):
        error = getattr(sampled, f"{name}_standard_error")
        assert error > 0
        assert abs(getattr(sampled, name) - getattr(exact, name)) < 4 * error
    repeated = divergence(model, PROMPT, trie, exact_prefixes=3, sampled_paths=400, seed=0)
    assert repeated == sampled


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_heaviest_prefixes_and_paths_for_the_rest(architecture):
    """Any share of prefixes evaluated exactly estimates the same value; many, better."""
    model = build_model(architecture)
    trie = make_trie(mu=0.0, sigma=1.0)
    exact = divergence(model, PROMPT, trie, exact_prefixes=1000, sampled_paths=2, seed=0)
    errors = []
    for count in (1, 10, 30):
        part = divergence(model, PROMPT, trie, exact_prefixes=count, sampled_paths=200, seed=1)
        assert part.prefixes == count
        for name in ("logit_kl", "sequence_kl"):
            error = getattr(part, f"{name}_standard_error")
            assert abs(getattr(part, name) - getattr(exact, name)) < 4 * error
        assert part.space_mass_bound >= exact.space_mass - 1e-6
        errors.append(part.sequence_kl_standard_error)
    assert errors[-1] < errors[0]


@pytest.mark.parametrize(
    ("family", "params"),
    [("poisson", {"lambda": 4.0}), ("gaussian", {"mu": 0.0, "sigma": 1.0})],
)
def test_a_trie_from_the_cdf_gives_the_same(family, params):
    model = build_model("llama")
    distribution = Distribution(family, params)
    space = distribution.output_space(1, 10**6)
    one = PrefixTrie(space.texts, space.probabilities, encode_grouped, END)
    other = CdfTrie(distribution, 1, encode_grouped, END)
    arguments = {"exact_prefixes": 10**6, "sampled_paths": 2, "seed": 0}
    first = divergence(model, PROMPT, one, **arguments)
    second = divergence(model, PROMPT, other, **arguments)
    assert first.paths is None
    assert first[:-1] == pytest.approx(second[:-1], rel=1e-5)
    assert second.paths is None


def encode_grouped(text):
    return build_tokenizer("llama").encode(text, add_special_tokens=False)


def test_the_distance_given_the_space():
    model = build_model("qwen3")
    trie = make_trie(mu=0.0, sigma=0.5)
    found = divergence(model, PROMPT, trie, exact_prefixes=100, sampled_paths=2, seed=0)
    p = np.exp([sequence_log_probability(model, path) for path in trie.sequences])
    values = np.array([float(trie.text(path)) for path in trie.sequences])
    expected = wasserstein_distance(values, values, p / p.sum(), trie.probabilities)
    assert found.space_wasserstein == pytest.approx(expected, rel=1e-4)
    assert found.space_mass_bound == pytest.approx(found.space_mass, rel=1e-6)


@given(st.integers(1, 60))
def test_heaviest_prefixes_come_after_their_own_prefixes(count):
    trie = make_trie(mu=0.0, sigma=1.0)
    prefixes, branches, beyond = heaviest_prefixes(trie, count)
    assert len(prefixes) == len(set(prefixes)) <= count
    every = {s[:i] for s in trie.sequences for i in range(len(s))}
    assert (not beyond) == (len(prefixes) == len(every))
    # Every text ends at a prefix that was taken or goes on beyond one.
    ended = branches.mass[branches.token == END].sum()
    assert ended + sum(mass for mass, _ in beyond) == pytest.approx(1)
    seen = set()
    for prefix in prefixes:
        assert not prefix or prefix[:-1] in seen
        seen.add(prefix)
    assert sorted(set(branches.row)) == list(range(len(prefixes)))


def test_a_model_that_is_the_target_diverges_by_nothing():
    trie = make_trie("bernoulli", p=0.25)

    class Target(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))
            self.device = torch.device("cpu")
            self.config = build_model("llama").config

        def forward(self, input_ids, position_ids, logits_to_keep, **_):
            logits = torch.full((1, len(logits_to_keep), 60), -50.0)
            for row, node in enumerate(logits_to_keep.tolist()):
                depth = int(position_ids[0, node]) - len(PROMPT) + 1
                token = input_ids[0, node].item()
                tokens, q = trie.next_tokens((token,) if depth else ())
                logits[0, row, torch.tensor(tokens)] = torch.tensor(np.log(q)).float()
            return type("Output", (), {"logits": logits})

    found = divergence(Target(), PROMPT, trie, exact_prefixes=10, sampled_paths=2, seed=0)
    assert found.sequence_kl == pytest.approx(0, abs=1e-5)
    assert found.space_mass == pytest.approx(1, abs=1e-5)
    assert END in trie.sequences[0]
