"""Read documents with a base model or an adapter, to see how likely it finds them.

Example:
    python workflow/scripts/sample_perplexity.py \
        --model resources/models/smollm2-135m/manifest.json \
        --data resources/data/brown_news.jsonl resources/data/python_manual.jsonl \
        --settings '{"data": [{"name": "brown_news"}, {"name": "python_manual"}], ...}' \
        --seed 11 --threads 2 --label smollm2-135m/base/seed11/perplexity \
        --output-directory results/smollm2-135m/base/seed11/perplexity
"""

import sys
import time
from functools import partial
from pathlib import Path

from tqdm import tqdm

from calibration_tuning import errors, files
from calibration_tuning.evaluations import cell, perplexity


def paths_by_name(settings: dict, paths: list[Path]) -> dict[str, Path]:
    """The file of each data set of the settings, in their order."""
    given = {path.stem: path for path in paths}
    names = [data["name"] for data in settings["data"]]
    missing = [name for name in names if name not in given]
    if missing or len(set(names)) < len(names):
        raise errors.InputError(
            f"--data: expected a file {{name}}.jsonl for each data set of {', '.join(names)}, "
            f"each named once, got {', '.join(map(str, paths))}"
        )
    return {name: given[name] for name in names}


def score_data_set(loaded: cell.Cell, texts: list, settings: dict, label: str) -> dict:
    """The documents of a data set, scored; its progress is shown in tokens."""
    bar = partial(tqdm, desc=label, unit="token", unit_scale=True, file=sys.stderr, mininterval=5)
    return {"documents": perplexity.score_texts(loaded, texts, settings, label, bar)}


def main() -> None:
    started = time.perf_counter()
    parser = cell.parser(__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="{name}.jsonl")
    arguments = parser.parse_args()
    settings = arguments.settings
    paths = paths_by_name(settings, arguments.data)
    perplexity.check_settings(settings, arguments.model.parent)
    texts = {
        name: perplexity.read_texts(path, settings["documents"]) for name, path in paths.items()
    }
    loaded = cell.load(arguments)
    work, lock = cell.claim_work(arguments, list(paths.values()))
    scored = {}
    for number, (name, of_data_set) in enumerate(texts.items()):
        label = f"{arguments.label} {name}"
        make = partial(score_data_set, loaded, of_data_set, settings, label)
        scored[name] = files.read_or_make(work / f"data-{number}.json", make)["documents"]
    perplexity.write_samples(arguments.output_directory / "samples.parquet", scored)
    cell.finish(arguments, loaded, started, work, lock)


if __name__ == "__main__":
    errors.run(main)
