"""LoRA training on sampling prompts with transformers' Trainer (Paper A, sections on training).

All randomness derives from (seed, pass) for the order of prompts and (seed, visit) for the values
drawn and the answer replayed, never from a global generator, so a run that was killed and resumed
sees the same data.
"""

import json
import math
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset
from tqdm import tqdm
from transformers import Trainer, TrainerCallback, TrainingArguments

from calibration_tuning import devices
from calibration_tuning.errors import InputError
from calibration_tuning.families import Distribution
from calibration_tuning.lora_dropout import use_bit_dropout
from calibration_tuning.objectives import (
    OBJECTIVES,
    Example,
    Replayed,
    pack_examples,
    replay_kl,
)
from calibration_tuning.packing import packed_logits
from calibration_tuning.token_objectives import weighted_loss
from calibration_tuning.trie import build_trie

MAX_GRADIENT_NORM = 1.0
DATA_WORKERS = 2 if torch.cuda.is_available() else 0
"""Processes that draw values, look up targets and pack while the accelerator computes. A CPU has
no core to spare: the milliseconds of a step's data are less than what a second process costs."""

ORDER_STREAM, VALUE_STREAM, DROPOUT_STREAM, REPLAY_STREAM = 0, 1, 2, 3
"""Keys that keep the random streams of one seed apart."""


def family_balanced_order(families: Sequence[str], rng: np.random.Generator) -> list[int]:
    """One pass over all prompts: each round takes one prompt of every family that has any left.

    Parameters
    ----------
    families : the family of each prompt
    rng : shuffles the prompts of a family and the families of a round

    Returns
    -------
    list of prompt indices, each once (Paper A, training details)
    """
    queues = defaultdict(list)
    for index in rng.permutation(len(families)):
        queues[families[index]].append(int(index))
    order = []
    while queues:
        for family in rng.permutation(sorted(queues)):
            order.append(queues[family].pop())
            if not queues[family]:
                del queues[family]
    return order


def plan_visits(families: Sequence[str], settings: dict, seed: int) -> np.ndarray:
    """The prompt of every visit of a training run, in order.

    An epoch draws `values_per_prompt` values for each prompt, `packing` of them at a visit. The
    plan is cut to whole optimizer steps of `batch` values.

    Returns
    -------
    int64 array (steps * batch / packing,)

    Raises
    ------
    InputError
        If the budget holds no whole step.
    """
    passes_per_epoch = settings["values_per_prompt"] // settings["packing"]
    prompts_per_step = settings["batch"] // settings["packing"]
    visits = round(settings["epochs"] * passes_per_epoch * len(families))
    steps = visits // prompts_per_step
    if steps == 0:
        raise InputError(
            f"epochs {settings['epochs']} of {len(families)} prompts make {visits} visits, less "
            f"than one step of {prompts_per_step} prompts; expected more epochs or a smaller batch"
        )
    order: list[int] = []
    while len(order) < steps * prompts_per_step:
        rng = np.random.default_rng([seed, ORDER_STREAM, len(order)])
        order += family_balanced_order(families, rng)
    return np.array(order[: steps * prompts_per_step])


class VisitDataset(Dataset):
    """The visits of a run: item i draws values for the prompt of visit i and looks up targets.

    Parameters
    ----------
    prompts : prompt records with family and params
    visits : int64 array, prompt index of each visit
    settings : method settings: objective, decimals, max_bins, packing
    encode_prompt : prompt text -> token ids with the chat format
    encode, end_id : see `PrefixTrie`
    seed : int
    replay : answers of the untuned model, of which every visit replays one; none without
    """

    def __init__(
        self,
        prompts: Sequence[dict],
        visits: np.ndarray,
        settings: dict,
        encode_prompt: Callable[[str], list[int]],
        encode: Callable[[str], list[int]],
        end_id: int,
        seed: int,
        replay: Sequence[Replayed] = (),
    ):
        self.replay = replay
        self.prompts, self.visits, self.settings, self.seed = prompts, visits, settings, seed
        self.encode_prompt, self.encode, self.end_id = encode_prompt, encode, end_id
        self.targets = OBJECTIVES[settings["objective"]]

    def __len__(self) -> int:
        return len(self.visits)

    def __getitem__(self, index: int) -> Example:
        prompt = self.prompts[self.visits[index]]
        trie = build_trie(
            Distribution(prompt["family"], prompt["params"]),
            self.settings["decimals"],
            self.settings["max_bins"],
            self.encode,
            self.end_id,
        )
        rng = np.random.default_rng([self.seed, VALUE_STREAM, index])
        paths = trie.sample_paths(rng, self.settings["packing"])
        targets = self.targets(trie, paths)
        return Example(self.encode_prompt(prompt["prompt"]), paths, targets, self._replayed(index))

    def _replayed(self, index: int) -> Replayed | None:
        if not self.replay:
            return None
        rng = np.random.default_rng([self.seed, REPLAY_STREAM, index])
        return self.replay[rng.integers(len(self.replay))]


