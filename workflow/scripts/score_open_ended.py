"""Score the open-ended answers of a cell: support, how many differ, the most common ones.

Example:
    python workflow/scripts/score_open_ended.py \
        --samples results/smollm2-135m/base/seed11/open_ended/samples.parquet \
        --support results/smollm2-135m/base/seed11/open_ended/support.jsonl \
        --run results/smollm2-135m/base/seed11/open_ended/run.json \
        --prompts config/prompts/open_ended.jsonl \
        --model smollm2-135m --method base --seed 11 \
        --output results/smollm2-135m/base/seed11/open_ended/metrics.json
"""

import argparse
from pathlib import Path

from calibration_tuning import errors, prompts
from calibration_tuning.evaluations import metrics, open_ended, samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--support", type=Path, required=True, help="support.jsonl")
    parser.add_argument("--prompts", type=Path, required=True, help="category and prompt a line")
    arguments = metrics.add_arguments(samples.add_argument(parser)).parse_args()
    values = open_ended.score_cell(
        samples.read_samples(arguments.samples, "sample_open_ended", samples.SCHEMA.names),
        open_ended.read_supports(arguments.support),
        prompts.read_open_prompts(arguments.prompts, open_ended.KEYS),
        seed=arguments.seed,
    )
    metrics.write(arguments, "open_ended", values)


if __name__ == "__main__":
    errors.run(main)
