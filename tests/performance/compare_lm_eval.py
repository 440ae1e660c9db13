"""Benchmark scores through our path against lm-eval alone, on a real model.

lm-eval alone is its own HFLM, which loads the model itself, with its own chat template and its own
batches. Ours is `PackedLM` around the loaded model. Both run the same tasks from local files, one
after the other in one process. Prints a table of the scores, the largest difference of a log
likelihood in nats, and the seconds each took; writes tests/performance/lm_eval.json. Exits with 1
if a score differs in any digit.

    python tests/performance/compare_lm_eval.py --model resources/models/smollm2-135m \
        --tasks resources/tasks/retention-mini-*
"""

import argparse
import json
import logging
import sys
import time
from pathlib import Path

import numpy as np
import torch
from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "workflow" / "scripts"))

from calibration_tuning import benchmark_tasks, checkpoints  # noqa: E402
from calibration_tuning.evaluations import packed_lm  # noqa: E402

RESULTS = Path(__file__).with_name("lm_eval.json")
CONTEXT, BATCH, TOKENS_AT_A_TIME = 2048, 20, 4096


def evaluate(lm: HFLM, folder: Path, items: int, max_new_tokens: int) -> tuple[dict, float]:
    """What lm-eval finds, and in how many seconds."""
    task = benchmark_tasks.load(folder)
    generates = task.config.output_type == "generate_until"
    started = time.perf_counter()
    found = simple_evaluate(
        model=lm,
        tasks=[task],
        limit=items,
        apply_chat_template=True,
        gen_kwargs={"max_gen_toks": max_new_tokens} if generates else None,
        log_samples=True,
        bootstrap_iters=0,
        task_manager=TaskManager(include_defaults=False),
    )
    return found, time.perf_counter() - started


def largest_difference(first: dict, second: dict, name: str) -> float:
    """Of the log likelihoods of all answers, in nats."""
    values = []
    for found in (first, second):
        # An answer's log likelihood and whether it is greedy, by turns.
        rows = [np.ravel(sample["resps"])[::2] for sample in found["samples"][name]]
        values.append(np.concatenate(rows).astype(np.float64))
    return float(np.abs(values[0] - values[1]).max())


def compare(folder: Path, alone: HFLM, ours: packed_lm.PackedLM, arguments) -> dict:
    """Scores, largest difference and times of one task."""
    name = folder.name
    theirs, their_seconds = evaluate(alone, folder, arguments.items, arguments.max_new_tokens)
    found, our_seconds = evaluate(ours, folder, arguments.items, arguments.max_new_tokens)
    scores = {
        metric: (theirs["results"][name][metric], value)
        for metric, value in found["results"][name].items()
        if isinstance(value, float) and "stderr" not in metric
    }
    generates = found["configs"][name]["output_type"] == "generate_until"
    difference = None if generates else largest_difference(theirs, found, name)
    seconds = (their_seconds, our_seconds)
    return {"task": name, "scores": scores, "difference": difference, "seconds": seconds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="a fetched model's folder")
    parser.add_argument(
        "--tasks", type=Path, nargs="+", required=True, help="fetched tasks' folders"
    )
    parser.add_argument("--items", type=int, default=20)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    arguments = parser.parse_args()
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    alone = HFLM(
        pretrained=str(arguments.model), dtype="float32", batch_size=BATCH, max_length=CONTEXT
    )
    ours = packed_lm.PackedLM(
        checkpoints.load_model(arguments.model, "float32", "cpu").eval(),
        checkpoints.load_tokenizer(arguments.model),
        {"batch": BATCH, "context": CONTEXT, "tokens_at_a_time": TOKENS_AT_A_TIME, "chat": {}},
    )
    results = [compare(folder, alone, ours, arguments) for folder in arguments.tasks]
    print(f"{'task':28}{'metric':36}{'lm-eval alone':>22}{'ours':>22}{'nats':>9}{'seconds':>14}")
    for row in results:
        times = "{:.0f} / {:.0f}".format(*row["seconds"])
        nats = "-" if row["difference"] is None else f"{row['difference']:.0e}"
        for metric, (their_score, our_score) in row["scores"].items():
            print(
                f"{row['task']:28}{metric:36}{their_score!r:>22}{our_score!r:>22}{nats:>9}{times:>14}"
            )
    machine = {"threads": torch.get_num_threads(), "items": arguments.items}
    RESULTS.write_text(json.dumps({"machine": machine, "tasks": results}, indent=1) + "\n")
    return int(any(a != b for row in results for a, b in row["scores"].values()))


if __name__ == "__main__":
    sys.exit(main())