def collate(examples: Sequence[Example]) -> dict[str, torch.Tensor]:
    """Pack a micro-batch of visits into one token tree, as tensors."""
    batch = pack_examples(examples)
    return {name: torch.from_numpy(array) for name, array in batch._asdict().items()}


def packed_batch_loss(
    model: torch.nn.Module,
    batch: dict[str, torch.Tensor],
    replay_coefficient: float = 0.0,
    untuned_logits: torch.Tensor | None = None,
    weighting: str | None = None,
) -> torch.Tensor:
    """Loss of a collated micro-batch, nats per token.

    Parameters
    ----------
    model : causal language model, tuned
    batch : see `collate`
    replay_coefficient : float
        Of the penalty for leaving the untuned model, where the batch replays answers.
    untuned_logits : tensor (replayed, vocabulary) or None
        See `untuned_replay_logits`.
    weighting : str or None
        Of the tokens, see `token_objectives.weighted_loss`.
    """
    tree = [batch[name] for name in ("token_ids", "positions", "subtree_end")]
    if untuned_logits is None:
        return weighted_loss(packed_logits(model, *tree, batch["rows"]), batch, weighting)
    rows, replay_rows = batch["rows"], batch["replay_rows"]
    logits = packed_logits(model, *tree, torch.cat([rows, replay_rows]))
    asked, replayed = logits.split([len(rows), len(replay_rows)])
    penalty = replay_kl(replayed, untuned_logits, batch["replay_weight"])
    return weighted_loss(asked, batch, weighting) + replay_coefficient * penalty


