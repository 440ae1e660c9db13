"""Weights of single tokens in supervised fine-tuning (Paper B), all without gradient.

Paper B compares the rank R of the target token y among all tokens with the rank E[R] that a draw
from the model's own next-token distribution has on average. A token that ranks worse than the
model expects of itself is informative; the Relative Rank Indicator I = g(f(R) - f(E[R])) says by
how much, and the Relative Scale S = 1 / I weights its loss. Neither is trained with as it stands:
ranks are replaced by bounds from the probability p and the entropy H of the distribution,
R <= 1/p and E[R] >= s(H), and f and g by an exponent from the mean value theorem.

The other weightings (DFT, EAFT, TALR) and OverTone's target are what Paper B compares with, as it
states them (B3).
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

VALUES_AT_A_TIME = 2**21
"""Logits that are worked on at once; what is computed of them takes a few times their memory."""

LEAST_LOGIT = -1e4
"""Relative to the largest: probability 0 in float32, and 0 times it is 0."""

SCALE_FLOOR = 1e-6
"""Of p * s, before it is raised to a power (Paper B, B2)."""

MASSEY_LEAST_BITS = 2.0
"""Massey's bound holds for distributions of at least two bits."""

EAFT_TOKENS = 20
EAFT_DIVISOR = 3.0
TALR_FLOOR = 0.01
"""Least weight of TALR. Our reading: the paper gives the number and not what it is a floor of."""

OVERTONE_MIXING = 0.1
OVERTONE_DEVIATIONS = 0.5
OVERTONE_FLOOR = 0.05
"""Weight of the one-hot target, standard deviations of the logits that the filter keeps below the
largest, and least KL in nats. Paper B publishes none of the three: they are our choices."""


class TokenStatistics(NamedTuple):
    """What the weights need to know of a target token and the distribution it was to come from.

    Attributes
    ----------
    log_probability : float32 tensor (...)
        Of the target, nats.
    rank : int64 tensor (...)
        Number of tokens with a logit at least the target's: 1 is the likeliest, ties count against.
    entropy : float32 tensor (...)
        Of the distribution, bits.
    largest : float32 tensor (...)
        Probability of the likeliest token.
    """

    log_probability: torch.Tensor
    rank: torch.Tensor
    entropy: torch.Tensor
    largest: torch.Tensor


