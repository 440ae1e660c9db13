"""The metrics.json of a cell and evaluation: what every program that scores writes."""

import argparse
import json
from pathlib import Path

from calibration_tuning import files


def add_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The arguments that say whose metrics these are and where they go."""
    parser.add_argument("--run", type=Path, required=True, help="run.json, the provenance")
    parser.add_argument("--model", required=True, help="the cell's model")
    parser.add_argument("--method", required=True, help="the cell's method")
    parser.add_argument("--seed", type=int, required=True, help="the cell's, also the bootstrap's")
    parser.add_argument("--output", type=Path, required=True, help="metrics.json")
    return parser


def write(arguments: argparse.Namespace, evaluation: str, values: dict) -> None:
    """Write metrics.json as workflow/schemas/metrics.schema.json describes it."""
    content = {
        "cell": {
            "model": arguments.model,
            "method": arguments.method,
            "seed": arguments.seed,
            "evaluation": evaluation,
        },
        "values": values,
        "provenance": files.read_json(arguments.run),
    }
    files.write_atomic(arguments.output, json.dumps(content, indent=1, allow_nan=False) + "\n")
