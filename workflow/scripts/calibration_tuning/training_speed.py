"""What a fixed time of training buys, ours against the papers' way.

Every way trains the same adapter on the same machine for the same seconds, with a learning rate
that falls to 0 over that time, and stops a few times to be measured on the held-out families. The
clock runs for training only. The plain way's tries are built while it stands still, which they do
not in practice, and ours are not.
"""

import math
import statistics as plain_statistics
import time
from collections.abc import Callable, Iterator, Sequence

import torch

from calibration_tuning import chat, plain, statistics
from calibration_tuning.divergences import divergence
from calibration_tuning.evaluations.structured import score_prompt
from calibration_tuning.evaluations.structured_sampling import may_become_number
from calibration_tuning.families import Distribution
from calibration_tuning.lora_dropout import use_bit_dropout
from calibration_tuning.objectives import Example
from calibration_tuning.sampling import sample_prompts
from calibration_tuning.training import (
    MAX_GRADIENT_NORM,
    VisitDataset,
    collate,
    packed_batch_loss,
    plan_visits,
)
from calibration_tuning.trie import FULL_RESOLUTION, build_trie

WARM_UP = 0.03
PASSES = 20
"""Passes over the prompts that are planned: more than any way has time for."""
TARGET_BINS = 1001
"""Of the grid whose standard deviation W1 is divided by."""


def packed_step(model: torch.nn.Module, examples: Sequence[Example]) -> torch.Tensor:
    """The loss of one step our way."""
    batch = {name: tensor.to(model.device) for name, tensor in collate(examples).items()}
    return packed_batch_loss(model, batch)


def plain_step(model: torch.nn.Module, examples: Sequence[Example]) -> torch.Tensor:
    """The loss of one step the papers' way; one value a visit."""
    targets = [plain.targets_of(example)[0] for example in examples]
    prompts = [example.prompt_ids for example in examples]
    paths = [example.paths[0] for example in examples]
    return plain.batch_loss(model, prompts, paths, targets, pad_id=paths[0][-1])


def learning_rate(peak: float, share: float) -> float:
    """Peak times warm-up and cosine, at a share of the time."""
    return peak * min(1.0, share / WARM_UP) * 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))


def train_for_seconds(
    model: torch.nn.Module,
    dataset: VisitDataset,
    way: dict,
    seconds: float,
    marks: Sequence[float],
) -> Iterator[tuple[float, int, int]]:
    """Train in place, pausing at some shares of the time.

    Parameters
    ----------
    model : PEFT model with a fresh adapter
    dataset : its visits are taken in order
    way : packed (bool), packing, batch, learning_rate, weight_decay
    seconds : float
    marks : shares of the time, rising, the last of them 1

    Yields
    ------
    seconds trained, steps, values seen
    """
    step = packed_step if way["packed"] else plain_step
    if way["packed"] and model.device.type == "cpu":
        use_bit_dropout(model)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, weight_decay=way["weight_decay"])
    visits_in_a_step = way["batch"] // way["packing"]
    elapsed, steps = 0.0, 0
    for mark in marks:
        model.train()
        while elapsed < mark * seconds:
            first = steps * visits_in_a_step
            start = time.perf_counter()
            examples = [dataset[first + i] for i in range(visits_in_a_step)]
            if not way["packed"]:
                start = time.perf_counter()  # its tries were built beforehand
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(way["learning_rate"], elapsed / seconds)
            step(model, examples).backward()
            torch.nn.utils.clip_grad_norm_(parameters, MAX_GRADIENT_NORM)
            optimizer.step()
            optimizer.zero_grad()
            elapsed += time.perf_counter() - start
            steps += 1
        model.eval()
        yield elapsed, steps, steps * way["batch"]


