"""The bit dropout is dropout: rate, scale, gradient, seed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calibration_tuning import checkpoints
from calibration_tuning.lora_dropout import BitDropout, use_bit_dropout
from tiny_models import build_model


@pytest.mark.parametrize("rate", [0.05, 0.5, 0.9])
def test_rate_and_scale(rate):
    torch.manual_seed(0)
    dropout = BitDropout(rate).train()
    y = dropout(torch.ones(1000, 257))
    dropped = (y == 0).float().mean().item()
    assert dropped == pytest.approx(rate, abs=0.005)
    assert y.max().item() == pytest.approx(1 / (1 - rate), rel=1e-3)
    assert y.mean().item() == pytest.approx(1, abs=0.01)


@given(st.lists(st.integers(0, 7), min_size=1, max_size=3), st.floats(0, 0.99))
def test_any_shape_and_rate(shape, rate):
    x = torch.randn(shape)
    dropout = BitDropout(rate)
    y = dropout.train()(x)
    assert y.shape == x.shape
    kept = y != 0
    scale = 65536 / (65536 - dropout.dropped)
    assert torch.allclose(y[kept], x[kept] * scale)
    assert dropout.eval()(x) is x


def test_the_gradient_is_that_of_what_was_kept_and_the_seed_decides():
    x = torch.ones(50, 50, requires_grad=True)
    dropout = BitDropout(0.3).train()
    torch.manual_seed(4)
    y = dropout(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    torch.manual_seed(4)
    assert torch.equal(dropout(x), y)
    assert not torch.equal(dropout(x), y)


def test_neighbouring_elements_are_independent():
    """Four elements share one 64-bit draw."""
    torch.manual_seed(1)
    kept = (BitDropout(0.5).train()(torch.ones(40_000, 4)) > 0).float()
    correlation = torch.corrcoef(kept.T) - torch.eye(4)
    assert correlation.abs().max() < 0.02
    assert (kept.mean(dim=0) - 0.5).abs().max() < 0.01


def test_it_replaces_the_dropout_of_lora_layers_only():
    model = build_model("qwen3")
    lora = {"rank": 4, "alpha": 8, "dropout": 0.25}
    model = checkpoints.attach_new_adapter(model, lora, seed=1)
    use_bit_dropout(model)
    replaced = [m for m in model.modules() if isinstance(m, BitDropout)]
    assert len(replaced) == 2 * 4  # layers x projections
    assert {m.dropped for m in replaced} == {16384}
    assert not [m for m in model.modules() if isinstance(m, torch.nn.Dropout)]
