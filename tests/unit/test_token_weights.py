"""Paper B's quantities: published check values, their laws, and the bounds they rest on."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from calibration_tuning import token_weights
from calibration_tuning.token_weights import TokenStatistics

SEEDS = st.integers(0, 10**6)


def random_case(seed, rows=6, vocabulary=50):
    """Logits from nearly flat to very sharp, with ties, and targets; float64."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(rows, vocabulary)) * rng.choice([0.01, 1, 5, 30], size=(rows, 1))
    logits = np.where(rng.random((rows, 1)) < 0.3, np.round(logits), logits)
    return torch.tensor(logits), torch.tensor(rng.integers(0, vocabulary, rows))


def statistics_of(p, rank, entropy, largest):
    values = [torch.tensor(x, dtype=torch.float32) for x in (math.log(p), entropy, largest)]
    return TokenStatistics(values[0], torch.tensor(rank), *values[1:])


@pytest.mark.parametrize(
    ("p", "rank", "entropy", "largest", "expected"),
    [
        (0.05, 2, 0.3, 0.94, 3.22),
        (0.001, 30, 0.3, 0.96, 1.32),
        (0.15, 3, 3.0, 0.5, 1.22),
        (1e-4, 2000, 6.0, 0.5, 1.05),
    ],
)
def test_published_values_of_the_scale(p, rank, entropy, largest, expected):
    found = token_weights.scale_from_bounds(statistics_of(p, rank, entropy, largest))
    assert found.item() == pytest.approx(expected, abs=0.005)


def test_the_scale_has_no_upper_clip_but_a_floor_inside_the_power():
    sure = token_weights.scale_from_bounds(statistics_of(1e-30, 2, 0.01, 0.999))
    assert sure.item() == pytest.approx(1e-6 ** -(1 / math.log2(3) ** 2), rel=1e-5)  # 243


@given(SEEDS)
def test_statistics_are_those_of_one_row_at_a_time(seed):
    logits, targets = random_case(seed)
    found = token_weights.token_statistics(logits, targets)
    p = logits.softmax(dim=-1)
    for row, target in enumerate(targets):
        own = p[row, target]
        assert found.log_probability[row] == pytest.approx(own.log().item(), rel=1e-4, abs=1e-4)
        assert found.rank[row] == sum(
            value >= logits.float()[row, target] for value in logits.float()[row]
        )
        bits = sum(-x * math.log2(x) for x in p[row].tolist() if x > 0)
        assert found.entropy[row] == pytest.approx(bits, abs=1e-4)
        assert found.largest[row] == pytest.approx(p[row].max().item(), abs=1e-5)


def test_chunks_and_shared_rows_change_nothing(monkeypatch):
    logits, targets = random_case(3, rows=40)
    whole = token_weights.token_statistics(logits.float(), targets)
    monkeypatch.setattr(token_weights, "VALUES_AT_A_TIME", 3 * logits.shape[1])
    for got, expected in zip(
        token_weights.token_statistics(logits.float(), targets), whole, strict=True
    ):
        assert torch.equal(got, expected)
    rows, tokens = torch.tensor([5, 5, 0, 39]), torch.tensor([1, 2, 3, 4])
    shared = token_weights.token_statistics(logits.float(), tokens, rows)
    for got, expected in zip(
        shared, token_weights.token_statistics(logits.float()[rows], tokens), strict=True
    ):
        assert torch.equal(got, expected)
    shaped = token_weights.relative_scale(logits.reshape(4, 10, -1), targets.reshape(4, 10))
    assert torch.equal(shaped.reshape(-1), token_weights.relative_scale(logits, targets))


def test_excluded_tokens_count_nothing():
    logits = torch.tensor([[0.0, 0.0, -math.inf, -math.inf]])
    found = token_weights.token_statistics(logits, torch.tensor([1]))
    assert found.entropy.item() == pytest.approx(1)
    assert found.rank.item() == 2
    assert found.log_probability.item() == pytest.approx(-math.log(2))


@given(SEEDS)
def test_rank_is_at_most_one_over_the_probability(seed):
    logits, targets = random_case(seed)
    found = token_weights.token_statistics(logits, targets)
    p = logits.softmax(dim=-1).gather(-1, targets[:, None])[:, 0]
    assert (found.rank * p <= 1 + 1e-6).all()


