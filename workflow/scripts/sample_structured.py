"""Sample the selected prompts with a base model or an adapter and measure their divergence.

Example:
    python workflow/scripts/sample_structured.py \
        --model resources/models/smollm2-135m/manifest.json \
        --adapter results/smollm2-135m/soft/seed11/adapter/adapter_model.safetensors \
        --prompts-directory results/prompts --settings '{"samples": 400, ...}' --seed 11 \
        --threads 2 --label smollm2-135m/soft/seed11 \
        --output-directory results/smollm2-135m/soft/seed11/structured
"""

import sys
import time
from functools import partial
from pathlib import Path

from tqdm import tqdm

from calibration_tuning import errors, files, prompts
from calibration_tuning.evaluations import cell, text_sampling
from calibration_tuning.evaluations import structured_sampling as structured

SPLITS = ("unseen", "heldout")


def sample_and_measure(arguments, loaded: cell.Cell, selected: list, work: Path) -> list[dict]:
    """Samples and divergence of each prompt, kept as soon as it is done."""
    parts = []
    bar = tqdm(selected, desc=arguments.label, unit="prompt", file=sys.stderr, mininterval=5)
    for number, split, index, record in bar:
        seed = [arguments.seed, number, index]
        make = partial(
            structured.evaluate_prompt,
            *(loaded.model, loaded.tokenizer, record, arguments.settings, loaded.stop_ids, seed),
        )
        parts.append(files.read_or_make(work / f"{split}-{index}.json", make))
    return parts


def sample_prompted(arguments, loaded: cell.Cell, selected: list, work: Path) -> list[dict]:
    """Answers after a system prompt: few and long, so many prompts run together."""
    answers = text_sampling.sample_answers(
        loaded,
        [record["prompt"] for *_, record in selected],
        arguments.settings,
        [arguments.seed],
        work,
        arguments.label,
        kind="number",
    )
    return [{"samples": found, "divergence": structured.NO_DIVERGENCE} for found in answers]


def main() -> None:
    started = time.perf_counter()
    parser = cell.parser(__doc__.splitlines()[0])
    parser.add_argument("--prompts-directory", type=Path, required=True)
    arguments = parser.parse_args()
    paths = [arguments.prompts_directory / f"{split}_selected.jsonl" for split in SPLITS]
    selected = [
        (number, split, index, record)
        for number, (split, path) in enumerate(zip(SPLITS, paths, strict=True))
        for index, record in enumerate(prompts.read_prompts(path))
    ]
    loaded = cell.load(arguments)
    work, lock = cell.claim_work(arguments, paths)
    run = sample_prompted if "prompting" in arguments.settings else sample_and_measure
    parts = run(arguments, loaded, selected, work)
    structured.write_cell(
        [(*key, part) for (_, *key), part in zip(selected, parts, strict=True)],
        arguments.output_directory / "samples.parquet",
        arguments.output_directory / "divergences.jsonl",
    )
    cell.finish(arguments, loaded, started, work, lock)


if __name__ == "__main__":
    errors.run(main)
