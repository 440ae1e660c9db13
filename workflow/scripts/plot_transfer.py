"""Draw what the methods of a model do in an evaluation other than structured sampling.

Example:
    python workflow/scripts/plot_transfer.py --evaluation mcq \
        --metrics base=results/smollm2-135m/base/seed11/mcq/metrics.json \
        --metrics soft=results/smollm2-135m/soft/seed11/mcq/metrics.json \
        --png results/figures/mcq/smollm2-135m.png --pdf results/figures/mcq/smollm2-135m.pdf
"""

import argparse
from pathlib import Path

from calibration_tuning import (
    arguments,
    errors,
    figures,
    files,
    retention_figures,
    transfer_figures,
)

FIGURES = {
    "open_ended": transfer_figures.open_ended,
    "mcq": transfer_figures.mcq,
    "novelty": transfer_figures.novelty,
    "benchmarks": retention_figures.benchmarks,
    "perplexity": retention_figures.perplexity,
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--evaluation", choices=FIGURES, required=True)
    parser.add_argument(
        "--metrics",
        type=arguments.labelled_path,
        action="append",
        required=True,
        metavar="METHOD=PATH",
        help="metrics.json of a method; once a method",
    )
    parser.add_argument("--png", type=Path, required=True)
    parser.add_argument("--pdf", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    parsed = parse_arguments()
    cells = {method: files.read_json(path)["values"] for method, path in parsed.metrics}
    figure = FIGURES[parsed.evaluation](cells)
    for path in (parsed.png, parsed.pdf):
        figures.save_figure(figure, path)


if __name__ == "__main__":
    errors.run(main)
