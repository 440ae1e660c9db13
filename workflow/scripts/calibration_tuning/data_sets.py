"""Data sets of prompts, as JSON lines; like `sources`, this touches the network."""

from pathlib import Path

from calibration_tuning import sources
from calibration_tuning.errors import InputError
from calibration_tuning.prompts import read_open_prompts

KEPT = ("id", "kind", "prompt")
"""Columns that are kept; only the prompt must be there."""


def fetch_prompts(settings: dict, downloads: Path) -> list[dict]:
    """The prompts of a data set.

    Parameters
    ----------
    settings : dict
        source: hub:owner/name@revision, path: to a local data set, or path: to a JSONL file;
        split: of a data set, where it has several.
    downloads : Path
        Where the hub's files are kept.

    Returns
    -------
    list of dict
        prompt, and id and kind where the data set has them.

    Raises
    ------
    InputError
        A data set that cannot be had, or one without the split, the column or a prompt.
    """
    kind, part = sources.parse(settings["source"])
    if kind == "path" and Path(part["path"]).is_file():
        records = read_open_prompts(part["path"], ["prompt"])
    else:
        records = _load(settings, kind, part, downloads)
    return [{key: record[key] for key in KEPT if key in record} for record in records]


def _load(settings: dict, kind: str, part: dict, downloads: Path) -> list[dict]:
    """Rows of a data set, by the datasets library."""
    import datasets

    source, split = settings["source"], settings.get("split", "train")
    name = part["repository"] if kind == "hub" else part["path"]
    if kind == "path" and not Path(name).is_dir():
        raise InputError(f"{source}: no such file or folder")
    datasets.disable_progress_bars()
    try:
        data = datasets.load_dataset(
            name,
            split=split,
            revision=part.get("revision"),
            cache_dir=str(downloads / "datasets"),
        )
    except Exception as error:  # the library's readers and its HTTP client have errors of their own
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk
        cause = error.__cause__ or error
        reason = (str(cause).splitlines() or [type(cause).__name__])[0]
        raise InputError(f"{source}: split {split} cannot be loaded: {reason}") from None
    if "prompt" not in data.column_names:
        raise InputError(
            f"{source}: split {split} has no column prompt; it has {', '.join(data.column_names)}"
        )
    records = list(data)
    if not records or not all(
        isinstance(r["prompt"], str) and r["prompt"].strip() for r in records
    ):
        raise InputError(f"{source}: split {split}: expected a prompt in every row")
    return records
