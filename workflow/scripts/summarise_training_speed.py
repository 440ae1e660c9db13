"""Table and curves of what a fixed time of training buys, a row and a line a way.

Example:
    python workflow/scripts/summarise_training_speed.py \\
        --run soft-exact=results/training_speed/smollm2-135m/soft-exact.jsonl \\
        --run plain-soft=results/training_speed/smollm2-135m/plain-soft.jsonl \\
        --csv speed.csv --markdown speed.md --html speed.html --png speed.png --pdf speed.pdf
"""

import argparse
import json
from pathlib import Path

from calibration_tuning import arguments, errors, figures, files, tables


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=arguments.labelled_path, action="append", required=True)
    for kind in ("csv", "markdown", "html", "png", "pdf"):
        parser.add_argument(f"--{kind}", type=Path, required=True)
    return parser.parse_args()


def read_run(path: Path) -> list[dict]:
    """The lines of a run; InputError if it is no such file."""
    try:
        return [json.loads(line) for line in path.read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise errors.InputError(f"{path}: expected a JSON object a line ({error})") from None


def main() -> None:
    parsed = parse_arguments()
    runs = {way: read_run(path) for way, path in parsed.run}
    table = tables.training_speed_rows(runs)
    files.write_atomic(parsed.csv, table.to_csv(index=False))
    rows = table.to_numpy().tolist()
    files.write_atomic(parsed.markdown, tables.markdown_rows(list(table), rows, texts=1))
    files.write_atomic(parsed.html, tables.html_page(table, "Training speed", texts=1))
    figure = figures.training_speed(runs)
    for path in (parsed.png, parsed.pdf):
        figures.save_figure(figure, path)


if __name__ == "__main__":
    errors.run(main)
