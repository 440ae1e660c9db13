"""Run benchmark tasks on a cell's model, through lm-eval.

Example:
    python workflow/scripts/sample_benchmarks.py \
        --model resources/models/smollm2-135m/manifest.json \
        --tasks resources/tasks/retention-mini-hellaswag/manifest.json \
        --settings '{"items": 20, ...}' --seed 11 --threads 2 \
        --label smollm2-135m/base/seed11/benchmarks \
        --output-directory results/smollm2-135m/base/seed11/benchmarks
"""

import sys
import time
from pathlib import Path

from calibration_tuning import benchmark_tasks, errors, files
from calibration_tuning.evaluations import benchmarks, cell, packed_lm


def main() -> None:
    started = time.perf_counter()
    parser = cell.parser(__doc__.splitlines()[0])
    parser.add_argument(
        "--tasks", type=Path, nargs="+", required=True, help="manifest.json of each task"
    )
    arguments = parser.parse_args()
    # A task whose data are not as they should be shows before the model is loaded.
    tasks = {path.parent.name: benchmark_tasks.load(path.parent) for path in arguments.tasks}
    loaded = cell.load(arguments)
    work, lock = cell.claim_work(arguments, arguments.tasks)
    lm = packed_lm.PackedLM(loaded.model, loaded.tokenizer, arguments.settings)
    rows = []
    for number, (name, task) in enumerate(tasks.items(), start=1):
        print(f"{arguments.label}: {name} ({number} of {len(tasks)})", file=sys.stderr, flush=True)
        part = files.read_or_make(
            work / f"{name}.json",
            lambda task=task: {"rows": packed_lm.run_task(lm, task, arguments.settings)},
        )
        rows += [(name, *row) for row in part["rows"]]
    benchmarks.write_samples(arguments.output_directory / "samples.parquet", rows)
    cell.finish(arguments, loaded, started, work, lock)


if __name__ == "__main__":
    errors.run(main)
