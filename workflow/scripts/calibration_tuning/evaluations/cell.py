"""What the programs that run a model for an evaluation share.

Their arguments, loading the model and its adapter, a work folder that survives a kill, and the
provenance that is written at the end.
"""

import argparse
import hashlib
import json
import shutil
import time
from pathlib import Path
from typing import NamedTuple

import torch
from filelock import FileLock

from calibration_tuning import allocator, chat, checkpoints, files, provenance


class Cell(NamedTuple):
    """A loaded model with its tokenizer, the tokens that end its answers, and where it runs."""

    model: torch.nn.Module
    tokenizer: object
    stop_ids: frozenset[int]
    device: str


def parser(description: str) -> argparse.ArgumentParser:
    """A parser with the arguments of every program that samples a cell."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", type=Path, required=True, help="the base model's manifest.json")
    parser.add_argument("--adapter", type=Path, nargs="?", help="adapter_model.safetensors")
    parser.add_argument("--settings", type=json.loads, required=True, help="a JSON object")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--label", default="sampling", help="name of the run in the progress bar")
    parser.add_argument("--output-directory", type=Path, required=True)
    return parser


def device_of_job() -> str:
    """Where a job's model goes: the CPU, its GPU, or spread over its GPUs ("auto")."""
    gpus = torch.cuda.device_count()
    return "cpu" if gpus == 0 else "cuda" if gpus == 1 else "auto"


def load(arguments: argparse.Namespace) -> Cell:
    """The base model of a cell, with its adapter if it has one, ready to sample."""
    torch.set_num_threads(arguments.threads)
    allocator.keep_freed_memory()
    settings, folder = arguments.settings, arguments.model.parent
    tokenizer = checkpoints.load_tokenizer(folder)
    device = device_of_job()
    model = checkpoints.load_model(folder, settings["dtype"], device, settings.get("quantization"))
    stop_ids = chat.stop_ids(tokenizer, model.generation_config, settings["chat"])
    if arguments.adapter is not None:
        model = checkpoints.load_adapter(
            model, arguments.adapter.parent, merge=settings["dtype"] == "float32"
        )
    return Cell(model.eval(), tokenizer, stop_ids, device)


def claim_work(arguments: argparse.Namespace, inputs: list[Path]) -> tuple[Path, FileLock]:
    """A work folder for parts, named by all that they depend on, and the lock that holds it."""
    identity = [arguments.settings, arguments.seed]
    identity += [path and files.sha256(path) for path in (arguments.model, arguments.adapter)]
    identity += map(files.sha256, inputs)
    return claim_work_of(arguments.output_directory, identity)


def claim_work_of(directory: Path, identity: list) -> tuple[Path, FileLock]:
    """As `claim_work`, for a program whose parts depend on something else."""
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]
    work = directory / f"work-{digest}"
    return work, files.claim(work)


def finish(
    arguments: argparse.Namespace, cell: Cell, started: float, work: Path, lock: FileLock
) -> None:
    """Write run.json, the provenance, and remove the work folder."""
    gpus = torch.cuda.device_count()
    run = provenance.provenance(
        model_directory=arguments.model.parent,
        adapter_directory=arguments.adapter and arguments.adapter.parent,
        device=f"cuda ({gpus})" if cell.device == "auto" else cell.device,
        dtype=arguments.settings["dtype"],
        seed=arguments.seed,
        wall_time_seconds=time.perf_counter() - started,
    )
    files.write_atomic(arguments.output_directory / "run.json", json.dumps(run, indent=1) + "\n")
    shutil.rmtree(work)
    lock.release()
