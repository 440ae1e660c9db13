"""Let an untuned model answer general instructions, for retention-aware training to replay.

Example:
    python workflow/scripts/sample_replay.py \
        --model resources/models/smollm2-135m/manifest.json \
        --prompts config/prompts/replay.jsonl --settings '{"samples": 4, ...}' --seed 11 \
        --threads 2 --label smollm2-135m/replay --output-directory results/smollm2-135m/replay
"""

import time
from pathlib import Path

from calibration_tuning import errors, prompts, replay
from calibration_tuning.evaluations import cell, samples, text_sampling


def main() -> None:
    started = time.perf_counter()
    parser = cell.parser(__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=Path, required=True, help="JSONL: a prompt a line")
    arguments = parser.parse_args()
    settings, label = arguments.settings, arguments.label
    texts = [r["prompt"] for r in prompts.read_open_prompts(arguments.prompts, replay.KEYS)]
    loaded = cell.load(arguments)
    work, lock = cell.claim_work(arguments, [arguments.prompts])
    answers = text_sampling.sample_answers(loaded, texts, settings, [arguments.seed], work, label)
    path = arguments.output_directory / "samples.parquet"
    of_prompts = [(replay.SPLIT, index, found) for index, found in enumerate(answers)]
    samples.write_samples(path, of_prompts)
    cell.finish(arguments, loaded, started, work, lock)


if __name__ == "__main__":
    errors.run(main)
