"""List cells with their state: done, missing, stale or left out, as Snakemake itself plans them.

A stale cell has a result that the next run would make again, because code, settings or files that
it depends on have changed.

Example:
    python workflow/scripts/list_cells.py --snakemake --configfile config/config.yaml
"""

import argparse
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from calibration_tuning import errors


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--excluded", nargs="*", default=[], type=json.loads, help="[model, method, seed, reason]"
    )
    parser.add_argument("--snakemake", nargs=argparse.REMAINDER, help="arguments of snakemake")
    return parser.parse_args()


def summary(arguments: list[str]) -> list[dict[str, str]]:
    """What `snakemake --summary` says of every file that the selected cells need."""
    # --nolock: the run that this job belongs to holds the lock, and a summary only reads.
    command = [sys.executable, "-m", "snakemake", *arguments, "--nolock", "--summary", "metrics"]
    result = subprocess.run(command, capture_output=True, text=True)
    lines = [line.split("\t") for line in result.stdout.splitlines() if "\t" in line]
    if result.returncode or not lines:
        raise errors.InputError(f"snakemake --summary failed: {result.stderr.strip()[-400:]}")
    header, *rows = lines
    return [dict(zip(header, row, strict=True)) for row in rows]


def state_of(metrics: Path, rows: list[dict[str, str]]) -> tuple[str, str]:
    """State of a cell and, where it is not done, the first rule that it waits for and why.

    Parameters
    ----------
    metrics : its metrics.json
    rows : of `summary`, for the files of the cell
    """
    pending = [row for row in rows if row["plan"] != "no update"]
    if metrics.exists() and not pending:
        return "done", ""
    changed = [row for row in pending if row["status"] != "ok"] or pending
    # The summary has what is needed first last.
    reason = f"{changed[-1]['rule']}: {changed[-1]['status']}" if changed else ""
    return ("stale" if metrics.exists() else "missing"), reason


def main() -> None:
    arguments = parse_arguments()
    rows = summary(arguments.snakemake)
    counts = Counter()
    for row in sorted(rows, key=lambda row: row["output_file"]):
        metrics = Path(row["output_file"])
        if metrics.name != "metrics.json":
            continue
        # results/{model}/{method}/seed{seed}/{evaluation}/metrics.json: what the evaluation's own
        # folder and the training beside it wait for, not what other evaluations do.
        folders = (metrics.parent, metrics.parents[1], metrics.parents[1] / "adapter")
        own = [other for other in rows if Path(other["output_file"]).parent in folders]
        state, reason = state_of(metrics, own)
        counts[state] += 1
        print(f"{state:8} {metrics}  {reason}".rstrip())
    for model, method, seed, reason in arguments.excluded:
        counts["left out"] += 1
        print(f"left out {model}/{method}/seed{seed}: {reason}")
    print(", ".join(f"{number} {state}" for state, number in counts.items()) or "no cells")


if __name__ == "__main__":
    errors.run(main)
