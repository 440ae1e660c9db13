"""Benchmark tasks of lm-eval: their data on disk, and the task read from there, offline.

A task is one of lm-eval's own, whose data come from the hub (TinyBenchmarks' six are among them),
or one of `MINI_TASKS`: the same questions' layout over items that ship in a package, for machines
without a hub. These have fewer items than the benchmarks whose names they carry and a layout of
ours, so their numbers compare with each other only; `retention-mini` in their names says so.

Fetching touches the network; of lm-eval's own tasks it was only tried with data sets in local
folders, not with the hub itself.
"""

import difflib
import json
import shutil
import sys
import types
from functools import cache
from pathlib import Path

from calibration_tuning import files, sources
from calibration_tuning.errors import InputError

_MEAN = {"aggregation": "mean", "higher_is_better": True}
_MULTIPLE_CHOICE = {
    "output_type": "multiple_choice",
    "test_split": "test",
    "doc_to_target": "expected_index",
    "metric_list": [{"metric": metric, **_MEAN} for metric in ("acc", "acc_norm")],
}
MINI_TASKS = {
    "retention-mini-gsm8k": {
        "output_type": "generate_until",
        "test_split": "test",
        "doc_to_text": (
            "Solve this problem step by step. On a last line write #### and then the answer, a "
            "number without its unit.\n\n{{prompt}}"
        ),
        "doc_to_target": "{{expected}}",
        "generation_kwargs": {"until": ["\n\n\n"], "do_sample": False},
        "filter_list": [
            {
                "name": "strict-match",
                "filter": [
                    {"function": "regex", "regex_pattern": r"#### ?(-?[0-9.,]+)"},
                    {"function": "take_first"},
                ],
            },
            {
                "name": "flexible-extract",
                "filter": [
                    {
                        "function": "regex",
                        "group_select": -1,
                        "regex_pattern": r"(-?[0-9](?:[0-9.,]*[0-9])?)",
                    },
                    {"function": "take_first"},
                ],
            },
        ],
        "metric_list": [
            {
                "metric": "exact_match",
                **_MEAN,
                "regexes_to_ignore": [",", r"\.$", r"\.0+$"],
            }
        ],
    },
    "retention-mini-hellaswag": _MULTIPLE_CHOICE
    | {"doc_to_text": "{{activity_label}}: {{ctx}}", "doc_to_choice": "endings"},
    "retention-mini-truthfulqa": _MULTIPLE_CHOICE
    | {
        "doc_to_text": "{{question}}",
        "doc_to_choice": "choices",
        "metric_list": [{"metric": "acc", **_MEAN}],
    },
}
"""Tasks of ours by name, in lm-eval's form. Their data: a JSONL file with the columns they use."""

MANIFEST = "manifest.json"


def fetch(settings: dict, into: Path, downloads: Path) -> dict:
    """Bring a task's data to a folder, and a manifest that says which they are.

    Parameters
    ----------
    settings : dict
        name; source and, where known, sha256 for a task of `MINI_TASKS`.
    into : Path
        Gets the data set in Arrow form and, written last, manifest.json.
    downloads : Path
        Where packages and the hub's files are kept.

    Returns
    -------
    dict
        The manifest: task, definition (of lm-eval, or None), source, rows by split.

    Raises
    ------
    InputError
        A task that lm-eval does not know, or data that cannot be had.
    """
    import datasets

    datasets.disable_progress_bars()
    name = settings["name"]
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    if name in MINI_TASKS:
        definition, source = None, settings["source"]
        data = _read_items(name, settings, into, downloads)
    else:
        path = find_definition(name)
        definition = str(path.relative_to(_task_folder()))
        data, source = _download(name, path, downloads)
    data.save_to_disk(into / "data")
    manifest = {
        "task": name,
        "definition": definition,
        "source": source,
        "rows": {split: len(rows) for split, rows in data.items()},
    }
    files.write_atomic(into / MANIFEST, json.dumps(manifest, indent=1) + "\n")
    return manifest


def load(folder: Path):
    """A fetched task, ready to be given to lm-eval; nothing is downloaded.

    Returns
    -------
    lm_eval.api.task.Task

    Raises
    ------
    InputError
        A folder without a fetched task, or data that lack a column.
    """
    import datasets
    from lm_eval.api.task import ConfigurableTask

    manifest = files.read_json(folder / MANIFEST)
    name = manifest["task"]
    config = MINI_TASKS.get(name) or _read_definition(_task_folder() / manifest["definition"])
    try:
        data = datasets.load_from_disk(str(folder / "data"))
        return ConfigurableTask(
            config=config | {"task": name, "custom_dataset": lambda **_: data, "dataset_kwargs": {}}
        )
    except Exception as error:  # jinja2, datasets and lm-eval have errors of their own
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"{folder}: the task {name} cannot be made of its data: {reason}; fetch it again: "
            f"snakemake --forcerun fetch_task -- {folder / MANIFEST}"
        ) from None


