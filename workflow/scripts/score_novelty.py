"""NoveltyBench, third step: how good generations are, and what a partition of them is worth.

Example:
    python workflow/scripts/score_novelty.py \
        --samples results/smollm2-135m/base/seed11/novelty/samples.parquet \
        --partition results/smollm2-135m/base/seed11/novelty/partition.json \
        --run results/smollm2-135m/base/seed11/novelty/run.json \
        --data resources/data/embedded.jsonl \
        --judge resources/models/smollm2-135m/manifest.json \
        --settings '{"kind": "likelihood", "thresholds": [-4.0, ...], ...}' --threads 2 \
        --model smollm2-135m --method base --seed 11 \
        --output results/smollm2-135m/base/seed11/novelty/metrics.json
"""

import shutil
from pathlib import Path

from calibration_tuning import errors, files
from calibration_tuning.evaluations import cell, judging, metrics, novelty, samples


def main() -> None:
    parser = metrics.add_arguments(judging.parser(__doc__.splitlines()[0]))
    parser.add_argument("--partition", type=Path, required=True, help="partition.json")
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="a file a data set")
    arguments = parser.parse_args()
    frame = samples.read_samples(arguments.samples, "generate_novelty", samples.SCHEMA.names)
    partition = novelty.read_partition(arguments.partition)
    records = {(name, index): r for name, index, r in novelty.read_data(arguments.data)}
    of_prompts = judging.read_generations(arguments.samples)
    rate = judging.load_rater(arguments)
    work, lock = cell.claim_work_of(arguments.output.parent, judging.identity(arguments))
    ratings = {
        key: files.read_or_make(
            work / f"{key[0]}-{key[1]}.json",
            lambda key=key, texts=texts: {"ratings": rate(records[key]["prompt"], texts)},
        )["ratings"]
        for key, texts in judging.progress(of_prompts, arguments.label)
    }
    judges = {"partition": partition["judge"], "quality": judging.describe(arguments)}
    values = novelty.score_cell(
        frame, partition["classes"], ratings, records, judges, seed=arguments.seed
    )
    metrics.write(arguments, "novelty", values)
    shutil.rmtree(work)
    lock.release()


if __name__ == "__main__":
    errors.run(main)
