"""Sample open-ended prompts and measure over how many first tokens each answer is spread.

Example:
    python workflow/scripts/sample_open_ended.py \
        --model resources/models/smollm2-135m/manifest.json \
        --adapter results/smollm2-135m/soft/seed11/adapter/adapter_model.safetensors \
        --prompts config/prompts/open_ended.jsonl --settings '{"samples": 20, ...}' --seed 11 \
        --threads 2 --label smollm2-135m/soft/seed11/open_ended \
        --output-directory results/smollm2-135m/soft/seed11/open_ended
"""

import time
from pathlib import Path

from calibration_tuning import errors, files, prompts
from calibration_tuning.evaluations import cell, open_ended, samples, text_sampling


def main() -> None:
    started = time.perf_counter()
    parser = cell.parser(__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=Path, required=True, help="category and prompt a line")
    arguments = parser.parse_args()
    settings, label = arguments.settings, arguments.label
    records = prompts.read_open_prompts(arguments.prompts, open_ended.KEYS)
    texts = [record["prompt"] for record in records]
    loaded = cell.load(arguments)
    work, lock = cell.claim_work(arguments, [arguments.prompts])
    supports = text_sampling.first_token_support(loaded, texts, open_ended.THRESHOLDS, settings)
    sampled = texts[: settings["sampled_prompts"]]
    answers = text_sampling.sample_answers(loaded, sampled, settings, [arguments.seed], work, label)
    text_sampling.warn_of_useless_answers(answers, label, settings["max_new_tokens"])
    folder = arguments.output_directory
    rows = [{"support": support} for support in supports]
    files.write_atomic(folder / "support.jsonl", files.to_jsonl(rows))
    of_prompts = [(open_ended.SPLIT, index, found) for index, found in enumerate(answers)]
    samples.write_samples(folder / "samples.parquet", of_prompts)
    cell.finish(arguments, loaded, started, work, lock)


if __name__ == "__main__":
    errors.run(main)
