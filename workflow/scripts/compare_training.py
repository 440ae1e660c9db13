"""Train one way for a fixed time and measure the held-out divergence as it goes.

Example:
    python workflow/scripts/compare_training.py \\
        --model resources/models/smollm2-135m/manifest.json --prompts-directory results/prompts \\
        --settings '{"way": {"packed": true, ...}, "seconds": 150, ...}' --seed 11 --threads 2 \\
        --label soft-exact --output results/training_speed/smollm2-135m/soft-exact.jsonl
"""

import argparse
import json
import sys
from pathlib import Path

import torch

from calibration_tuning import allocator, checkpoints, errors, files, prompts, training_speed


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="the base model's manifest.json")
    parser.add_argument("--prompts-directory", type=Path, required=True)
    parser.add_argument("--settings", type=json.loads, required=True, help="a JSON object")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--label", default="training", help="name of the way in the log")
    parser.add_argument("--output", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    settings = arguments.settings
    torch.set_num_threads(arguments.threads)
    if settings["way"]["packed"]:
        allocator.keep_freed_memory()
    records = {
        "train": prompts.read_prompts(arguments.prompts_directory / "train.jsonl"),
        "heldout": prompts.read_prompts(arguments.prompts_directory / "heldout_selected.jsonl"),
    }
    folder = arguments.model.parent
    tokenizer = checkpoints.load_tokenizer(folder)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    base = checkpoints.load_model(folder, settings["dtype"], device, settings.get("quantization"))
    model = checkpoints.attach_new_adapter(
        base, settings["way"]["lora"], arguments.seed, settings.get("lora_scope")
    )
    lines = training_speed.run_way(
        model,
        tokenizer,
        records,
        settings,
        arguments.seed,
        report=lambda line: print(f"{arguments.label}: {line}", file=sys.stderr, flush=True),
    )
    files.write_atomic(arguments.output, files.to_jsonl(lines))


if __name__ == "__main__":
    errors.run(main)
