"""Answers of the untuned model to general instructions, for retention-aware training.

They need no data set: the instructions are ours, and the answers are the model's own, so a model
that stays itself on them loses nothing (the paper leaves open how to keep what a model knew).
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from calibration_tuning.errors import InputError, remake
from calibration_tuning.evaluations.samples import read_samples
from calibration_tuning.objectives import Replayed

SPLIT = "replay"
KEYS = ("prompt",)
"""What each line of the file of instructions must have."""


def read_replay(
    path: Path, prompts: Sequence[dict], encode_prompt: Callable[[str], list[int]]
) -> list[Replayed]:
    """The answers to replay, as token ids.

    Parameters
    ----------
    path : Path
        Samples of the untuned model (samples.parquet).
    prompts : sequence of dict
        The instructions, as they were sampled.
    encode_prompt : prompt text -> token ids with the chat format

    Raises
    ------
    InputError
        Samples of other instructions, or no answer with a token.
    """
    frame = read_samples(path, "sample_replay", ("prompt_index", "token_ids"))
    again = remake("sample_replay", path)
    if frame["prompt_index"].max() >= len(prompts):
        raise InputError(f"{path}: answers to more instructions than there are; {again}")
    encoded = [encode_prompt(record["prompt"]) for record in prompts]
    pairs = zip(frame["prompt_index"], frame["token_ids"], strict=True)
    answers = [Replayed(encoded[index], ids.tolist()) for index, ids in pairs if len(ids)]
    if not answers:
        raise InputError(f"{path}: no answer has a token; {again}")
    return answers
