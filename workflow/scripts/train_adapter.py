"""Fine-tune a base model on sampling prompts and save a PEFT adapter.

Example:
    python workflow/scripts/train_adapter.py --model resources/models/smollm2-135m/manifest.json \
        --prompts results/prompts/train.jsonl --settings '{"objective": "soft_target", ...}' \
        --seed 11 --threads 2 --label smollm2-135m/soft/seed11 \
        --output-directory results/smollm2-135m/soft/seed11
"""

import argparse
import hashlib
import json
import shutil
from pathlib import Path

import torch

from calibration_tuning import (
    allocator,
    chat,
    checkpoints,
    devices,
    errors,
    files,
    prompts,
    replay,
    training,
)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="the base model's manifest.json")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument(
        "--replay", type=Path, nargs="*", default=[], help="answers to replay, and their prompts"
    )
    parser.add_argument("--settings", type=json.loads, required=True, help="a JSON object")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--label", default="training", help="name of the run in the progress bar")
    parser.add_argument("--output-directory", type=Path, required=True)
    return parser.parse_args()


def work_folder(arguments: argparse.Namespace) -> Path:
    """The folder of checkpoints of exactly this run; those of other settings are removed."""
    identity = json.dumps(
        {
            "settings": arguments.settings,
            "seed": arguments.seed,
            "processes": devices.process_count(),
            "prompts": files.sha256(arguments.prompts),
            "model": files.sha256(arguments.model),
            "replay": [files.sha256(path) for path in arguments.replay],
        },
        sort_keys=True,
    )
    digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
    work = arguments.output_directory / f"work-{digest}"
    for other in arguments.output_directory.glob("work-*"):
        if other != work:
            shutil.rmtree(other)
    work.mkdir(parents=True, exist_ok=True)
    return work


def load_base(arguments: argparse.Namespace, device: torch.device) -> torch.nn.Module:
    """The base model on this process's device: whole, or its share where several divide it."""
    settings, folder = arguments.settings, arguments.model.parent
    sharded = devices.is_sharded(settings)
    model = checkpoints.load_model(
        folder,
        settings["dtype"],
        "cpu" if sharded else str(device),
        settings.get("quantization"),
    )
    if sharded:
        devices.shard(model, device)
    return model


def save(arguments: argparse.Namespace, model: torch.nn.Module, history: list[dict]) -> None:
    """Write the adapter, then the history."""
    folder = arguments.output_directory
    revision = files.read_json(arguments.model)["revision"]
    checkpoints.save_adapter(model, folder / "adapter", revision)
    files.write_atomic(folder / "history.jsonl", files.to_jsonl(history))


def main() -> None:
    arguments = parse_arguments()
    settings, seed = arguments.settings, arguments.seed
    device = devices.join()
    torch.set_num_threads(max(1, arguments.threads // devices.process_count()))
    allocator.keep_freed_memory()
    folder = arguments.model.parent
    records = prompts.read_prompts(arguments.prompts)
    visits = training.plan_visits([record["family"] for record in records], settings, seed)
    training.split_step(settings, devices.process_count())  # a mistake shows before the loading
    tokenizer = checkpoints.load_tokenizer(folder)
    end_id = chat.end_of_turn_id(tokenizer, settings["chat"])

    def encode_prompt(text: str) -> list[int]:
        return chat.encode_prompt(tokenizer, text, settings["chat"])

    replayed = []
    if arguments.replay:
        answers, instructions = arguments.replay
        instructions = prompts.read_open_prompts(instructions, replay.KEYS)
        replayed = replay.read_replay(answers, instructions, encode_prompt)
    base = load_base(arguments, device)
    model = checkpoints.attach_new_adapter(base, settings["lora"], seed, settings.get("lora_scope"))
    dataset = training.VisitDataset(
        records,
        visits,
        settings,
        encode_prompt=encode_prompt,
        encode=chat.completion_encoder(tokenizer),
        end_id=end_id,
        seed=seed,
        replay=replayed,
    )
    work = devices.found_by_first(lambda: work_folder(arguments))
    lock = files.claim(work) if devices.rank() == 0 else None
    history = training.train(
        model, dataset, settings, settings["micro_batch"], seed, work, arguments.label
    )
    if devices.rank() == 0:
        save(arguments, model, history)
        shutil.rmtree(work)
        lock.release()
    devices.leave()


if __name__ == "__main__":
    errors.run(main)
