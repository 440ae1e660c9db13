"""What ours is measured against computes the same."""

import numpy as np
import pytest
import torch
from test_objectives import END, encode, examples_of, make_trie, our_loss

from calibration_tuning import plain
from calibration_tuning.families import Distribution
from tiny_models import ARCHITECTURES, build_model


@pytest.mark.parametrize("gather", [False, True])
@pytest.mark.parametrize("objective", ["soft_target", "hard_target"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_loss_is_that_of_packed_training(architecture, objective, gather):
    model = build_model(architecture)
    examples = examples_of(objective, k=4)
    prompts = [example.prompt_ids for example in examples for _ in example.paths]
    paths = [path for example in examples for path in example.paths]
    targets = [target for example in examples for target in plain.targets_of(example)]
    loss = plain.batch_loss(model, prompts, paths, targets, pad_id=0, gather=gather)
    assert loss.item() == pytest.approx(our_loss(model, examples).item(), rel=1e-5)


def test_the_targets_are_those_of_the_prefix_trie():
    space = Distribution("gaussian", {"mu": 0.0, "sigma": 1.0}).output_space(1, 41)
    nested = plain.build_trie(*space, encode, END)
    trie = make_trie(mu=0.0, sigma=1.0)
    for path in trie.sequences[::5]:
        for depth, target in enumerate(plain.soft_targets(nested, path)):
            tokens, q = trie.next_tokens(path[:depth])
            assert target == pytest.approx(dict(zip(tokens.tolist(), q, strict=True)))


def test_generate_draws_from_the_full_distribution():
    model = build_model("llama")
    torch.manual_seed(0)
    rows = plain.generate_samples(
        model, [30, 31], 250, batch=100, stop_ids={3}, pad_id=0, max_new_tokens=1
    )
    p = model(torch.tensor([[30, 31]])).logits[0, -1].softmax(-1).detach().numpy()
    counts = np.bincount([row[0] for row in rows], minlength=len(p))
    assert len(rows) == 250
    assert (counts > 0).sum() > 50  # a top_k of 50 would leave no more
    assert abs(counts / 250 - p).max() < 0.15
