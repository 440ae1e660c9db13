"""Bring the prompts of a data set to a JSONL file: from the hub, a folder like it, or a file.

Example:
    python workflow/scripts/fetch_data.py \
        --settings '{"source": "hub:yimingzhang/novelty-bench", "split": "curated"}' \
        --downloads resources/downloads --output resources/data/curated.jsonl
"""

import argparse
import json
from pathlib import Path

from calibration_tuning import data_sets, errors, files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", type=json.loads, required=True, help="a JSON object")
    parser.add_argument("--downloads", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    records = data_sets.fetch_prompts(arguments.settings, arguments.downloads)
    files.write_atomic(arguments.output, files.to_jsonl(records))
    print(f"{arguments.output}: {len(records)} prompts")


if __name__ == "__main__":
    errors.run(main)
