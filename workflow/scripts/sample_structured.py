"""Sample the selected prompts with a base model or an adapter and measure their divergence.

Example:
    python workflow/scripts/sample_structured.py \
        --model resources/models/smollm2-135m/manifest.json \
        --adapter results/smollm2-135m/soft/seed11/adapter/adapter_model.safetensors \
        --prompts-directory results/prompts --settings '{"samples": 400, ...}' --seed 11 \
        --threads 2 --label smollm2-135m/soft/seed11 \
        --output-directory results/smollm2-135m/soft/seed11/structured
"""

import argparse
import hashlib
import json
import shutil
import sys
import time
from pathlib import Path

import torch
from tqdm import tqdm

from calibration_tuning import allocator, chat, checkpoints, errors, files, prompts, provenance
from calibration_tuning.evaluations import structured_sampling as structured

SPLITS = ("unseen", "heldout")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="the base model's manifest.json")
    parser.add_argument("--adapter", type=Path, nargs="?", help="adapter_model.safetensors")
    parser.add_argument("--prompts-directory", type=Path, required=True)
    parser.add_argument("--settings", type=json.loads, required=True, help="a JSON object")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--label", default="sampling", help="name of the run in the progress bar")
    parser.add_argument("--output-directory", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    started = time.perf_counter()
    arguments = parse_arguments()
    settings = arguments.settings
    torch.set_num_threads(arguments.threads)
    allocator.keep_freed_memory()
    folder = arguments.model.parent
    selected = [
        (number, split, index, record)
        for number, split in enumerate(SPLITS)
        for index, record in enumerate(
            prompts.read_prompts(arguments.prompts_directory / f"{split}_selected.jsonl")
        )
    ]
    tokenizer = checkpoints.load_tokenizer(folder)
    # A model that needs several GPUs is spread over those of its job.
    gpus = torch.cuda.device_count()
    device = "cpu" if gpus == 0 else "cuda" if gpus == 1 else "auto"
    model = checkpoints.load_model(folder, settings["dtype"], device, settings.get("quantization"))
    stop_ids = chat.stop_ids(tokenizer, model.generation_config, settings["chat"])
    if arguments.adapter is not None:
        model = checkpoints.load_adapter(
            model, arguments.adapter.parent, merge=settings["dtype"] == "float32"
        )
    model.eval()
    identity = [settings, arguments.seed, files.sha256(arguments.model)]
    identity.append(arguments.adapter and files.sha256(arguments.adapter))
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]
    work = arguments.output_directory / f"work-{digest}"
    lock = files.claim(work)
    results = []
    bar = tqdm(selected, desc=arguments.label, unit="prompt", file=sys.stderr, mininterval=5)
    for number, split, index, record in bar:
        part = structured.evaluate_or_read(
            work / f"{split}-{index}.json",
            model,
            tokenizer,
            record,
            settings,
            stop_ids,
            [arguments.seed, number, index],
        )
        results.append((split, index, record, part))
    structured.write_cell(
        results,
        arguments.output_directory / "samples.parquet",
        arguments.output_directory / "divergences.jsonl",
    )
    run = provenance.provenance(
        model_directory=folder,
        adapter_directory=arguments.adapter and arguments.adapter.parent,
        device=f"cuda ({gpus})" if gpus > 1 else device,
        dtype=settings["dtype"],
        seed=arguments.seed,
        wall_time_seconds=time.perf_counter() - started,
    )
    files.write_atomic(arguments.output_directory / "run.json", json.dumps(run, indent=1) + "\n")
    shutil.rmtree(work)
    lock.release()


if __name__ == "__main__":
    errors.run(main)
