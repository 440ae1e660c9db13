"""Draw what the untuned model does at several temperatures, beside the other methods.

Example:
    python workflow/scripts/plot_decoding.py --metrics results/tables/metrics.csv \
        --model smollm2-135m --decodings '{"base-t0.7": {"temperature": 0.7}}' \
        --png results/figures/decoding/smollm2-135m.png \
        --pdf results/figures/decoding/smollm2-135m.pdf
"""

import argparse
import json
from pathlib import Path

from calibration_tuning import errors, figures, tables, transfer_figures

PLAIN = {"temperature": 1.0, "min_p": 0.0}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--metrics", type=Path, required=True, help="metrics.csv")
    parser.add_argument("--model", required=True)
    parser.add_argument("--decodings", type=json.loads, required=True, help="by method, JSON")
    parser.add_argument("--png", type=Path, required=True)
    parser.add_argument("--pdf", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    parsed = parse_arguments()
    tidy = tables.read_tidy(parsed.metrics)
    decodings = {method: PLAIN | how for method, how in parsed.decodings.items()}
    figure = transfer_figures.decoding(
        tidy[tidy["model"] == parsed.model], {"base": PLAIN} | decodings
    )
    for path in (parsed.png, parsed.pdf):
        figures.save_figure(figure, path)


if __name__ == "__main__":
    errors.run(main)
