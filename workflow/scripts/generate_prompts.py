"""Expand the parameter grids to prompt files: train, unseen, heldout and the selected subsets.

Example:
    python workflow/scripts/generate_prompts.py --families config/families.yaml \
        --output-directory results/prompts
"""

import argparse
from pathlib import Path

from calibration_tuning import errors, files, planning, prompts

SCHEMA = Path(__file__).parents[1] / "schemas" / "families.schema.yaml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--families", type=Path, required=True)
    parser.add_argument("--output-directory", type=Path, required=True)
    arguments = parser.parse_args()
    content = planning.load_yaml(arguments.families)
    planning.validate(content, planning.load_yaml(SCHEMA), str(arguments.families))
    for name, records in prompts.build_prompts(
        content["families"], str(arguments.families)
    ).items():
        path = arguments.output_directory / f"{name}.jsonl"
        files.write_atomic(path, files.to_jsonl(records))
        print(f"{path}: {len(records)} prompts")


if __name__ == "__main__":
    errors.run(main)
