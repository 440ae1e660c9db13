"""The packed loss is the papers' loss: expected values, one position at a time, and gradients."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration_tuning.families import Distribution
from calibration_tuning.objectives import (
    OBJECTIVES,
    Example,
    pack_examples,
    packed_loss,
    soft_target_kl,
)
from calibration_tuning.packing import packed_logits
from calibration_tuning.trie import PrefixTrie
from tiny_models import ARCHITECTURES, build_model

EXPECTED = json.loads((Path(__file__).parents[1] / "data" / "expected.json").read_text())
END = 3


def encode(text):
    return [ord(character) - ord("-") + 30 for character in text]


def make_trie(family="gaussian", **params):
    space = Distribution(family, params).output_space(1, 41)
    return PrefixTrie(space.texts, space.probabilities, encode, END)


@pytest.mark.parametrize("case", EXPECTED["soft_loss"], ids=lambda c: c["family"])
def test_expected_soft_losses(case):
    space = Distribution(case["family"], case["params"]).output_space(2, 1001)
    trie = PrefixTrie(space.texts, space.probabilities, lambda t: [ord(c) for c in t], END)
    path = (*map(ord, case["value"]), END)
    losses = []
    for depth, known in enumerate(case["step_logits"]):
        logits = torch.full((case["vocab_size"],), case["other_logits"], dtype=torch.float64)
        for token, value in known.items():
            logits[END if token == "<end>" else ord(token)] = value
        losses.append(soft_target_kl(logits, *trie.next_tokens(path[:depth])))
    assert torch.stack(losses).mean().item() == pytest.approx(case["loss"], abs=1e-6)


@given(st.integers(0, 10**6))
def test_kl_is_never_negative_and_zero_at_the_target(seed):
    rng = np.random.default_rng(seed)
    q = rng.dirichlet(np.ones(5))
    tokens = rng.permutation(20)[:5]
    logits = torch.tensor(rng.normal(size=20))
    assert soft_target_kl(logits, tokens, q) >= 0
    at_target = torch.full((20,), -60.0, dtype=torch.float64)
    at_target[torch.tensor(tokens)] = torch.tensor(np.log(q))
    assert soft_target_kl(at_target, tokens, q).item() == pytest.approx(0, abs=1e-6)


def examples_of(objective, k, seed=0):
    rng = np.random.default_rng(seed)
    tries = [make_trie(mu=0.0, sigma=1.0), make_trie("poisson", **{"lambda": 4.0})]
    examples = []
    for number, trie in enumerate(tries):
        paths = [trie.sample(rng) for _ in range(k)]
        targets = OBJECTIVES[objective](trie, paths)
        examples.append(Example([30, 31, 32, 40 + number, 33, 34, 35, 36, 37], paths, targets))
    return examples


def targets_along(example, number):
    """(tokens, probabilities) at each position of one path of an example."""
    prefix, row, token, q = example.targets
    return [(token[row == at], q[row == at]) for at in prefix[number, : len(example.paths[number])]]


def plain_loss(model, examples):
    """The papers' way: one completion a sequence, one position at a time."""
    prompt_means = []
    for example in examples:
        path_means = []
        for number, path in enumerate(example.paths):
            logits = model(torch.tensor([[*example.prompt_ids, *path[:-1]]])).logits[0]
            start = len(example.prompt_ids) - 1
            targets = targets_along(example, number)
            losses = [soft_target_kl(logits[start + i], *t) for i, t in enumerate(targets)]
            path_means.append(torch.stack(losses).mean())
        prompt_means.append(torch.stack(path_means).mean())
    return torch.stack(prompt_means).mean()


def our_loss(model, examples):
    tensors = [torch.from_numpy(array) for array in pack_examples(examples)]
    return packed_loss(packed_logits(model, *tensors[:4]), *tensors[4:8])


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_packed_loss_and_gradients_equal_unpacked(architecture, objective):
    model = build_model(architecture)
    examples = examples_of(objective, k=6)
    ours = our_loss(model, examples)
    ours.backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    plain = plain_loss(model, examples)
    plain.backward()
    plain_gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert ours.item() == pytest.approx(plain.item(), rel=1e-5)
    largest = max(g.abs().max().item() for g in plain_gradients)
    for mine, theirs in zip(gradients, plain_gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=2e-6 * max(1.0, largest))


def test_the_gradient_is_scaled_with_the_loss():
    """Accumulation over micro-batches divides the loss before its backward pass."""
    model = build_model("llama")
    gradients = []
    for factor in (1.0, 0.25):
        model.zero_grad()
        (factor * our_loss(model, examples_of("soft_target", k=2))).backward()
        gradients.append(model.get_output_embeddings().weight.grad.clone())
    torch.testing.assert_close(gradients[1], 0.25 * gradients[0])


def test_the_loss_in_bfloat16_has_the_gradient_of_float32():
    tensors = [torch.from_numpy(a) for a in pack_examples(examples_of("soft_target", k=4))]
    logits = torch.randn(len(tensors[3]), 1200).bfloat16()
    gradients = []
    for dtype in (torch.float32, torch.bfloat16):
        leaf = logits.to(dtype).clone().requires_grad_()
        packed_loss(leaf * 1.0, *tensors[4:8]).backward()
        gradients.append(leaf.grad.float())
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-2, atol=1e-5)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10**6), st.sampled_from(sorted(OBJECTIVES)), st.integers(1, 8))
def test_every_path_weighs_the_same(seed, objective, k):
    batch = pack_examples(examples_of(objective, k, seed))
    # Each position's target sums to 1, so weights sum to 1 over the batch.
    assert batch.target_weight.sum() == pytest.approx(1, abs=1e-5)
    assert len(np.unique(np.stack([batch.target_row, batch.target_token]), axis=1).T) == len(
        batch.target_row
    )


def test_hard_targets_approach_soft_targets():
    """The gradient of many drawn values tends to that of the exact targets."""
    trie = make_trie("poisson", **{"lambda": 2.0})
    rng = np.random.default_rng(0)
    paths = [trie.sample(rng) for _ in range(4000)]
    logits = torch.zeros(60, requires_grad=True)

    def gradient(objective):
        example = Example([1], paths, OBJECTIVES[objective](trie, paths))
        first = [targets_along(example, number)[0] for number in range(len(paths))]
        loss = torch.stack([soft_target_kl(logits, *target) for target in first]).mean()
        return torch.autograd.grad(loss, logits)[0]

    assert (gradient("hard_target") - gradient("soft_target")).abs().max() < 0.03