def worst_cases():
    """Geometric distributions, for which Massey's bound is nearly tight, uniform, two-level."""
    for ratio in np.linspace(0.05, 0.995, 60):
        yield f"geometric {ratio:.3f}", np.log(ratio) * np.arange(4000)
    for n in (1, 2, 3, 4, 5, 8, 100, 4000):
        yield f"uniform {n}", np.where(np.arange(4000) < n, 0.0, -np.inf)
    for top in np.linspace(0.01, 0.999, 40):
        rest = np.full(3999, (1 - top) / 3999)
        yield f"spike {top:.3f}", np.log(np.concatenate([[top], rest]))


def bound_and_rank(logits):
    logits = torch.as_tensor(logits, dtype=torch.float64)
    p = logits.softmax(dim=-1)
    bits = torch.special.entr(p).sum(-1) / math.log(2)
    return token_weights.expected_rank_bound(bits, p.amax(-1)), token_weights.expected_rank(logits)


def test_expected_rank_is_at_least_the_bound_on_worst_cases():
    for name, logits in worst_cases():
        bound, expected = bound_and_rank(logits)
        assert expected >= bound - 1e-9, name


def test_bounds_are_tight_where_they_can_be():
    bound, expected = bound_and_rank(np.log([0.7, 0.3]))  # below two bits, two tokens
    assert bound.item() == pytest.approx(expected.item(), abs=1e-12)
    # Geometric with ratio 1/2, two bits and expected rank 2, is Massey's case of equality.
    bound, expected = bound_and_rank(np.log(0.5 + 1e-6) * np.arange(900))
    assert expected.item() == pytest.approx(2, abs=1e-5)
    assert bound.item() == pytest.approx(2, abs=1e-5)


@given(SEEDS)
def test_expected_rank_is_at_least_the_bound_on_random_distributions(seed):
    logits, _ = random_case(seed, rows=20)
    bound, expected = bound_and_rank(logits)
    assert (expected >= bound - 1e-9).all()


@given(st.integers(1, 5000), st.floats(1, 5000))
def test_indicator_is_one_exactly_where_the_rank_is_as_expected(rank, expected):
    rank, expected = (torch.tensor(float(x), dtype=torch.float64) for x in (rank, expected))
    found = token_weights.relative_rank_indicator(rank, expected)
    assert token_weights.relative_rank_indicator(rank, rank) == 1
    if abs(rank - expected) > 1e-6 * rank:
        assert (found > 1) == (rank < expected)
        assert (found < 1) == (rank > expected)


@given(st.integers(1, 5000), st.floats(1, 5000))
def test_mean_value_identity(rank, expected):
    """I = (E[R] / R)^K(xi) for a xi between R and E[R], found as a root."""
    if abs(rank - expected) < 1e-3 * rank:
        return
    r, e = (torch.tensor(float(x), dtype=torch.float64) for x in (rank, expected))
    indicator = token_weights.relative_rank_indicator(r, e).item()
    exponent = math.log(indicator) / math.log(expected / rank)

    def difference(xi):
        found = token_weights.mean_value_exponent(torch.tensor(xi, dtype=torch.float64))
        return found.item() - exponent

    low, high = sorted((float(rank), expected))
    assert difference(low) > 0 > difference(high)
    xi = brentq(difference, low, high)
    assert (expected / rank) ** (difference(xi) + exponent) == pytest.approx(indicator, rel=1e-9)


def test_exponents_at_one():
    one = torch.tensor(1.0)
    assert token_weights.mean_value_exponent(one).item() == 0.5
    assert token_weights.trained_exponent(one).item() == 1


@given(SEEDS, st.floats(-50, 50))
def test_weights_do_not_change_with_a_constant_in_the_logits(seed, constant):
    logits, targets = random_case(seed)
    logits = torch.round(logits * 64) / 64  # so that adding does not round ties apart
    constant = round(constant * 64) / 64
    for weight in (
        token_weights.relative_scale,
        lambda z, y: token_weights.dft_weight(token_weights.token_statistics(z, y)),
        lambda z, y: token_weights.eaft_weight(z),
        token_weights.overtone_loss,
    ):
        found, moved = weight(logits, targets), weight(logits + constant, targets)
        torch.testing.assert_close(found, moved, rtol=2e-4, atol=1e-5)


