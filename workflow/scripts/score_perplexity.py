"""Score the documents of a cell: perplexity and bits per byte of each data set.

Example:
    python workflow/scripts/score_perplexity.py \
        --samples results/smollm2-135m/base/seed11/perplexity/samples.parquet \
        --run results/smollm2-135m/base/seed11/perplexity/run.json \
        --model smollm2-135m --method base --seed 11 \
        --output results/smollm2-135m/base/seed11/perplexity/metrics.json
"""

import argparse

from calibration_tuning import errors
from calibration_tuning.evaluations import metrics, perplexity, samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments = metrics.add_arguments(samples.add_argument(parser)).parse_args()
    frame = perplexity.read_samples(arguments.samples)
    metrics.write(arguments, "perplexity", perplexity.score_cell(frame, arguments.seed))


if __name__ == "__main__":
    errors.run(main)
