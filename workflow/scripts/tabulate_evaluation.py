"""Write the summary of an evaluation as CSV, Markdown, LaTeX and HTML, and print it.

Example:
    python workflow/scripts/tabulate_evaluation.py --metrics results/tables/metrics.csv \
        --evaluation mcq --csv results/tables/mcq.csv --markdown results/tables/mcq.md \
        --latex results/tables/mcq.tex --html results/tables/mcq.html
"""

import argparse
from pathlib import Path

from calibration_tuning import errors, files, tables


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--metrics", type=Path, required=True, help="metrics.csv")
    parser.add_argument("--evaluation", choices=tables.TITLES, required=True)
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--markdown", type=Path, required=True)
    parser.add_argument("--latex", type=Path, required=True)
    parser.add_argument("--html", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    evaluation = arguments.evaluation
    table = tables.summary(tables.read_tidy(arguments.metrics), evaluation)
    files.write_atomic(arguments.csv, table.to_csv(index=False))
    files.write_atomic(arguments.markdown, tables.to_markdown(table, evaluation))
    files.write_atomic(arguments.latex, tables.to_latex(table, evaluation))
    files.write_atomic(arguments.html, tables.to_html(table, evaluation))
    print(tables.headline(table, evaluation), end="")


if __name__ == "__main__":
    errors.run(main)
