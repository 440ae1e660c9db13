"""What models answered, on disk: a Parquet file a cell and evaluation, a row a sample."""

import argparse
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from calibration_tuning import files
from calibration_tuning.errors import InputError, remake

SCHEMA = pa.schema(
    [
        ("split", pa.string()),
        ("prompt_index", pa.int32()),
        ("sample", pa.int32()),
        ("text", pa.string()),
        ("token_ids", pa.list_(pa.int32())),
        ("finished", pa.bool_()),
    ]
)
"""`text` is the answer; `token_ids` are all that was sampled to get there."""

COLUMNS = ("split", "prompt_index", "text")
"""Without what only costs and endings are counted from."""


def write_samples(path: Path, answers: Iterable[tuple[str, int, Sequence]]) -> None:
    """Write samples as Parquet.

    Parameters
    ----------
    path : Path
    answers : (split, prompt index, answers) of each prompt
        An answer is [text, token ids, finished].
    """
    rows = [
        (split, index, number, text, token_ids, finished)
        for split, index, of_prompt in answers
        for number, (text, token_ids, finished) in enumerate(of_prompt)
    ]
    columns = [list(column) for column in zip(*rows, strict=True)]
    arrays = [pa.array(c, field.type) for c, field in zip(columns, SCHEMA, strict=True)]
    buffer = io.BytesIO()
    pq.write_table(pa.table(arrays, schema=SCHEMA), buffer, compression="zstd")
    files.write_atomic(path, buffer.getvalue())


def read_samples(path: Path, rule: str, columns: Sequence[str] = COLUMNS) -> pd.DataFrame:
    """Columns of a file of samples.

    Parameters
    ----------
    path : Path
    rule : the rule that makes it, for messages
    columns : of `SCHEMA`

    Raises
    ------
    InputError
        If it has no such columns, no rows or missing values.
    """
    again = remake(rule, path)
    try:
        samples = pd.read_parquet(path, columns=list(columns))
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"{path}: expected Parquet with columns {', '.join(columns)} ({reason}); {again}"
        ) from error
    if samples.empty or samples.isna().any(axis=None):
        raise InputError(f"{path}: expected samples without missing values; {again}")
    return samples


def tokens_per_answer(samples: pd.DataFrame) -> list[int]:
    """Tokens sampled for each answer, the reasoning before it included."""
    return [len(ids) for ids in samples["token_ids"]]


def add_argument(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The argument of every program that reads samples."""
    parser.add_argument("--samples", type=Path, required=True, help="samples.parquet")
    return parser
