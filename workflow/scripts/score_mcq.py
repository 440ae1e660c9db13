"""Score the questions of a cell: which letters are the right answers, and how evenly.

Example:
    python workflow/scripts/score_mcq.py \
        --samples results/smollm2-135m/base/seed11/mcq/samples.parquet \
        --run results/smollm2-135m/base/seed11/mcq/run.json \
        --model smollm2-135m --method base --seed 11 \
        --output results/smollm2-135m/base/seed11/mcq/metrics.json
"""

import argparse

from calibration_tuning import errors
from calibration_tuning.evaluations import mcq, metrics, samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments = metrics.add_arguments(samples.add_argument(parser)).parse_args()
    frame = samples.read_samples(arguments.samples, "sample_mcq", samples.SCHEMA.names)
    metrics.write(arguments, "mcq", mcq.score_cell(frame))


if __name__ == "__main__":
    errors.run(main)