def test_no_gradient_flows_through_a_weight():
    logits, targets = random_case(0)
    logits.requires_grad_()
    statistics = token_weights.token_statistics(logits, targets)
    assert not token_weights.relative_scale(logits, targets).requires_grad
    assert not token_weights.eaft_weight(logits).requires_grad
    assert not token_weights.overtone_target(logits, targets).requires_grad
    sequence = torch.zeros(len(targets), dtype=torch.int64)
    log_p = logits.log_softmax(-1).gather(-1, targets[:, None])[:, 0]
    assert not token_weights.talr_temperature(log_p, sequence).requires_grad
    assert not statistics.log_probability.requires_grad
    assert token_weights.overtone_loss(logits, targets).requires_grad


def test_dft_and_eaft_by_hand():
    p = torch.tensor([[0.5, 0.25, 0.25]])
    statistics = token_weights.token_statistics(p.log(), torch.tensor([1]))
    assert token_weights.dft_weight(statistics).item() == pytest.approx(0.25)
    assert token_weights.eaft_weight(p.log()).item() == pytest.approx(1.5 * math.log(2) / 3)
    flat = torch.zeros(1, 1000)
    assert token_weights.eaft_weight(flat).item() == pytest.approx(math.log(20) / 3)
    # Only the likeliest 20 count, renormalised.
    spread = torch.cat([torch.zeros(1, 20), torch.full((1, 980), -3.0)], dim=1)
    assert token_weights.eaft_weight(spread).item() == pytest.approx(math.log(20) / 3)


def test_talr_by_hand():
    log_p = torch.tensor([-1.0, -3.0, -4.0, -1.0, -1.0, -40.0])
    sequence = torch.tensor([0, 0, 1, 2, 2, 3])  # mean losses 2, 4, 1, 40: median 3
    temperature = token_weights.talr_temperature(log_p, sequence)
    assert temperature.item() == pytest.approx(3)
    found = token_weights.talr_weight(log_p, temperature)
    torch.testing.assert_close(found, torch.exp(log_p / 3).clamp_min(0.01))
    assert found[-1] == pytest.approx(0.01)
    sure = token_weights.talr_temperature(torch.zeros(3), torch.tensor([0, 1, 2]))
    assert token_weights.talr_weight(torch.zeros(3), sure).tolist() == [1, 1, 1]


@given(SEEDS)
def test_overtone_targets_are_distributions_whose_likeliest_token_is_the_target(seed):
    logits, targets = random_case(seed)
    found = token_weights.overtone_target(logits, targets)
    torch.testing.assert_close(found.sum(-1), torch.ones(len(targets)), rtol=1e-5, atol=1e-5)
    assert (found >= 0).all()
    at_target = found.gather(-1, targets[:, None])[:, 0]
    assert (at_target == found.amax(-1)).all()
    assert (at_target >= token_weights.OVERTONE_MIXING - 1e-6).all()


def test_overtone_by_hand():
    logits = torch.tensor([[2.0, 2.0, -9.0, -9.0]], dtype=torch.float64)
    first = token_weights.overtone_target(logits, torch.tensor([0]))
    torch.testing.assert_close(first, torch.tensor([[0.55, 0.45, 0.0, 0.0]]))
    other = token_weights.overtone_target(logits, torch.tensor([2]))  # filtered out: one-hot
    assert other.tolist() == [[0, 0, 1, 0]]
    loss = token_weights.overtone_loss(logits, torch.tensor([2]))
    assert loss.item() == pytest.approx(11 + math.log(2), abs=1e-4)
    # As good as the target already: the floor, and no gradient.
    logits = torch.tensor([[2.2, 2.0, -9.0, -9.0]], requires_grad=True)
    loss = token_weights.overtone_loss(logits, torch.tensor([0]))
    loss.sum().backward()
    assert loss.item() == pytest.approx(token_weights.OVERTONE_FLOOR)
    assert (logits.grad == 0).all()
