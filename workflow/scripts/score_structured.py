"""Score the structured samples of a cell: validity, distances, tests of fit, intervals.

Example:
    python workflow/scripts/score_structured.py \
        --samples results/smollm2-135m/soft/seed11/structured/samples.parquet \
        --divergences results/smollm2-135m/soft/seed11/structured/divergences.jsonl \
        --run results/smollm2-135m/soft/seed11/structured/run.json \
        --prompts-directory results/prompts --decimals 2 --max-bins 1001 \
        --model smollm2-135m --method soft --seed 11 \
        --output results/smollm2-135m/soft/seed11/structured/metrics.json
"""

import argparse
from pathlib import Path

from calibration_tuning import errors, prompts
from calibration_tuning.evaluations import metrics, samples, structured

SPLITS = ("unseen", "heldout")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--divergences", type=Path, required=True, help="divergences.jsonl")
    parser.add_argument("--prompts-directory", type=Path, required=True)
    parser.add_argument("--decimals", type=int, required=True, help="of the discretised target")
    parser.add_argument("--max-bins", type=int, required=True, help="of the discretised target")
    return metrics.add_arguments(samples.add_argument(parser)).parse_args()


def main() -> None:
    arguments = parse_arguments()
    values = structured.score_cell(
        samples.read_samples(
            arguments.samples, "sample_structured", (*samples.COLUMNS, "token_ids")
        ),
        structured.read_divergences(arguments.divergences),
        {
            split: prompts.read_prompts(arguments.prompts_directory / f"{split}_selected.jsonl")
            for split in SPLITS
        },
        decimals=arguments.decimals,
        max_bins=arguments.max_bins,
        seed=arguments.seed,
    )
    metrics.write(arguments, "structured", values)


if __name__ == "__main__":
    errors.run(main)
