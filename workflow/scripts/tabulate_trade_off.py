"""Write what methods gain in calibration and change elsewhere as tables, and print the means.

Example:
    python workflow/scripts/tabulate_trade_off.py --table results/smollm2-135m/trade_off.csv \
        --csv results/tables/trade_off.csv --markdown results/tables/trade_off.md \
        --latex results/tables/trade_off.tex --html results/tables/trade_off.html
"""

import argparse
from pathlib import Path

import pandas as pd

from calibration_tuning import errors, files, tables, trade_off

TITLE = "Changes against the untuned model"
TEXTS = 3


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", type=Path, nargs="+", required=True, help="CSV, one a model")
    for kind in ("csv", "markdown", "latex", "html"):
        parser.add_argument(f"--{kind}", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    parsed = parse_arguments()
    table = trade_off.read_table(parsed.table)
    header, rows = trade_off.to_rows(table)
    page = tables.html_page(pd.DataFrame(rows, columns=header), TITLE, TEXTS)
    files.write_atomic(parsed.csv, table.to_csv(index=False))
    files.write_atomic(parsed.markdown, tables.markdown_rows(header, rows, TEXTS))
    files.write_atomic(parsed.latex, trade_off.latex_rows(header, rows, TEXTS))
    files.write_atomic(parsed.html, page)
    print(trade_off.headline(table), end="")


if __name__ == "__main__":
    errors.run(main)
