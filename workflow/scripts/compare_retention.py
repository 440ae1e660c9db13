"""Compare a model's methods with the untuned model: gain in calibration, changes elsewhere.

Example:
    python workflow/scripts/compare_retention.py --model smollm2-135m \
        --structured base/seed11=results/smollm2-135m/base/seed11/structured/metrics.json \
        --structured soft/seed11=results/smollm2-135m/soft/seed11/structured/metrics.json \
        --benchmarks base/seed11=results/smollm2-135m/base/seed11/benchmarks/samples.parquet \
        --benchmarks soft/seed11=results/smollm2-135m/soft/seed11/benchmarks/samples.parquet \
        --output results/smollm2-135m/trade_off.csv
"""

import argparse
import re
from pathlib import Path

from calibration_tuning import arguments, errors, files, trade_off
from calibration_tuning.evaluations import benchmarks, perplexity

READERS = {
    "structured": ("calibration", files.read_json, trade_off.measured_calibration),
    "benchmarks": ("benchmark", benchmarks.read_samples, trade_off.measured_benchmarks),
    "perplexity": ("perplexity", perplexity.read_samples, trade_off.measured_perplexity),
}
"""By evaluation: the quantity it gives, what reads its file, and what takes the values out."""


def cell_path(text: str) -> tuple[tuple[str, int], Path]:
    """Split METHOD/seedN=path; argparse's own error where it is something else."""
    label, path = arguments.labelled_path(text)
    cell = re.fullmatch(r"(.+)/seed(\d+)", label)
    if cell is None:
        raise argparse.ArgumentTypeError(f"{text}: expected METHOD/seedN=path")
    return (cell[1], int(cell[2])), path


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="its name")
    for evaluation, file in (
        ("structured", "metrics.json"),
        ("benchmarks", "samples.parquet"),
        ("perplexity", "samples.parquet"),
    ):
        parser.add_argument(
            f"--{evaluation}",
            type=cell_path,
            action="append",
            default=[],
            metavar="METHOD/seedN=PATH",
            help=f"{file} of a cell; once a cell",
        )
    parser.add_argument("--output", type=Path, required=True, help="the table, CSV")
    return parser.parse_args()


def main() -> None:
    parsed = parse_arguments()
    measured = {
        quantity: {cell: take(path, read(path)) for cell, path in getattr(parsed, evaluation)}
        for evaluation, (quantity, read, take) in READERS.items()
    }
    table = trade_off.compare(parsed.model, measured)
    files.write_atomic(parsed.output, table.to_csv(index=False))


if __name__ == "__main__":
    errors.run(main)
