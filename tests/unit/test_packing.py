"""The packed tree is the unpacked computation: structure, mask, logits and gradients."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calibration_tuning.packing import layer_masks, pack, packed_logits, visibility
from tiny_models import ARCHITECTURES, SLIDING_WINDOW, build_config, build_model

SEQUENCES = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=7), min_size=1, max_size=12)


def prefixes(sequences):
    return {tuple(s[: i + 1]) for s in sequences for i in range(len(s))}


@given(SEQUENCES)
def test_one_node_for_each_distinct_prefix(sequences):
    tree = pack(sequences)
    assert len(tree.token_ids) == len(prefixes(sequences))
    for row, sequence in enumerate(sequences):
        nodes = tree.nodes[row, : len(sequence)]
        assert tree.token_ids[nodes].tolist() == list(sequence)
        assert tree.positions[nodes].tolist() == list(range(len(sequence)))
        assert (tree.nodes[row, len(sequence) :] == -1).all()


@given(SEQUENCES)
def test_a_node_sees_its_ancestors_and_itself_only(sequences):
    tree = pack(sequences)
    visible = visibility(torch.tensor(tree.subtree_end))
    for row, sequence in enumerate(sequences):
        nodes = tree.nodes[row, : len(sequence)]
        for depth, node in enumerate(nodes):
            assert np.flatnonzero(visible[node]).tolist() == sorted(nodes[: depth + 1])


def test_the_window_counts_depths_not_places_in_the_row():
    tree = pack([[0, 1, 2, 3], [0, 1, 3, 3], [0, 2, 2, 2]])
    depth = torch.tensor(tree.positions)
    config = build_config("gemma3", 10)
    config.sliding_window = 2
    visible = visibility(torch.tensor(tree.subtree_end))
    masks = layer_masks(config, visible, depth, depth, torch.float32)
    assert ((masks["full_attention"][0, 0] == 0) == visible).all()
    visible = masks["sliding_attention"][0, 0] == 0
    for row in range(3):
        nodes = tree.nodes[row]
        for depth, node in enumerate(nodes):
            assert np.flatnonzero(visible[node]).tolist() == sorted(
                nodes[max(0, depth - 1) : depth + 1]
            )


@pytest.mark.parametrize("bad", [[], [[1], []]])
def test_empty_sequences_are_refused(bad):
    with pytest.raises(ValueError, match="empty"):
        pack(bad)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_packed_logits_and_gradients_equal_unpacked(architecture):
    model = build_model(architecture)
    rng = np.random.default_rng(0)
    stem = rng.integers(5, 90, SLIDING_WINDOW + 4).tolist()
    sequences = []
    for _ in range(2):  # two prompts with a shared beginning, three completions each
        prompt = stem + rng.integers(5, 90, 4).tolist()
        sequences += [prompt + rng.integers(5, 8, 4).tolist() for _ in range(3)]
    tree = pack(sequences)
    last = torch.tensor([tree.nodes[i, len(s) - 1] for i, s in enumerate(sequences)])
    tensors = [torch.tensor(a) for a in (tree.token_ids, tree.positions, tree.subtree_end)]

    packed = packed_logits(model, *tensors, rows=last)
    packed.logsumexp(-1).sum().backward()
    packed_gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    plain = torch.stack([model(torch.tensor([s])).logits[0, -1] for s in sequences])
    plain.logsumexp(-1).sum().backward()
    plain_gradients = [p.grad for p in model.parameters() if p.grad is not None]

    torch.testing.assert_close(packed, plain, atol=2e-5, rtol=1e-5)
    assert len(packed_gradients) == len(plain_gradients)
    for ours, theirs in zip(packed_gradients, plain_gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=1e-3)
