"""Bring TinyBenchmarks' published item parameters and check their hash.

Example:
    python workflow/scripts/fetch_item_parameters.py \
        --settings '{"source": "path:tinyBenchmarks.pkl", "sha256": "..."}' \
        --downloads resources/downloads --output resources/item_parameters/tinyBenchmarks.pkl
"""

import argparse
import json
import tempfile
from pathlib import Path

from calibration_tuning import errors, files, sources
from calibration_tuning.evaluations import item_response


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", type=json.loads, required=True, help="a JSON object")
    parser.add_argument("--downloads", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    settings = arguments.settings
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder)
        sources.fetch_files(settings["source"], settings["sha256"], arguments.downloads, into)
        (brought,) = (path for path in into.iterdir() if files.sha256(path) == settings["sha256"])
        scenarios = item_response.read_items(brought)  # refuses what is no such file
        files.write_atomic(arguments.output, brought.read_bytes())
    print(f"{arguments.output}: {', '.join(scenarios)}")


if __name__ == "__main__":
    errors.run(main)