def measure_kl(model, tokenizer, records: Sequence[dict], settings: dict, seed: int) -> dict:
    """Mean divergences over prompts, every family with equal weight; nats."""
    found = []
    for number, record in enumerate(records):
        trie = build_trie(
            Distribution(record["family"], record["params"]),
            settings["decimals"],
            FULL_RESOLUTION,
            chat.completion_encoder(tokenizer),
            chat.end_of_turn_id(tokenizer, settings["chat"]),
        )
        found.append(
            divergence(
                model,
                chat.encode_prompt(tokenizer, record["prompt"], settings["chat"]),
                trie,
                exact_prefixes=settings["exact_prefixes"],
                sampled_paths=settings["sampled_paths"],
                seed=[seed, number],
            )
        )
    return {
        name: _family_mean([getattr(one, name) for one in found], records)
        for name in ("sequence_kl", "logit_kl")
    }


def measure_samples(model, tokenizer, records: Sequence[dict], settings: dict, seed: int) -> dict:
    """Valid rate and normalised W1 of samples; W1 as mean over families and median over prompts."""
    samples = sample_prompts(
        model,
        tokenizer,
        [chat.encode_prompt(tokenizer, r["prompt"], settings["chat"]) for r in records],
        settings["samples"],
        stop_ids=chat.stop_ids(tokenizer, model.generation_config, settings["chat"]),
        seed=[seed, len(records)],
        viable=may_become_number,
    )
    scores = [
        score_prompt(
            [sample.text for sample in of_prompt],
            Distribution(record["family"], record["params"]),
            settings["decimals"],
            TARGET_BINS,
        )
        for record, of_prompt in zip(records, samples, strict=True)
    ]
    distances = [score["wasserstein_normalised"] for score in scores]
    known = [distance for distance in distances if distance is not None]
    return {
        "valid_rate": _family_mean([score["valid_rate"] for score in scores], records),
        "wasserstein": _family_mean(distances, records),
        "wasserstein_median": plain_statistics.median(known) if known else None,
        "wasserstein_prompts": len(known),
    }


def _family_mean(values: Sequence[float | None], records: Sequence[dict]) -> float | None:
    families = [record["family"] for record in records]
    return statistics.family_mean_interval(values, families, seed=0)["mean"]


def run_way(
    model: torch.nn.Module,
    tokenizer,
    prompts: dict[str, Sequence[dict]],
    settings: dict,
    seed: int,
    report: Callable[[str], object],
) -> list[dict]:
    """Train one way and measure it as it goes.

    Parameters
    ----------
    model : PEFT model with a fresh adapter
    tokenizer : the model's
    prompts : records of "train" and "heldout"
    settings : way (see `train_for_seconds`, with objective, decimals, max_bins), seconds,
        checkpoints, decimals, samples, exact_prefixes, sampled_paths, chat
    seed : int
    report : told a line at each stop

    Returns
    -------
    list of dict
        seconds, steps, values, sequence_kl and logit_kl at each stop, and of samples at the last.
    """
    way = settings["way"]
    families = [record["family"] for record in prompts["train"]]
    budget = {"epochs": PASSES, "values_per_prompt": way["packing"]}
    dataset = VisitDataset(
        prompts["train"],
        plan_visits(families, way | budget, seed),
        way,
        encode_prompt=lambda text: chat.encode_prompt(tokenizer, text, settings["chat"]),
        encode=chat.completion_encoder(tokenizer),
        end_id=chat.end_of_turn_id(tokenizer, settings["chat"]),
        seed=seed,
    )
    marks = [(i + 1) / settings["checkpoints"] for i in range(settings["checkpoints"])]
    lines = []
    for seconds, steps, values in train_for_seconds(
        model, dataset, way, settings["seconds"], marks
    ):
        line = {"seconds": round(seconds, 2), "steps": steps, "values": values}
        line |= measure_kl(model, tokenizer, prompts["heldout"], settings, seed)
        if len(lines) == len(marks) - 1:
            line |= measure_samples(model, tokenizer, prompts["heldout"], settings, seed)
        report(f"{seconds:.0f} s, {values} values: sequence KL {line['sequence_kl']:.3f} nats")
        lines.append(line)
    return lines
