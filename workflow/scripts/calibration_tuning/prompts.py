"""From parameter grids to prompts (Paper A, appendix on prompts)."""

import json
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import numpy as np

from calibration_tuning.errors import InputError
from calibration_tuning.families import FAMILIES, Distribution

DERIVED: dict[str, tuple[tuple[str, ...], Callable[..., dict]]] = {
    "uniform": (("a", "width"), lambda a, width: {"a": a, "b": a + width}),
    "triangular": (
        ("a", "width", "mode_fraction"),
        lambda a, width, fraction: {"a": a, "c": a + width * fraction, "b": a + width},
    ),
    "hypergeometric": (
        ("M", "N", "success_fraction"),
        lambda m, n, fraction: {"M": m, "K": float(round(m * fraction)), "N": min(n, m)},
    ),
}
"""Families whose grid is not written in the parameters that the prompt shows: the grid's
parameters, and the function from them in that order to the shown ones."""


def grid_rows(grid: dict) -> list[dict[str, float]]:
    """The rows of a parameter grid: the product of its parameters, picked evenly to its count.

    Parameters
    ----------
    grid : dict
        count, and parameters: name -> list, {linspace: [first, last, number]} or
        {geomspace: [first, last, number]}.
    """
    axes = []
    for values in grid["parameters"].values():
        if isinstance(values, dict):
            ((kind, (first, last, number)),) = values.items()
            space = np.linspace if kind == "linspace" else np.geomspace
            values = space(first, last, int(number)).tolist()
        axes.append([float(value) for value in values])
    rows = [dict(zip(grid["parameters"], row, strict=True)) for row in product(*axes)]
    if len(rows) > grid["count"]:
        picked = np.linspace(0, len(rows) - 1, grid["count"]).astype(int)
        rows = [rows[index] for index in picked]
    return rows


def _record(family: str, row: dict[str, float], name: str) -> dict:
    """A prompt record; a bad parameter is reported with the file and family it stands in."""
    try:
        params = _derive(family, row) if family in DERIVED else row
        order = FAMILIES[family].parameters
        distribution = Distribution(family, {k: params[k] for k in order if k in params} | params)
        distribution.scipy  # noqa: B018 -- raises where no such distribution exists
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    return {"family": family, "params": distribution.params, "prompt": distribution.prompt}


def _derive(family: str, row: dict[str, float]) -> dict[str, float]:
    """The shown parameters of a row of a family in `DERIVED`."""
    expected, derivation = DERIVED[family]
    if set(row) != set(expected):
        raise InputError(
            f"family {family}: expected the grid parameters {', '.join(expected)}, "
            f"got {', '.join(row)}"
        )
    return derivation(*(row[parameter] for parameter in expected))


def build_prompts(families: dict[str, dict], name: str) -> dict[str, list[dict]]:
    """All prompts by file: train, unseen, heldout, and the selected ones of the latter two.

    Parameters
    ----------
    families : dict
        The `families` block of config/families.yaml, validated against its schema.
    name : str
        Name of that file, for messages.

    Returns
    -------
    dict of lists of {"family", "params", "prompt"}

    Raises
    ------
    InputError
        For an unknown family, parameters it does not exist for, or a count above the product.
    """
    prompts: dict[str, list[dict]] = {
        key: [] for key in ("train", "unseen", "heldout", "unseen_selected", "heldout_selected")
    }
    for family, entry in families.items():
        if family not in FAMILIES:
            raise InputError(
                f"{name}: families.{family}: no such family; expected one of: {', '.join(FAMILIES)}"
            )
        for split in ("train", "unseen", "heldout"):
            if split in entry:
                rows = grid_rows(entry[split])
                if len(rows) < entry[split]["count"]:
                    raise InputError(
                        f"{name}: families.{family}.{split}.count: expected at most {len(rows)}, "
                        f"the product of its parameters, got {entry[split]['count']}"
                    )
                prompts[split] += [_record(family, row, name) for row in rows]
        selected = "unseen_selected" if "unseen" in entry else "heldout_selected"
        prompts[selected] += [
            _record(family, {k: float(v) for k, v in row.items()}, name)
            for row in entry["selected"]
        ]
    return prompts


def read_prompts(path: Path | str) -> list[dict]:
    """Read a prompt file, a JSON object with at least family, params and prompt a line.

    Raises
    ------
    InputError
        Names the file and line that is not such an object.
    """
    records = []
    for number, line in enumerate(_lines(path), start=1):
        try:
            record = json.loads(line)
            Distribution(record["family"], record["params"])
            record["prompt"].strip()
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError(
                f"{path}, line {number}: expected a JSON object with family, params and prompt"
            ) from None
        except InputError as error:
            raise InputError(f"{path}, line {number}: {error}") from None
        records.append(record)
    if not records:
        raise InputError(f"{path}: expected at least one prompt, found none")
    return records


def read_open_prompts(path: Path | str, keys: Sequence[str]) -> list[dict]:
    """Read a file of prompts that ask for something else than numbers, a JSON object a line.

    Parameters
    ----------
    keys : sequence of str
        What each line must have, each a text that is not blank.

    Raises
    ------
    InputError
        Names the file and line that is not such an object, or says that there is none.
    """
    records = []
    for number, line in enumerate(_lines(path), start=1):
        try:
            record = json.loads(line)
            good = all(record[key].strip() for key in keys)
        except (ValueError, KeyError, TypeError, AttributeError):
            good = False
        if not good:
            raise InputError(
                f"{path}, line {number}: expected a JSON object with the texts {', '.join(keys)}"
            )
        records.append(record)
    if not records:
        raise InputError(f"{path}: expected at least one prompt, found none")
    return records


def _lines(path: Path | str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: expected text in UTF-8") from None
