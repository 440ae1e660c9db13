"""One measurement of the performance suite, in a process of its own: `measures.py NAME SIDE`.

NAME is a function below; SIDE is "ours" or "plain" (the papers' way). Prints one line of JSON.
"""

import argparse
import json
import resource
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch

from calibration_tuning import allocator, chat, checkpoints, plain, prompts, training
from calibration_tuning.divergences import divergence
from calibration_tuning.families import Distribution
from calibration_tuning.lora_dropout import use_bit_dropout
from calibration_tuning.objectives import OBJECTIVES
from calibration_tuning.sampling import sample_completions
from calibration_tuning.trie import build_trie, path_targets

LORA = {"rank": 16, "alpha": 32, "dropout": 0.05}
POISSON = Distribution("poisson", {"lambda": 4.0})
GAUSSIAN = Distribution("gaussian", {"mu": 3.5, "sigma": 3.0})
DECIMALS, VALUES, PROMPTS_IN_A_STEP = 5, 16, 2
SAMPLES, BATCH, MAX_NEW_TOKENS = 1000, 100, 32
KL_DECIMALS, KL_BINS, KL_PATHS = 2, 1001, 64
SEED = 11


class Setting:
    """What all measurements need: the model's folder, its tokenizer and prompts."""

    def __init__(self, arguments: argparse.Namespace):
        self.folder = arguments.model.parent
        self.adapter = arguments.adapter
        self.prompts = arguments.prompts_directory
        self.tokenizer = checkpoints.load_tokenizer(self.folder)
        self.end_id = chat.end_of_turn_id(self.tokenizer, {})
        self.encode = chat.completion_encoder(self.tokenizer)

    def prompt_ids(self, text: str) -> list[int]:
        return chat.encode_prompt(self.tokenizer, text, {})

    def records(self, name: str) -> list[dict]:
        return prompts.read_prompts(self.prompts / f"{name}.jsonl")

    def base(self) -> torch.nn.Module:
        return checkpoints.load_model(self.folder, "float32", "cpu")

    def tuned(self) -> torch.nn.Module:
        return checkpoints.load_adapter(self.base(), self.adapter, merge=True).eval()


