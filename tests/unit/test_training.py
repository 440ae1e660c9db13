"""Training: order of prompts, budgets, determinism and resuming."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tiny_training
from calibration_tuning import chat, checkpoints, files, training
from calibration_tuning.errors import InputError
from tiny_models import build_model, build_tokenizer

RECORDS = tiny_training.training_prompts()
SETTINGS = tiny_training.SETTINGS | {"epochs": 0.02, "checkpoint_steps": 3}
LORA = {"rank": 4, "alpha": 8, "dropout": 0.05}


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=40), st.integers(0, 99))
def test_every_round_takes_one_prompt_of_each_family_that_has_any_left(families, seed):
    order = training.family_balanced_order(families, np.random.default_rng(seed))
    assert sorted(order) == list(range(len(families)))
    left = Counter(families)
    position = 0
    while left:
        chunk = [families[i] for i in order[position : position + len(left)]]
        assert sorted(chunk) == sorted(left)
        position += len(left)
        left = Counter({family: n - 1 for family, n in left.items() if n > 1})


def test_plans_are_whole_steps_and_differ_by_seed():
    families = [record["family"] for record in RECORDS]
    paper_soft = {"epochs": 3, "values_per_prompt": 1, "packing": 1, "batch": 32}
    plan = training.plan_visits(families, paper_soft, seed=11)
    assert len(plan) == 3 * 1988 // 32 * 32
    assert set(Counter(plan.tolist()).values()) <= {2, 3}
    paper_hard = {"epochs": 2, "values_per_prompt": 16, "packing": 4, "batch": 32}
    plan = training.plan_visits(families, paper_hard, seed=11)
    assert len(plan) == 2 * 1988 * 4 // 8 * 8
    assert (plan != training.plan_visits(families, paper_hard, seed=12)).any()
    assert (plan == training.plan_visits(families, paper_hard, seed=11)).all()
    with pytest.raises(InputError, match="less than one step"):
        training.plan_visits(families, paper_hard | {"epochs": 1e-6}, seed=11)


def run(
    folder: Path,
    stop_after: int | None = None,
    micro_batch: int = 2,
    lora: dict = LORA,
    **changes,
) -> tuple[str, list[dict]]:
    """Train a tiny model; the hash of its adapter and its history."""
    settings = SETTINGS | changes
    tokenizer = build_tokenizer("qwen3")
    visits = training.plan_visits([r["family"] for r in RECORDS], settings, seed=11)
    dataset = training.VisitDataset(
        RECORDS,
        visits,
        settings,
        encode_prompt=lambda text: chat.encode_prompt(tokenizer, text, {}),
        encode=chat.completion_encoder(tokenizer),
        end_id=chat.end_of_turn_id(tokenizer, {}),
        seed=11,
    )
    if stop_after is not None:

        class Killed(training.VisitDataset):
            def __getitem__(self, index):
                if index >= stop_after:
                    raise KeyboardInterrupt
                return super().__getitem__(index)

        dataset.__class__ = Killed
    model = checkpoints.attach_new_adapter(build_model("qwen3"), lora, 11)
    history = training.train(model, dataset, settings, micro_batch, 11, folder / "work", "test")
    checkpoints.save_adapter(model, folder / "adapter", "0" * 40)
    return files.sha256(folder / "adapter" / "adapter_model.safetensors"), history


def losses(history):
    return [(entry["step"], entry["loss"]) for entry in history]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return run(tmp_path_factory.mktemp("whole"))


def test_the_loss_falls_and_the_history_has_a_line_a_step(uninterrupted):
    _, history = uninterrupted
    steps = len(training.plan_visits([r["family"] for r in RECORDS], SETTINGS, 11)) // 4
    assert [entry["step"] for entry in history] == list(range(1, steps + 1))
    assert history[-1]["loss"] < history[0]["loss"]
    assert all(entry["seconds"] >= 0 for entry in history)


def test_the_same_seed_gives_the_same_adapter(tmp_path, uninterrupted):
    again, history = run(tmp_path)
    assert again == uninterrupted[0]
    assert losses(history) == losses(uninterrupted[1])


def test_data_made_in_worker_processes_gives_the_same_adapter(tmp_path, uninterrupted, monkeypatch):
    """On a GPU the values are drawn and packed in other processes."""
    monkeypatch.setattr(training, "DATA_WORKERS", 2)
    assert run(tmp_path)[0] == uninterrupted[0]


@pytest.mark.parametrize("objective", ["soft_target", "hard_target"])
def test_targets_at_full_resolution(tmp_path, objective):
    _, history = run(tmp_path, objective=objective, max_bins="full", decimals=5)
    assert history[-1]["loss"] < history[0]["loss"]


def test_a_run_that_was_cut_gives_the_same_adapter(tmp_path, uninterrupted):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, stop_after=18)
    found = training.last_whole_checkpoint(tmp_path / "work")
    assert found is not None
    # A checkpoint that a kill left half written is not resumed from.
    half = tmp_path / "work" / "checkpoint-999"
    half.mkdir()
    (half / "trainer_state.json").write_text('{"global')
    resumed, history = run(tmp_path)
    assert resumed == uninterrupted[0]
    assert losses(history) == losses(uninterrupted[1])
    assert not half.exists()


def test_the_micro_batch_changes_nothing_but_rounding(tmp_path):
    """A step is a mean over its prompts, however they are split into forward passes."""
    lora = LORA | {"dropout": 0.0}
    _, whole = run(tmp_path / "4", micro_batch=4, lora=lora)
    _, single = run(tmp_path / "1", micro_batch=1, lora=lora)
    for one, other in zip(whole, single, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)


def test_a_step_has_the_same_number_of_values_at_any_packing(tmp_path):
    _, history = run(tmp_path, packing=1, objective="hard_target")
    assert len(history) == round(0.02 * 2 * 1988) // 8


def test_a_loss_that_is_not_finite_is_one_clear_line(tmp_path):
    with pytest.raises(InputError, match="not finite"):
        run(tmp_path, learning_rate=1e30, warmup=0.0)


def test_collated_batches_are_plain_tensors_without_labels():
    """A key named labels would switch the Trainer's own scaling of the loss."""
    tokenizer = build_tokenizer("llama")
    dataset = training.VisitDataset(
        RECORDS,
        np.arange(4),
        SETTINGS,
        lambda text: chat.encode_prompt(tokenizer, text, {}),
        chat.completion_encoder(tokenizer),
        chat.end_of_turn_id(tokenizer, {}),
        seed=0,
    )
    batch = training.collate([dataset[0], dataset[1]])
    assert "labels" not in batch
    assert all(isinstance(value, torch.Tensor) for value in batch.values())
