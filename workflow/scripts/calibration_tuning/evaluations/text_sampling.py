"""Sampling answers in words, the part that runs the model for all evaluations that need no more.

Prompts are sampled in parts that fit into one forward pass: several prompts with few samples each,
or a part of one prompt's many. A part is kept as soon as it is done, and has a random stream of its
own, so a run that is killed goes on where it was and ends with the same answers.
"""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from calibration_tuning import files, prompting
from calibration_tuning.evaluations.cell import Cell
from calibration_tuning.packing import next_token_logits
from calibration_tuning.sampling import Decoding, sample_prompts
from calibration_tuning.statistics import top_p_support

PROMPTS_AT_A_TIME = 16
"""Prompts in one forward pass where only their next token is wanted."""


def plan_parts(prompts: int, samples: int, max_rows: int) -> list[tuple[list[int], int]]:
    """Which prompts are sampled together, and how often each.

    Returns
    -------
    list of (indices of prompts, samples of each)
        In each, at most `max_rows` samples; over all, every prompt is sampled `samples` times.
    """
    if samples <= max_rows:
        size = max_rows // samples
        starts = range(0, prompts, size)
        return [(list(range(start, min(start + size, prompts))), samples) for start in starts]
    counts = [min(max_rows, samples - start) for start in range(0, samples, max_rows)]
    return [([index], count) for index in range(prompts) for count in counts]


def sample_part(
    cell: Cell, texts: Sequence[str], n: int, settings: dict, seed: list[int], kind: str
) -> dict:
    """Answers of some prompts that are sampled together.

    Parameters
    ----------
    texts : sequence of str
        What the user says.
    n : int
        Samples of each.
    settings : dict
        max_new_tokens, max_rows, chat; prompting and decoding where the method has them.
    seed : list of int
    kind : str
        "number" or "open", what is asked for; a system prompt depends on it.

    Returns
    -------
    dict with "answers": for each prompt a list of [answer, token ids, finished]
    """
    found = sample_prompts(
        cell.model,
        cell.tokenizer,
        [prompting.encode_prompt(cell.tokenizer, text, settings, kind) for text in texts],
        n,
        stop_ids=cell.stop_ids,
        max_new_tokens=settings["max_new_tokens"],
        max_rows=settings["max_rows"],
        seed=[*seed, 0],
        stop_strings=prompting.stop_strings(settings),
        **settings.get("decoding", {}),
    )
    rng = np.random.default_rng([*seed, 1])
    return {"answers": [prompting.answers(s, cell.tokenizer, settings, rng) for s in found]}


def sample_answers(
    cell: Cell,
    texts: Sequence[str],
    settings: dict,
    seed: list[int],
    work: Path,
    label: str,
    kind: str = "open",
) -> list[list[list]]:
    """Answers of all prompts, in parts that are kept in a work folder.

    Parameters
    ----------
    cell, texts, seed, kind : see `sample_part`
    settings : as for `sample_part`, and samples
    work : Path
        Where finished parts are kept.
    label : str
        Of the progress bar.

    Returns
    -------
    list of lists of [answer, token ids, finished], one a prompt
    """
    parts = plan_parts(len(texts), settings["samples"], settings["max_rows"])
    answers: list[list[list]] = [[] for _ in texts]
    bar = tqdm(parts, desc=label, unit="part", file=sys.stderr, mininterval=5)
    for number, (indices, n) in enumerate(bar):
        chosen = [texts[index] for index in indices]
        make = partial(sample_part, cell, chosen, n, settings, [*seed, number], kind)
        part = files.read_or_make(work / f"part-{number}.json", make)
        for index, more in zip(indices, part["answers"], strict=True):
            answers[index] += more
    return answers


def warn_of_useless_answers(answers: Sequence[Sequence[Sequence]], label: str, limit: int) -> None:
    """Say in one line each where no answer has content, and where none ends by itself."""
    every = [answer for of_prompt in answers for answer in of_prompt]
    if not any(text.strip() for text, _, _ in every):
        print(f"warning: {label}: none of {len(every)} answers has more than white space in it")
    if not any(finished for _, _, finished in every):
        print(f"warning: {label}: none of {len(every)} answers ends within {limit} tokens")


@torch.inference_mode()
def first_token_support(
    cell: Cell, texts: Sequence[str], thresholds: Sequence[float], settings: dict
) -> list[list[int] | None]:
    """Over how many first tokens the answer to each prompt is spread, for every threshold.

    From one forward pass, exactly (Paper A, open-ended random generation). After a system prompt
    that asks for reasoning first, the first token says nothing about the answer.

    Returns
    -------
    list of lists of int, or of None for a method that asks with a system prompt
    """
    if "prompting" in settings:
        return [None] * len(texts)
    warpers = Decoding(**settings.get("decoding", {})).warpers()
    prompts = [prompting.encode_prompt(cell.tokenizer, text, settings, "open") for text in texts]
    supports = []
    for start in range(0, len(prompts), PROMPTS_AT_A_TIME):
        logits = next_token_logits(cell.model, prompts[start : start + PROMPTS_AT_A_TIME])
        probabilities = torch.softmax(warpers(None, logits.float()), dim=-1).cpu().numpy()
        supports += [list(top_p_support(row, thresholds).values()) for row in probabilities]
    return supports
