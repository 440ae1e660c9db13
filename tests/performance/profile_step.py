"""Where the time of a training step goes, before and after it was tuned.

    python tests/performance/profile_step.py

The same 2 prompts x 16 values with five decimals on SmolLM2-135M. "before" is packed training as it
was first: targets from an enumerated trie of 1,001 texts, torch's dropout, the loss left to
autograd. Each runs in a process of its own; the run's matrix-product rate stands below, since
this machine's changes from minute to minute. Run tests/performance/run.py first: it fetches the
model.
"""

import argparse
import json
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import torch
from measures import LORA, SEED, VALUES, Setting, matmul_rate
from run import ADAPTER, HERE, MODEL, PROMPTS
from torch.profiler import ProfilerActivity, profile

from calibration_tuning import allocator, checkpoints, training
from calibration_tuning.lora_dropout import use_bit_dropout
from calibration_tuning.packing import packed_logits

STEPS = 3
RANDOM = {"aten::bernoulli_", "aten::random_", "aten::ge"}


def autograd_loss(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The packed loss with its gradient left to autograd."""
    tree = (batch[name] for name in ("token_ids", "positions", "subtree_end", "rows"))
    logits = packed_logits(model, *tree).float()
    row, token = batch["target_row"], batch["target_token"]
    log_p = logits[row, token] - torch.logsumexp(logits, dim=-1)[row]
    return (batch["target_weight"] * (batch["target_log"] - log_p)).sum()


def part_of(event, vocabulary: int) -> str:
    """The part of a step that a profiled operation belongs to."""
    if event.key in ("aten::mm", "aten::addmm", "aten::bmm"):
        return "matrix products"
    if "scaled_dot_product" in event.key:
        return "attention"
    if event.key in RANDOM:
        return "random numbers of dropout"
    if any(vocabulary in shape for shape in event.input_shapes if isinstance(shape, list)):
        return "loss over the vocabulary"
    return "everything else"


def measure(tuned: bool) -> dict[str, float]:
    """Milliseconds by part, averaged over steps."""
    arguments = argparse.Namespace(model=MODEL, adapter=ADAPTER, prompts_directory=PROMPTS)
    setting = Setting(arguments)
    model = checkpoints.attach_new_adapter(setting.base(), LORA, SEED).train()
    loss_of = training.packed_batch_loss if tuned else autograd_loss
    if tuned:
        allocator.keep_freed_memory()
        use_bit_dropout(model)
    settings = {
        "objective": "soft_target",
        "decimals": 5,
        "packing": VALUES,
        "max_bins": "full" if tuned else 1001,
    }
    records = setting.records("train")
    visits = torch.arange(2 * (STEPS + 1)).numpy() * 97
    dataset = training.VisitDataset(
        records, visits, settings, setting.prompt_ids, setting.encode, setting.end_id, SEED
    )
    parts: dict[str, float] = defaultdict(float)
    rates = []
    for step in range(STEPS + 1):
        start = time.perf_counter()
        examples = [dataset[2 * step], dataset[2 * step + 1]]
        prepared = time.perf_counter()
        batch = training.collate(examples)
        packed = time.perf_counter()
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
            loss_of(model, batch).backward()
        if step == 0:  # touches new memory
            continue
        rates.append(matmul_rate())
        parts["targets"] += (prepared - start) * 1e3
        parts["packing"] += (packed - prepared) * 1e3
        for event in profiler.key_averages(group_by_input_shape=True):
            parts[part_of(event, model.config.vocab_size)] += event.self_cpu_time_total / 1e3
    result = {part: total / STEPS for part, total in parts.items()}
    return result | {"rate (GFLOP/s)": sum(rates) / STEPS / 1e9}


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measure(tuned=sys.argv[1] == "after")))
        return
    columns = {}
    for side in ("before", "after"):
        command = [sys.executable, str(Path(__file__)), side]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        columns[side] = json.loads(output.splitlines()[-1])
    totals = {
        side: sum(value for part, value in column.items() if not part.startswith("rate"))
        for side, column in columns.items()
    }
    print(f"{'milliseconds a step':<28}{'before':>16}{'after':>16}")
    for part in columns["after"]:
        cells = [
            f"{column[part]:8.0f} {column[part] / totals[side]:6.1%}"
            if not part.startswith("rate")
            else f"{column[part]:8.0f}       "
            for side, column in columns.items()
        ]
        print(f"{part:<28}{cells[0]:>16}{cells[1]:>16}")
    print(f"{'total':<28}{totals['before']:8.0f}        {totals['after']:8.0f}")
    (HERE / "profile.json").write_text(json.dumps(columns, indent=1) + "\n")


if __name__ == "__main__":
    main()
