"""Let a model write multiple-choice questions, to see which answers it makes the right ones.

Example:
    python workflow/scripts/sample_mcq.py \
        --model resources/models/smollm2-135m/manifest.json \
        --settings '{"samples": 40, ...}' --seed 11 --threads 2 \
        --label smollm2-135m/base/seed11/mcq \
        --output-directory results/smollm2-135m/base/seed11/mcq
"""

import time

from calibration_tuning import errors
from calibration_tuning.evaluations import cell, mcq, samples, text_sampling


def main() -> None:
    started = time.perf_counter()
    arguments = cell.parser(__doc__.splitlines()[0]).parse_args()
    settings, label = arguments.settings, arguments.label
    loaded = cell.load(arguments)
    work, lock = cell.claim_work(arguments, [])
    answers = text_sampling.sample_answers(
        loaded, [mcq.PROMPT], settings, [arguments.seed], work, label
    )
    text_sampling.warn_of_useless_answers(answers, label, settings["max_new_tokens"])
    path = arguments.output_directory / "samples.parquet"
    samples.write_samples(path, [(mcq.SPLIT, 0, answers[0])])
    cell.finish(arguments, loaded, started, work, lock)


if __name__ == "__main__":
    errors.run(main)
