"""Score the benchmark tasks of a cell: means over items, their errors, and gp-IRT estimates.

Example:
    python workflow/scripts/score_benchmarks.py \
        --samples results/smollm2-135m/base/seed11/benchmarks/samples.parquet \
        --run results/smollm2-135m/base/seed11/benchmarks/run.json \
        --model smollm2-135m --method base --seed 11 \
        --output results/smollm2-135m/base/seed11/benchmarks/metrics.json
"""

import argparse
from pathlib import Path

from calibration_tuning import errors
from calibration_tuning.evaluations import benchmarks, item_response, metrics, samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--item-parameters", type=Path, nargs="?", help="of TinyBenchmarks, as published"
    )
    arguments = metrics.add_arguments(samples.add_argument(parser)).parse_args()
    path = arguments.item_parameters
    parameters = item_response.read_items(path) if path else {}
    frame = benchmarks.read_samples(arguments.samples)
    values = benchmarks.score_cell(frame, parameters, arguments.seed)
    metrics.write(arguments, "benchmarks", values)


if __name__ == "__main__":
    errors.run(main)
