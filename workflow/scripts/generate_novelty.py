"""NoveltyBench, first step: several generations of each prompt.

Example:
    python workflow/scripts/generate_novelty.py \
        --model resources/models/smollm2-135m/manifest.json \
        --data resources/data/embedded.jsonl --settings '{"samples": 10, ...}' --seed 11 \
        --threads 2 --label smollm2-135m/base/seed11/novelty \
        --output-directory results/smollm2-135m/base/seed11/novelty
"""

import time
from pathlib import Path

from calibration_tuning import errors
from calibration_tuning.evaluations import cell, novelty, samples, text_sampling


def main() -> None:
    started = time.perf_counter()
    parser = cell.parser(__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="a file a data set")
    arguments = parser.parse_args()
    settings, label = arguments.settings, arguments.label
    chosen = novelty.read_data(arguments.data, settings["prompts"])
    loaded = cell.load(arguments)
    work, lock = cell.claim_work(arguments, arguments.data)
    texts = [record["prompt"] for _, _, record in chosen]
    answers = text_sampling.sample_answers(loaded, texts, settings, [arguments.seed], work, label)
    text_sampling.warn_of_useless_answers(answers, label, settings["max_new_tokens"])
    samples.write_samples(
        arguments.output_directory / "samples.parquet",
        [(data, index, a) for (data, index, _), a in zip(chosen, answers, strict=True)],
    )
    cell.finish(arguments, loaded, started, work, lock)


if __name__ == "__main__":
    errors.run(main)