@torch.no_grad()
def token_statistics(
    logits: torch.Tensor, targets: torch.Tensor, rows: torch.Tensor | None = None
) -> TokenStatistics:
    """Probability, rank and entropy at each target, a few rows of logits at a time.

    Parameters
    ----------
    logits : tensor (..., vocabulary)
        Of any floating dtype; computed with in float32. May contain -inf.
    targets : int64 tensor (...)
        Token ids.
    rows : int64 tensor, of the shape of targets, optional
        The row of logits (rows, vocabulary) of each target, where several share one.

    Returns
    -------
    TokenStatistics of the shape of targets
    """
    flat = logits.reshape(-1, logits.shape[-1])
    tokens = targets.reshape(-1)
    rows = torch.arange(len(tokens), device=tokens.device) if rows is None else rows.reshape(-1)
    step = max(1, VALUES_AT_A_TIME // flat.shape[-1])
    parts = [
        _statistics(flat[row].float(), token)
        for row, token in zip(rows.split(step), tokens.split(step), strict=True)
    ]
    return TokenStatistics(*(torch.cat(p).reshape(targets.shape) for p in zip(*parts, strict=True)))


def _statistics(logits: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """As `TokenStatistics`; overwrites the logits (n, vocabulary)."""
    own = logits.gather(1, tokens[:, None])
    rank = (logits >= own).sum(dim=1)
    largest = logits.amax(dim=1, keepdim=True)
    logits.sub_(largest).clamp_(min=LEAST_LOGIT)
    probabilities = logits.exp()
    total = probabilities.sum(dim=1)
    # Of the shifted logits z, with p = exp(z) / total: H = log total - sum p z.
    mean = torch.einsum("nv,nv->n", probabilities, logits) / total
    log_total = total.log()
    log_probability = (own - largest)[:, 0] - log_total
    return log_probability, rank, (log_total - mean).clamp_min(0) / math.log(2), 1 / total


@torch.no_grad()
def expected_rank(logits: torch.Tensor) -> torch.Tensor:
    """Rank of a draw from the distribution, on average: sum_i i p_(i), falling p (Paper B, B1).

    Parameters
    ----------
    logits : tensor (..., vocabulary)

    Returns
    -------
    tensor (...), float32, or float64 for float64 logits
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    probabilities = logits.to(dtype).softmax(dim=-1).sort(dim=-1, descending=True).values
    ranks = torch.arange(1, logits.shape[-1] + 1, device=logits.device, dtype=dtype)
    return probabilities @ ranks


def expected_rank_bound(entropy: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    """s(H), which the expected rank is never below (Paper B, B1).

    2^H / 4 + 1 from two bits on (Massey 1994). Below, 2 - p_max: all that is not the likeliest
    token ranks second or worse.

    Parameters
    ----------
    entropy : tensor (...), bits
    largest : tensor (...)
        Largest probability.
    """
    return torch.where(entropy >= MASSEY_LEAST_BITS, entropy.exp2() / 4 + 1, 2 - largest)


def reciprocal_log(x: torch.Tensor) -> torch.Tensor:
    """f(x) = 1 / log2(x + 1) of a rank, Paper B's choice: falls from 1."""
    return 1 / torch.log2(x + 1)


def relative_rank_indicator(
    rank: torch.Tensor,
    expected: torch.Tensor,
    f: Callable[[torch.Tensor], torch.Tensor] = reciprocal_log,
    g: Callable[[torch.Tensor], torch.Tensor] = torch.exp2,
) -> torch.Tensor:
    """I = g(f(R) - f(E[R])) (Paper B, B1): 1 where the token ranks as expected, less where worse.

    Parameters
    ----------
    rank, expected : tensors (...)
        R and E[R], both at least 1.
    f, g : functions of a tensor
        f falling, g rising with g(0) = 1; the ablation of Paper B varies them.
    """
    return g(f(rank) - f(expected))


def mean_value_exponent(xi: torch.Tensor) -> torch.Tensor:
    """K(xi) = xi / ((xi + 1) log2(xi + 1)^2), with which I = (E[R] / R)^K(xi) (Paper B, B1).

    For some xi between R and E[R], by Cauchy's mean value theorem for f and the logarithm.
    """
    return xi / ((xi + 1) * torch.log2(xi + 1) ** 2)


def trained_exponent(xi: torch.Tensor) -> torch.Tensor:
    """K = 1 / log2(xi + 1)^2, as Paper B trains with (B2): without the factor xi / (xi + 1)."""
    return 1 / torch.log2(xi + 1) ** 2


def scale_from_bounds(statistics: TokenStatistics) -> torch.Tensor:
    """S = max(p s(H), 1e-6)^(-K(xi)), xi = max(s(H), R, 1) (Paper B, B2); float32 (...)."""
    bound = expected_rank_bound(statistics.entropy, statistics.largest)
    xi = torch.maximum(bound, statistics.rank.to(bound.dtype)).clamp_min(1)
    base = (statistics.log_probability.exp() * bound).clamp_min(SCALE_FLOOR)
    return base ** -trained_exponent(xi)


def relative_scale(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """RankTuner's weight S of each target token as it is trained with (Paper B, B2).

    Bounds stand in place of ranks, so nothing is sorted. No gradient flows through it. Paper B
    multiplies it by p for mathematics and by nothing for general tasks, and neither normalises
    the weights nor clips them from above.

    Parameters
    ----------
    logits : tensor (..., vocabulary)
    targets : int64 tensor (...)

    Returns
    -------
    float32 tensor (...)
    """
    return scale_from_bounds(token_statistics(logits, targets))


def dft_weight(statistics: TokenStatistics) -> torch.Tensor:
    """DFT: the target's probability (Paper B, B3)."""
    return statistics.log_probability.exp()


@torch.no_grad()
def eaft_weight(logits: torch.Tensor, tokens: int = EAFT_TOKENS) -> torch.Tensor:
    """EAFT: entropy of the likeliest tokens by themselves, over 3 (Paper B, B3).

    Parameters
    ----------
    logits : tensor (..., vocabulary)
    tokens : int
        How many of the largest logits are renormalised; all if there are fewer.

    Returns
    -------
    float32 tensor (...): nats / 3, about 1 for 20 tokens that are equally likely
    """
    top = logits.topk(min(tokens, logits.shape[-1]), dim=-1).values.float()
    return torch.special.entr(top.softmax(dim=-1)).sum(dim=-1) / EAFT_DIVISOR


@torch.no_grad()
def talr_temperature(log_probability: torch.Tensor, sequence: torch.Tensor) -> torch.Tensor:
    """tau of TALR: the median over sequences of their mean token loss (Paper B, B3).

    Parameters
    ----------
    log_probability : float32 tensor (tokens,), nats
        Of every token of every sequence.
    sequence : int64 tensor (tokens,)
        The number of each token's sequence, from 0, none without a token.

    Returns
    -------
    scalar tensor, nats, above 0
    """
    sums = log_probability.new_zeros(int(sequence.max()) + 1)
    losses = sums.index_add(0, sequence, -log_probability) / sequence.bincount()
    # The mean of the middle two, which torch.median is not.
    return losses.quantile(0.5).clamp_min(torch.finfo(torch.float32).tiny)


def talr_weight(
    log_probability: torch.Tensor, temperature: torch.Tensor, floor: float = TALR_FLOOR
) -> torch.Tensor:
    """TALR: p^(1 / tau), at least the floor (Paper B, B3).

    Parameters
    ----------
    log_probability : tensor (...), nats
    temperature : scalar tensor, nats
        See `talr_temperature`.
    floor : float

    Returns
    -------
    tensor (...)
    """
    return (log_probability / temperature).exp().clamp_min(floor)


@torch.no_grad()
def overtone_target(
    logits: torch.Tensor,
    targets: torch.Tensor,
    mixing: float = OVERTONE_MIXING,
    deviations: float = OVERTONE_DEVIATIONS,
) -> torch.Tensor:
    """OverTone's target: the one-hot mixed into the model's own distribution (Paper B, B3).

    mixing * one-hot + (1 - mixing) * filtered, and the one-hot alone where the likeliest token of
    that would not be the target. Our reading of the filter, which Paper B does not state: tokens
    whose logit is within some standard deviations of the largest one, renormalised.

    Parameters
    ----------
    logits : tensor (..., vocabulary)
    targets : int64 tensor (...)

    Returns
    -------
    float32 tensor (..., vocabulary), rows sum to 1
    """
    logits = logits.float()
    least = logits.amax(-1, keepdim=True) - deviations * logits.std(-1, keepdim=True)
    filtered = logits.masked_fill(logits < least, -math.inf).softmax(dim=-1)
    one_hot = torch.zeros_like(filtered).scatter_(-1, targets[..., None], 1)
    mixed = mixing * one_hot + (1 - mixing) * filtered
    is_target = mixed.argmax(dim=-1, keepdim=True) == targets[..., None]
    return torch.where(is_target, mixed, one_hot)


def overtone_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """max(KL(target || model), floor) at each position, nats; gradient flows into the model's part.

    Parameters
    ----------
    logits : tensor (..., vocabulary)
    targets : int64 tensor (...)

    Returns
    -------
    float32 tensor (...)
    """
    target = overtone_target(logits, targets)
    log_p = logits.float().log_softmax(dim=-1)
    # entr(q) = -q log q, and 0 at 0; a token with q = 0 counts 0 also where log p is -inf.
    cross = (target * log_p.clamp_min(LEAST_LOGIT)).sum(dim=-1)
    divergence = -torch.special.entr(target).sum(dim=-1) - cross
    return divergence.clamp_min(OVERTONE_FLOOR)