def find_definition(name: str) -> Path:
    """The file of a task of lm-eval's own.

    Raises
    ------
    InputError
        No such task, the name of a group of them, or a task that runs what the model writes.
    """
    from lm_eval.tasks._yaml_loader import load_yaml

    manager = _task_manager()
    entry = manager.task_index.get(name)
    if entry is None:
        known = [*MINI_TASKS, *manager.all_subtasks]
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise InputError(
            f"evaluations.benchmarks.tasks: lm-eval has no task {name!r}; {hint}expected one of "
            f"{', '.join(MINI_TASKS)} or a name that `lm-eval ls subtasks` shows"
        )
    if name not in manager.all_subtasks or entry.yaml_path is None:
        raise InputError(
            f"evaluations.benchmarks.tasks: {name!r} is not a single task of lm-eval; expected the "
            "names of tasks, not of a group or tag of them"
        )
    path = Path(entry.yaml_path)
    if load_yaml(path, resolve_func=False).get("unsafe_code"):
        raise InputError(
            f"evaluations.benchmarks.tasks: {name!r} runs programs that the model writes, which is "
            "not supported here; expected a task that does not"
        )
    return path


@cache
def _task_manager():
    """lm-eval's index of all its tasks, which takes seconds to read."""
    from lm_eval.tasks import TaskManager

    return TaskManager()


def _task_folder() -> Path:
    import lm_eval.tasks

    return Path(lm_eval.tasks.__file__).parent


def _read_definition(path: Path) -> dict:
    """The configuration of a task of lm-eval's own, its functions resolved.

    TinyBenchmarks' tasks import a package for their estimate that is on no index and unpickles a
    file from the network: an empty module stands for it, and their scores are plain means here.
    The estimate is `evaluations.item_response`.
    """
    from lm_eval.tasks._yaml_loader import load_yaml

    sys.modules.setdefault("tinyBenchmarks", types.ModuleType("tinyBenchmarks"))
    config = load_yaml(path)
    for metric in config.get("metric_list") or []:
        if "tinyBenchmarks" in getattr(metric.get("aggregation"), "__module__", ""):
            metric["aggregation"] = "mean"
    return {key: value for key, value in config.items() if key not in ("tag", "group")}


def _read_items(name: str, settings: dict, into: Path, downloads: Path):
    """The items of a task of ours, as a data set with the split test."""
    import datasets

    brought = into / "source"
    brought.mkdir()
    sources.fetch_files(settings["source"], settings.get("sha256"), downloads, brought)
    found = sorted(brought.glob("*.jsonl"))
    if len(found) != 1:
        raise InputError(f"{settings['source']}: expected one JSONL file with the items of {name}")
    rows = []
    for number, line in enumerate(found[0].read_text(encoding="utf-8").splitlines(), start=1):
        try:
            rows.append(json.loads(line))
        except ValueError:
            raise InputError(f"{settings['source']}, line {number}: not valid JSON") from None
    try:
        return datasets.DatasetDict({"test": datasets.Dataset.from_list(rows)})
    except (ValueError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{settings['source']}: not a table of items: {reason}") from None


def _download(name: str, path: Path, downloads: Path):
    """The data of a task of lm-eval's own, and where they came from."""
    import datasets
    from lm_eval.api.task import ConfigurableTask

    config = _read_definition(path)
    if "class" in config:
        raise InputError(f"{name}: a task that is a program of its own; expected one of settings")
    options = dict(config.get("dataset_kwargs") or {}) | {"cache_dir": str(downloads / "datasets")}
    address = f"hub:{config.get('dataset_path')}"
    try:
        task = ConfigurableTask(config=config | {"dataset_kwargs": options})
    except datasets.exceptions.DatasetNotFoundError as error:
        page = f"https://huggingface.co/datasets/{config.get('dataset_path')}"
        raise InputError(
            f"{name}: {address}: no such data set, or no access to it: if it is gated, accept its "
            f"licence at {page} and log in with `hf auth login` ({_first_line(error)})"
        ) from None
    except Exception as error:  # the hub's HTTP client has errors of its own
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk
        raise InputError(
            f"{name}: {address}: cannot be loaded: {_first_line(error.__cause__ or error)}"
        ) from None
    return task.dataset, address


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
