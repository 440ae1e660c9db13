"""Collect the metrics of all cells in one tidy table; a damaged file is named, never averaged in.

Example:
    python workflow/scripts/collect_metrics.py \
        --schema workflow/schemas/metrics.schema.json --output results/tables/metrics.csv \
        results/smollm2-135m/base/seed11/structured/metrics.json \
        results/smollm2-135m/soft/seed11/structured/metrics.json
"""

import argparse
from pathlib import Path

from calibration_tuning import errors, files, planning, tables


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("metrics", type=Path, nargs="+", help="metrics.json files, one a cell")
    parser.add_argument("--schema", type=Path, required=True, help="metrics.schema.json")
    parser.add_argument("--output", type=Path, required=True, help="metrics.csv")
    return parser.parse_args()


def check(path: Path, schema: dict) -> None:
    """Refuse a file that is not metrics of a cell, saying how to make it again."""
    try:
        planning.validate(files.read_json(path), schema, str(path))
    except errors.InputError as error:
        again = errors.remake(f"score_{path.parent.name}", path)
        raise errors.InputError(f"{error}; {again}") from None


def main() -> None:
    arguments = parse_arguments()
    schema = files.read_json(arguments.schema)
    for path in arguments.metrics:
        check(path, schema)
    table = tables.collect(arguments.metrics)
    files.write_atomic(arguments.output, table.to_csv(index=False))


if __name__ == "__main__":
    errors.run(main)
