"""Hard targets weighted by token (Paper B), in a packed batch.

A weight is a function of the model's distribution and the target token, so tokens that several
completions share have one, and their entries in the batch are multiplied by it. Nothing else of
the loss changes; no gradient flows through a weight.
"""

from collections.abc import Callable, Mapping

import torch

from calibration_tuning import token_weights
from calibration_tuning.objectives import packed_loss


def _ranktuner(logits: torch.Tensor, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return token_weights.scale_from_bounds(_statistics(logits, batch))


def _ranktuner_probability(logits: torch.Tensor, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    statistics = _statistics(logits, batch)
    return token_weights.scale_from_bounds(statistics) * token_weights.dft_weight(statistics)


def _dft(logits: torch.Tensor, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return token_weights.dft_weight(_statistics(logits, batch))


def _eaft(logits: torch.Tensor, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return token_weights.eaft_weight(logits)[batch["target_row"]]


def _talr(logits: torch.Tensor, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    log_p = _statistics(logits, batch).log_probability
    drawn = log_p[batch["token_target"]]
    temperature = token_weights.talr_temperature(drawn, batch["token_sequence"])
    return token_weights.talr_weight(log_p, temperature)


def _statistics(
    logits: torch.Tensor, batch: Mapping[str, torch.Tensor]
) -> token_weights.TokenStatistics:
    return token_weights.token_statistics(logits, batch["target_token"], batch["target_row"])


OVERTONE = "overtone"
WEIGHTINGS: dict[str, Callable] = {
    "ranktuner": _ranktuner,
    "ranktuner_probability": _ranktuner_probability,
    "dft": _dft,
    "eaft": _eaft,
    "talr": _talr,
}
"""What a method's `token_weights` may name beside `OVERTONE`, which changes the target instead.

Logits (rows, vocabulary) and the tensors of a `PackedBatch` of hard targets -> float32 (targets,).
TALR's median is over the completions of a micro-batch. `ranktuner_probability` is Paper B's choice
for mathematics, with the factor p.
"""


def weighted_loss(
    logits: torch.Tensor, batch: Mapping[str, torch.Tensor], weighting: str | None
) -> torch.Tensor:
    """`packed_loss` of a batch; with a weighting, of hard targets weighted by token.

    Weights are not normalised: as in Paper B, the sum is divided by the number of tokens.

    Parameters
    ----------
    logits : tensor (rows, vocabulary)
        Overwritten in the backward pass.
    batch : mapping of the fields of a `PackedBatch` to tensors
    weighting : str or None
        A name of `WEIGHTINGS`, or `OVERTONE`.

    Returns
    -------
    scalar tensor, nats per token
    """
    row, token, weight = (batch[f"target_{name}"] for name in ("row", "token", "weight"))
    if weighting == OVERTONE:
        losses = token_weights.overtone_loss(logits[row], token)
        return weight @ losses
    if weighting is not None:
        weight = weight * WEIGHTINGS[weighting](logits.detach(), batch)
    return packed_loss(logits, row, token, weight, batch["target_log"])
