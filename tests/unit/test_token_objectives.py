"""Weighted losses of a packed batch are those of one completion and one token at a time."""

import numpy as np
import pytest
import torch

from calibration_tuning import token_weights, training
from calibration_tuning.families import Distribution
from calibration_tuning.objectives import Example, hard_targets
from calibration_tuning.token_objectives import OVERTONE, WEIGHTINGS, weighted_loss
from calibration_tuning.trie import PrefixTrie
from tiny_models import build_model

END = 3


def examples():
    """Completions of two prompts, several of which share prefixes, and one drawn twice."""
    rng = np.random.default_rng(5)
    found = []
    for number, (family, params) in enumerate(
        [("gaussian", {"mu": 0.0, "sigma": 1.0}), ("poisson", {"lambda": 4.0})]
    ):
        space = Distribution(family, params).output_space(1, 41)
        trie = PrefixTrie(space.texts, space.probabilities, encode, END)
        paths = [trie.sample(rng) for _ in range(5)]
        paths.append(paths[0])
        found.append(Example([30, 31, 40 + number, 32], paths, hard_targets(trie, paths)))
    return found


def encode(text):
    return [ord(character) - ord("-") + 30 for character in text]


def completions(model):
    """Logits (tokens, vocabulary) and targets (tokens,) of every completion by itself."""
    for example in examples():
        for path in example.paths:
            logits = model(torch.tensor([[*example.prompt_ids, *path[:-1]]])).logits[0]
            yield logits[len(example.prompt_ids) - 1 :], torch.tensor(path)


def plain_token_losses(name, logits, targets, temperature):
    """Weighted losses (tokens,) by the formulas, from float64 probabilities."""
    log_p = logits.log_softmax(-1)
    own = log_p.gather(-1, targets[:, None])[:, 0]
    p = own.detach().exp()
    if name == OVERTONE:
        return token_weights.overtone_loss(logits, targets)
    if name == "dft":
        weight = p
    elif name == "eaft":
        weight = token_weights.eaft_weight(logits)
    elif name == "talr":
        weight = (p ** (1 / temperature)).clamp_min(0.01)
    else:
        weight = token_weights.relative_scale(logits, targets)
        weight = weight * p if name == "ranktuner_probability" else weight
    return -weight * own


def plain_loss(name, model):
    """Mean over completions of the mean over their tokens; prompts have equally many."""
    cases = list(completions(model))
    means = [
        -logits.log_softmax(-1).gather(-1, targets[:, None]).mean() for logits, targets in cases
    ]
    temperature = float(np.median([mean.item() for mean in means]))
    losses = [plain_token_losses(name, *case, temperature).mean() for case in cases]
    return torch.stack(losses).mean()


@pytest.mark.parametrize("name", [*WEIGHTINGS, OVERTONE])
def test_loss_and_gradients_are_those_of_single_completions(name):
    model = build_model("llama")
    batch = training.collate(examples())
    ours = training.packed_batch_loss(model, batch, weighting=name)
    ours.backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    plain = plain_loss(name, model)
    plain.backward()
    assert ours.item() == pytest.approx(plain.item(), rel=1e-5)
    theirs = [p.grad for p in model.parameters() if p.grad is not None]
    largest = max(g.abs().max().item() for g in theirs)
    for mine, their in zip(gradients, theirs, strict=True):
        torch.testing.assert_close(mine, their, rtol=1e-3, atol=2e-6 * max(1.0, largest))


def test_tokens_of_completions_are_found_among_the_targets():
    batch = training.collate(examples())
    paths = [path for example in examples() for path in example.paths]
    tokens = batch["target_token"][batch["token_target"]].tolist()
    assert tokens == [token for path in paths for token in path]
    assert batch["token_sequence"].tolist() == [
        number for number, path in enumerate(paths) for _ in path
    ]
    rows = batch["rows"][batch["target_row"][batch["token_target"]]]
    first = rows[: len(paths[0])]
    assert first.tolist() == sorted(first.tolist())  # a path goes down the tree


def test_weights_of_one_change_nothing(monkeypatch):
    batch = training.collate(examples())
    logits = torch.randn(len(batch["rows"]), 200)
    monkeypatch.setitem(WEIGHTINGS, "ones", lambda z, b: torch.ones(len(b["target_token"])))
    assert weighted_loss(logits, batch, "ones") == weighted_loss(logits, batch, None)
