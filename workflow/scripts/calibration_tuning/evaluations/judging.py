"""What the two programs of NoveltyBench that ask a judge share."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from tqdm import tqdm

from calibration_tuning import files, provenance
from calibration_tuning.evaluations import judges, samples
from calibration_tuning.evaluations.cell import device_of_job

DESCRIPTIONS = {
    "classifier": "{name}, probability above {threshold}",
    "encoder": "stand-in: cosine of {name} above {threshold}",
    "reward": "{name}",
    "likelihood": "stand-in: nats per token under {name}",
}
"""By kind; texts of at most five words are compared by their words before a partition's judge."""


def parser(description: str) -> argparse.ArgumentParser:
    """A parser with the arguments of a program that asks a judge about samples."""
    parser = samples.add_argument(argparse.ArgumentParser(description=description))
    parser.add_argument("--judge", type=Path, required=True, help="the judge's manifest.json")
    parser.add_argument("--settings", type=json.loads, required=True, help="a JSON object")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--label", default="judging", help="name of the run in the progress bar")
    return parser


def read_generations(path: Path) -> list[tuple[tuple[str, int], list[str]]]:
    """The texts of each (data set, prompt), in the order in which they were sampled."""
    frame = samples.read_samples(path, "generate_novelty", (*samples.COLUMNS, "sample"))
    frame = frame.sort_values("sample")
    return [
        ((split, int(index)), list(group["text"]))
        for (split, index), group in frame.groupby(["split", "prompt_index"])
    ]


def load_equivalence(arguments: argparse.Namespace) -> Callable[[str, str], bool]:
    """The judge of a partition, see `judges.load_equivalence`."""
    torch.set_num_threads(arguments.threads)
    return judges.load_equivalence(arguments.judge.parent, arguments.settings, device_of_job())


def load_rater(arguments: argparse.Namespace) -> Callable[[str, Sequence[str]], list[int]]:
    """The judge of quality, see `judges.load_rater`."""
    torch.set_num_threads(arguments.threads)
    return judges.load_rater(arguments.judge.parent, arguments.settings, device_of_job())


def identity(arguments: argparse.Namespace) -> list:
    """All that verdicts depend on."""
    paths = (arguments.samples, arguments.judge)
    return [arguments.settings, *(files.sha256(path) for path in paths)]


def progress(items: Sequence, label: str) -> Iterable:
    """The items, with a progress bar."""
    return tqdm(items, desc=label, unit="prompt", file=sys.stderr, mininterval=5)


def describe(arguments: argparse.Namespace) -> str:
    """The judge in words: whether it is a stand-in, its name, its limit and its revision."""
    base = provenance.base_model(arguments.judge.parent)
    text = DESCRIPTIONS[arguments.settings["kind"]].format(
        name=base["model"], threshold=arguments.settings.get("threshold")
    )
    return f"{text} ({base['revision']})"
