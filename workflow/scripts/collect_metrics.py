"""Collect the metrics of all cells in one tidy table.

Example:
    python workflow/scripts/collect_metrics.py --output results/tables/metrics.csv \
        results/smollm2-135m/base/seed11/structured/metrics.json \
        results/smollm2-135m/soft/seed11/structured/metrics.json
"""

import argparse
from pathlib import Path

from calibration_tuning import errors, files, tables


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("metrics", type=Path, nargs="+", help="metrics.json files, one a cell")
    parser.add_argument("--output", type=Path, required=True, help="metrics.csv")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    table = tables.collect(arguments.metrics)
    files.write_atomic(arguments.output, table.to_csv(index=False))


if __name__ == "__main__":
    errors.run(main)
