"""Types of command-line arguments that several programs share."""

import argparse
from pathlib import Path


def labelled_path(text: str) -> tuple[str, Path]:
    """Split LABEL=path; argparse's own error where it is something else."""
    label, equals, path = text.partition("=")
    if not (label and equals and path):
        raise argparse.ArgumentTypeError(f"{text}: expected LABEL=path")
    return label, Path(path)
