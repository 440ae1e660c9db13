"""Draw the training curves: loss against step.

Several histories with one label are seeds of one method: one colour, one entry in the legend.

Example:
    python workflow/scripts/plot_training.py \
        --history soft=results/smollm2-135m/soft/seed11/history.jsonl \
        --history hard=results/smollm2-135m/hard/seed11/history.jsonl \
        --png results/figures/training.png --pdf results/figures/training.pdf
"""

import argparse
from pathlib import Path

from calibration_tuning import arguments, errors, figures


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--history",
        type=arguments.labelled_path,
        action="append",
        required=True,
        metavar="LABEL=PATH",
        help="history.jsonl of a run; once a run",
    )
    parser.add_argument("--png", type=Path, required=True)
    parser.add_argument("--pdf", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    parsed = parse_arguments()
    histories: dict[str, list] = {}
    for label, path in parsed.history:
        histories.setdefault(label, []).append(figures.read_history(path))
    figure = figures.training_curves(histories)
    for path in (parsed.png, parsed.pdf):
        figures.save_figure(figure, path)


if __name__ == "__main__":
    errors.run(main)