@torch.no_grad()
def untuned_replay_logits(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Next-token logits along a batch's replayed answers, of the model without its adapter.

    It runs on the part of the token tree that is replayed.

    Parameters
    ----------
    model : PEFT model
    batch : see `collate`

    Returns
    -------
    tensor (replayed, vocabulary)
    """
    kept = batch["replay_nodes"]
    with model.disable_adapter():
        return packed_logits(
            model,
            batch["token_ids"][kept],
            batch["positions"][kept],
            torch.searchsorted(kept, batch["subtree_end"][kept]),
            torch.searchsorted(kept, batch["replay_rows"]),
        )


class CalibrationTrainer(Trainer):
    """The Trainer with the packed loss; a micro-batch's loss is a mean over its prompts."""

    loss_is_scaled_for_ga = False
    replay_coefficient = 0.0
    weighting: str | None = None

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Loss of one packed micro-batch, nats per token."""
        if not hasattr(model, "config"):  # with several processes it comes wrapped
            model.config = self.model.config
        untuned = None
        if self.replay_coefficient:
            # First, since it switches the adapter off and on again.
            untuned = untuned_replay_logits(self.accelerator.unwrap_model(model), inputs)
        loss = packed_batch_loss(model, inputs, self.replay_coefficient, untuned, self.weighting)
        return (loss, {}) if return_outputs else loss

    def _save_rng_state(self, output_dir):
        # Every process writes a file of its own; the one that makes a checkpoint whole comes after
        # all of them.
        super()._save_rng_state(output_dir)
        devices.wait_for_all()


class Progress(TrainerCallback):
    """A bar with loss and time left; after a resume it counts from the step it resumed at."""

    def __init__(self, label: str):
        self.label = label

    def on_train_begin(self, args, state, control, **kwargs):
        self.last = time.perf_counter()
        self.bar = tqdm(
            total=state.max_steps,
            initial=state.global_step,
            desc=self.label,
            unit="step",
            mininterval=1 if sys.stderr.isatty() else 15,
            file=sys.stderr,
        )

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            now = time.perf_counter()
            # In the state, so that it survives a resume with the rest of the history.
            state.log_history[-1]["seconds"] = round(now - self.last, 4)
            self.last = now
            self.bar.set_postfix_str(f"loss {logs['loss']:.3f} nats/token", refresh=False)

    def on_step_end(self, args, state, control, **kwargs):
        self.bar.update(1)

    def on_train_end(self, args, state, control, **kwargs):
        self.bar.close()


def last_whole_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that was written to its end, or None.

    The Trainer writes `trainer_state.json` last; a kill can leave a folder without it or with
    half of it, which is removed here so that it is never resumed from.
    """
    found = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    for checkpoint in reversed(found):
        try:
            json.loads((checkpoint / "trainer_state.json").read_text())
        except (OSError, ValueError):
            shutil.rmtree(checkpoint)
        else:
            return checkpoint
    return None


def split_step(settings: dict, processes: int) -> int:
    """Prompts of a step that each process takes, so that all together take the method's batch.

    Raises
    ------
    InputError
        If the processes cannot share a step's prompts equally: means would be other means.
    """
    prompts_per_step = settings["batch"] // settings["packing"]
    if prompts_per_step % processes:
        raise InputError(
            f"batch {settings['batch']} with packing {settings['packing']} makes "
            f"{prompts_per_step} prompts a step, which {processes} processes cannot share equally; "
            f"expected a batch that is a multiple of {settings['packing'] * processes}, or another "
            f"number of GPUs"
        )
    return prompts_per_step // processes


def training_arguments(
    settings: dict, steps: int, micro_batch: int, seed: int, work: Path
) -> TrainingArguments:
    """The Trainer's arguments for a method (Paper A: AdamW, cosine, warm-up)."""
    prompts = split_step(settings, devices.process_count())
    micro_batch = math.gcd(micro_batch, prompts)
    return TrainingArguments(
        output_dir=str(work),
        max_steps=steps,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=prompts // micro_batch,
        learning_rate=settings["learning_rate"],
        weight_decay=settings["weight_decay"],
        lr_scheduler_type="cosine",
        warmup_steps=math.ceil(settings["warmup"] * steps),
        max_grad_norm=MAX_GRADIENT_NORM,
        optim="adamw_torch",
        train_sampling_strategy="sequential",
        seed=seed,
        # float32 weights are computed with in float32 on a CPU, in bfloat16 autocast on a GPU.
        bf16=settings["dtype"] == "bfloat16" or torch.cuda.is_available(),
        use_cpu=not torch.cuda.is_available(),
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_steps=settings["checkpoint_steps"],
        save_total_limit=2,
        remove_unused_columns=False,
        dataloader_num_workers=DATA_WORKERS,
        dataloader_pin_memory=torch.cuda.is_available(),
        ddp_find_unused_parameters=False,
        disable_tqdm=True,
        report_to=[],
    )


def train(
    model: torch.nn.Module,
    dataset: VisitDataset,
    settings: dict,
    micro_batch: int,
    seed: int,
    work: Path,
    label: str,
) -> list[dict]:
    """Train the adapter of a PEFT model in place, resuming from `work` where a run was cut.

    Several processes that have joined (`devices.join`) share each step's prompts: the same batch,
    losses and adapter as one process, to rounding without dropout. Cut and resumed, the same
    number of processes gives the same bytes.

    Parameters
    ----------
    model : PEFT model with a fresh adapter
    dataset : VisitDataset
    settings : method settings (batch, packing, learning_rate, weight_decay, warmup,
        checkpoint_steps; replay_coefficient where the data set replays answers; token_weights where
        there are), the dtype of the base and, for several processes, parallelism (data without it)
    micro_batch : int
        Prompts in one forward pass; lowered to a divisor of the prompts of a step.
    seed : int
    work : Path
        Holds the checkpoints; belongs to exactly this model, data and settings.
    label : str
        What the progress bar calls the run.

    Returns
    -------
    list of dict
        One a step: step, epoch (share of the run), loss (nats per token), learning_rate,
        grad_norm, seconds.

    Raises
    ------
    InputError
        If the loss is not finite, the processes cannot share a step, or the base is not sharded
        and should be.
    """
    steps = len(dataset) // (settings["batch"] // settings["packing"])
    sharded = devices.is_sharded(settings)
    if sharded:
        devices.check_sharded(model)
    if not torch.cuda.is_available():
        use_bit_dropout(model)
    arguments = training_arguments(settings, steps, micro_batch, seed, work)
    # The Trainer refuses to save an optimizer of sharded weights. Ours has the adapter's only.
    arguments.save_only_model = sharded
    trainer = CalibrationTrainer(
        model=model, args=arguments, data_collator=collate, train_dataset=dataset
    )
    arguments.save_only_model = False
    trainer.replay_coefficient = settings.get("replay_coefficient", 0.0)
    trainer.weighting = settings.get("token_weights")
    for callback in list(trainer.callback_handler.callbacks):
        if type(callback).__name__ == "PrinterCallback":
            trainer.remove_callback(callback)
    if devices.rank() == 0:
        trainer.add_callback(Progress(label))
    else:
        # The Trainer gave all processes the same seed; each drops elements of its own out.
        rng = np.random.default_rng([seed, DROPOUT_STREAM, devices.rank()])
        torch.manual_seed(int(rng.integers(2**63)))
    checkpoint = devices.found_by_first(lambda: last_whole_checkpoint(work))
    if checkpoint is not None and devices.rank() == 0:
        print(f"resuming from {checkpoint}", file=sys.stderr)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    history = [entry for entry in trainer.state.log_history if "loss" in entry]
    bad = [entry["step"] for entry in history if not math.isfinite(entry["loss"])]
    if bad:
        raise InputError(
            f"{label}: the loss is not finite at step {bad[0]}; expected a smaller learning_rate"
        )
    return history
