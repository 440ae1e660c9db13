"""Draw a model's gain in calibration against what it changes elsewhere, a point a method.

Example:
    python workflow/scripts/plot_trade_off.py --table results/smollm2-135m/trade_off.csv \
        --chains '[["soft", "soft-replay-1"]]' \
        --png results/figures/trade_off/smollm2-135m.png \
        --pdf results/figures/trade_off/smollm2-135m.pdf
"""

import argparse
import json
from pathlib import Path

from calibration_tuning import errors, figures, retention_figures, trade_off


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", type=Path, required=True, help="CSV of one model")
    parser.add_argument(
        "--chains", type=json.loads, default=[], help="methods to join by a line, JSON lists"
    )
    parser.add_argument("--png", type=Path, required=True)
    parser.add_argument("--pdf", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    parsed = parse_arguments()
    table = trade_off.read_table([parsed.table])
    figure = retention_figures.trade_off(table, parsed.chains)
    for path in (parsed.png, parsed.pdf):
        figures.save_figure(figure, path)


if __name__ == "__main__":
    errors.run(main)