def matmul_rate(size: int = 2048) -> float:
    """Float32 operations a second of a large matrix product, median of five."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - start)
    return 2 * size**3 / statistics.median(times)


def step_operations(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> float:
    """Floating-point operations that a packed training step cannot do without.

    Products with frozen weights run forward and for the gradient of their input, those with
    LoRA's also for their own gradient; attention counts the pairs of nodes that see each other.
    """
    frozen = lora = head = 0
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            if "lora" in name:
                lora += module.weight.numel()
            elif name.endswith("lm_head"):
                head = module.weight.numel()
            else:
                frozen += module.weight.numel()
    nodes, rows = len(batch["token_ids"]), len(batch["rows"])
    pairs = int((batch["positions"] + 1).sum())
    config = model.config
    width = config.num_attention_heads * (config.hidden_size // config.num_attention_heads)
    attention = config.num_hidden_layers * pairs * width * (4 + 8)
    return nodes * (4 * frozen + 6 * lora) + rows * 4 * head + attention


def train(setting: Setting, side: str, objective: str, gather: bool) -> dict:
    """Training steps of 2 prompts x 16 values with five decimals; completions a second.

    `gather` is for the plain way: pick the logits of all targets in one operation, which its
    authors could have done, instead of example by example.
    """
    records = setting.records("train")
    model = checkpoints.attach_new_adapter(setting.base(), LORA, SEED).train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-4)
    steps = 6 if side == "ours" else 2
    visits = np.arange(0, len(records), len(records) // (PROMPTS_IN_A_STEP * steps))
    settings = {
        "objective": objective,
        "decimals": DECIMALS,
        "packing": VALUES,
        # Full resolution costs ours nothing; the plain way lists 1,001 texts.
        "max_bins": "full" if side == "ours" else 1001,
    }
    dataset = training.VisitDataset(
        records, visits, settings, setting.prompt_ids, setting.encode, setting.end_id, SEED
    )
    step = _our_step if side == "ours" else _plain_step
    if side == "ours":
        use_bit_dropout(model)
    seconds, limits, parts = [], [], []
    for number in range(steps):
        wanted = range(number * PROMPTS_IN_A_STEP, (number + 1) * PROMPTS_IN_A_STEP)
        rate = matmul_rate()
        part, operations = step(setting, model, dataset, wanted, gather)
        start = time.perf_counter()
        optimizer.step()
        optimizer.zero_grad()
        part["optimizer"] = time.perf_counter() - start
        rate = (rate + matmul_rate()) / 2
        seconds.append(sum(part.values()))
        limits.append(operations / rate)
        parts.append(part)
    kept = slice(1, None)  # the first step also touches new memory
    completions = PROMPTS_IN_A_STEP * VALUES
    result = {"completions_per_second": completions / statistics.median(seconds[kept])}
    if side == "ours":
        result["limit_completions_per_second"] = completions / statistics.median(limits[kept])
        result["share_of_limit"] = statistics.median(
            limit / second for limit, second in zip(limits[kept], seconds[kept], strict=True)
        )
    result["seconds_by_part"] = {
        name: round(statistics.median(part[name] for part in parts[kept]), 4) for name in parts[0]
    }
    return result


def _our_step(setting, model, dataset, wanted, _) -> tuple[dict[str, float], float]:
    times = [time.perf_counter()]
    examples = [dataset[index] for index in wanted]
    times.append(time.perf_counter())
    batch = training.collate(examples)
    times.append(time.perf_counter())
    loss = training.packed_batch_loss(model, batch)
    times.append(time.perf_counter())
    loss.backward()
    times.append(time.perf_counter())
    names = ("targets", "packing", "forward", "backward")
    return dict(zip(names, np.diff(times).tolist(), strict=True)), step_operations(model, batch)


def _plain_step(setting, model, dataset, wanted, gather) -> tuple[dict[str, float], float]:
    """Tries are not timed here: they are built once a prompt, see `prepare_prompts`."""
    sequences, paths, targets = [], [], []
    for index in wanted:
        example = dataset[index]
        sequences += [example.prompt_ids] * len(example.paths)
        paths += example.paths
        targets += plain.targets_of(example)
    times = [time.perf_counter()]
    loss = plain.batch_loss(model, sequences, paths, targets, setting.end_id, gather)
    times.append(time.perf_counter())
    loss.backward()
    times.append(time.perf_counter())
    return dict(zip(("forward", "backward"), np.diff(times).tolist(), strict=True)), 0.0


def train_hard(setting: Setting, side: str, gather: bool = False) -> dict:
    return train(setting, side, "hard_target", gather)


def train_soft(setting: Setting, side: str, gather: bool = False) -> dict:
    return train(setting, side, "soft_target", gather)


def sample(setting: Setting, side: str, distribution: Distribution, batches: int) -> dict:
    """1,000 samples of one prompt; seconds."""
    model = setting.tuned()
    stop_ids = chat.stop_ids(setting.tokenizer, model.generation_config, {})
    prompt_ids = setting.prompt_ids(distribution.prompt)
    start = time.perf_counter()
    if side == "ours":
        samples = sample_completions(
            model,
            setting.tokenizer,
            prompt_ids,
            SAMPLES,
            stop_ids=stop_ids,
            max_new_tokens=MAX_NEW_TOKENS,
            seed=SEED,
        )
        tokens = [len(sample.token_ids) for sample in samples]
        distinct = len({s.token_ids[:i] for s in samples for i in range(len(s.token_ids))})
        extra = {"distinct_prefixes": distinct, "mean_tokens": float(np.mean(tokens))}
        return {"seconds": time.perf_counter() - start} | extra
    torch.manual_seed(SEED)
    rows = plain.generate_samples(
        model,
        prompt_ids,
        batches * BATCH,
        batch=BATCH,
        stop_ids=stop_ids,
        pad_id=setting.end_id,
        max_new_tokens=MAX_NEW_TOKENS,
    )
    seconds = time.perf_counter() - start
    ends = [next((i for i, t in enumerate(row) if t in stop_ids), len(row) - 1) for row in rows]
    return {
        "seconds": seconds * SAMPLES / len(rows),
        "samples_measured": len(rows),
        "mean_tokens": float(np.mean(ends)) + 1,
    }


def sample_poisson(setting: Setting, side: str, batches: int) -> dict:
    return sample(setting, side, POISSON, batches)


def sample_gaussian(setting: Setting, side: str, batches: int) -> dict:
    return sample(setting, side, GAUSSIAN, batches)


def sample_text(setting: Setting, side: str) -> dict:
    """100 answers of free text, at most 150 tokens, of the untuned model; seconds."""
    model = setting.base()
    stop_ids = chat.stop_ids(setting.tokenizer, model.generation_config, {})
    prompt_ids = setting.prompt_ids("Write a short story about a lighthouse.")
    start = time.perf_counter()
    common = {"stop_ids": stop_ids, "max_new_tokens": 150}
    if side == "ours":
        sample_completions(model, setting.tokenizer, prompt_ids, BATCH, seed=SEED, **common)
    else:
        torch.manual_seed(SEED)
        plain.generate_samples(
            model, prompt_ids, BATCH, batch=BATCH, pad_id=setting.end_id, **common
        )
    return {"seconds": time.perf_counter() - start}


def prepare_prompts(setting: Setting, side: str) -> dict:
    """A trie, one drawn value and its targets for every training prompt; seconds."""
    records = setting.records("train")
    rng = np.random.default_rng(SEED)
    setting.encode("0")
    start = time.perf_counter()
    for record in records:
        distribution = Distribution(record["family"], record["params"])
        if side == "ours":
            trie = build_trie(distribution, DECIMALS, "full", setting.encode, setting.end_id)
            path_targets(trie, trie.sample_paths(rng, 1))
        else:
            space = distribution.output_space(DECIMALS, 1001)
            nested = plain.build_trie(*space, setting.encode, setting.end_id)
            text = space.texts[rng.choice(len(space.texts), p=space.probabilities)]
            plain.soft_targets(nested, (*setting.encode(text), setting.end_id))
    return {"seconds": time.perf_counter() - start, "prompts": len(records)}


def exact_kl(setting: Setting, side: str, every: int) -> dict:
    """KL of the 42 selected prompts at two decimals; seconds.

    Ours evaluates every text of the 1,001-point grid; the plain way 64 random paths, each a
    sequence of its own. `full_resolution_seconds`: ours for all texts with two decimals, 400
    prefixes exactly and 64 paths for the rest.
    """
    model = setting.tuned()
    records = setting.records("unseen_selected") + setting.records("heldout_selected")
    records = records if side == "ours" else records[::every]
    seconds = {"seconds": 0.0, "full_resolution_seconds": 0.0}
    exact = 0
    for number, record in enumerate(records):
        distribution = Distribution(record["family"], record["params"])
        prompt_ids = setting.prompt_ids(record["prompt"])
        trie = build_trie(distribution, KL_DECIMALS, KL_BINS, setting.encode, setting.end_id)
        start = time.perf_counter()
        if side == "ours":
            found = divergence(
                model, prompt_ids, trie, exact_prefixes=10**6, sampled_paths=2, seed=0
            )
            seconds["seconds"] += time.perf_counter() - start
            exact += found.paths is None
            start = time.perf_counter()
            full = build_trie(distribution, KL_DECIMALS, "full", setting.encode, setting.end_id)
            divergence(model, prompt_ids, full, exact_prefixes=400, sampled_paths=KL_PATHS, seed=0)
            seconds["full_resolution_seconds"] += time.perf_counter() - start
        else:
            paths = trie.sample_paths(np.random.default_rng(number), KL_PATHS)
            nested = {}
            for path in paths:
                for depth in range(len(path)):
                    tokens, q = trie.next_tokens(path[:depth])
                    nested[path[:depth]] = dict(zip(tokens.tolist(), q, strict=True))
            targets = [plain.soft_targets(nested, path) for path in paths]
            start = time.perf_counter()
            with torch.inference_mode():
                sequences = [prompt_ids] * KL_PATHS
                plain.batch_loss(model, sequences, paths, targets, setting.end_id).item()
            seconds["seconds"] += time.perf_counter() - start
    if side == "ours":
        return seconds | {"prompts": len(records), "exact": exact}
    scale = 42 / len(records)
    return {"seconds": seconds["seconds"] * scale, "prompts_measured": len(records)}


def make_adapter(setting: Setting, side: str) -> dict:
    """An adapter that answers the two sampling prompts as a well-trained one would.

    Trained on those two prompts only: what is measured with it is speed, and how long an
    untrained model's answers are would decide about that.
    """
    model = checkpoints.attach_new_adapter(setting.base(), LORA, SEED).train()
    use_bit_dropout(model)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=2e-3)
    tries = [
        build_trie(d, DECIMALS, "full", setting.encode, setting.end_id) for d in (POISSON, GAUSSIAN)
    ]
    for step in range(40):
        rng = np.random.default_rng([SEED, step])
        examples = []
        for distribution, trie in zip((POISSON, GAUSSIAN), tries, strict=True):
            paths = trie.sample_paths(rng, VALUES)
            targets = OBJECTIVES["soft_target"](trie, paths)
            prompt_ids = setting.prompt_ids(distribution.prompt)
            examples.append(training.Example(prompt_ids, paths, targets))
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1, (step + 1) / 4, (40 - step) / 20)
        loss = training.packed_batch_loss(model, training.collate(examples))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    checkpoints.save_adapter(model, setting.adapter, "performance suite")
    return {"loss": loss.item()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("side", choices=["ours", "plain"])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--prompts-directory", type=Path, required=True)
    parser.add_argument("--adapter", type=Path, required=True)
    parser.add_argument("--options", type=json.loads, default={})
    arguments = parser.parse_args()
    if arguments.side == "ours":
        allocator.keep_freed_memory()
    result = globals()[arguments.name](Setting(arguments), arguments.side, **arguments.options)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(result | {"peak_memory_bytes": peak}), file=sys.stdout)


if __name__ == "__main__":
    main()
