"""Training with several processes: two real ones on the CPU, through the launcher."""

import json
import os
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import tiny_training
import train_adapter
from calibration_tuning import chat, checkpoints, devices, files, training
from calibration_tuning.errors import InputError
from tiny_models import (
    ARCHITECTURES,
    IMAGE_TEXT,
    build_image_text_model,
    build_model,
    build_tokenizer,
    save_tiny,
)

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "workflow" / "scripts"
SETTINGS = tiny_training.SETTINGS | {
    "epochs": 0.03,
    "checkpoint_steps": 2,
    "chat": {},
    "micro_batch": 1,
    "lora": {"rank": 4, "alpha": 8, "dropout": 0.05},
}
WITHOUT_DROPOUT = SETTINGS | {"epochs": 0.012, "lora": SETTINGS["lora"] | {"dropout": 0.0}}
ROUNDING = {"rel": 2e-6}
"""Of losses: two processes add the same float32 numbers as one in another order."""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A fetched tiny model and training prompts, as arguments of the program."""
    folder = tmp_path_factory.mktemp("inputs")
    source = save_tiny("qwen3", folder / "source")
    checkpoints.fetch("tiny", {"source": f"path:{source}"}, folder / "tiny", folder / "downloads")
    (folder / "train.jsonl").write_text(files.to_jsonl(tiny_training.training_prompts()))
    model = str(folder / "tiny" / "manifest.json")
    return ["--model", model, "--prompts", str(folder / "train.jsonl")]


def arguments(inputs: list[str], settings: dict, cell: Path) -> list[str]:
    rest = ("--seed", "11", "--threads", "2", "--output-directory", str(cell))
    return [*inputs, "--settings", json.dumps(settings), *rest]


def in_two(*command: object) -> subprocess.Popen:
    """Start a program in two processes."""
    launch = (SCRIPTS / "launch.py", "--gpus", "0", "--processes", "2")
    return subprocess.Popen(
        [sys.executable, *map(str, launch), *map(str, command)],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(SCRIPTS), str(ROOT / "tests")])},
    )


def finish(process: subprocess.Popen) -> str:
    message = process.communicate(timeout=300)[1]
    assert process.returncode == 0, message
    return message


def train_in_two(inputs: list[str], settings: dict, cell: Path) -> subprocess.Popen:
    return in_two(SCRIPTS / "train_adapter.py", *arguments(inputs, settings, cell))


def history(cell: Path) -> list[dict]:
    return [json.loads(line) for line in (cell / "history.jsonl").read_text().splitlines()]


def adapter_hash(cell: Path) -> str:
    return files.sha256(cell / "adapter" / "adapter_model.safetensors")


def test_two_processes_train_the_adapter_of_one(inputs, tmp_path, monkeypatch):
    one, two = tmp_path / "one", tmp_path / "two"
    monkeypatch.setattr(sys, "argv", ["train_adapter.py", *arguments(inputs, WITHOUT_DROPOUT, one)])
    train_adapter.main()
    message = finish(train_in_two(inputs, WITHOUT_DROPOUT, two))
    assert message.count("100%") == 1  # one bar
    assert sorted(path.name for path in two.iterdir()) == ["adapter", "history.jsonl"]
    assert [entry["step"] for entry in history(two)] == [entry["step"] for entry in history(one)]
    for key in ("loss", "grad_norm", "learning_rate"):
        ours = [entry[key] for entry in history(two)]
        assert ours == pytest.approx([entry[key] for entry in history(one)], **ROUNDING)
    weights = [load_file(cell / "adapter" / "adapter_model.safetensors") for cell in (one, two)]
    assert weights[0].keys() == weights[1].keys()
    for name, weight in weights[0].items():
        torch.testing.assert_close(weights[1][name], weight, rtol=0, atol=2e-6)


@pytest.fixture(scope="module")
def uninterrupted(inputs, tmp_path_factory):
    """The adapter of a run in two processes that nothing disturbed, and its number of steps."""
    cell = tmp_path_factory.mktemp("whole")
    finish(train_in_two(inputs, SETTINGS, cell))
    return adapter_hash(cell), len(history(cell))


@pytest.mark.parametrize("parallelism", ["data", "sharded"])
def test_a_killed_run_gives_the_same_adapter(inputs, uninterrupted, tmp_path, parallelism):
    """Also: a sharded run gives the bytes of a data-parallel one."""
    settings = SETTINGS | {"parallelism": parallelism}
    process = train_in_two(inputs, settings, tmp_path)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not list(
        tmp_path.glob("work-*/checkpoint-*/trainer_state.json")
    ):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    process.kill()  # the launcher; the kernel kills the others
    process.communicate()
    assert not (tmp_path / "adapter").exists()
    message = finish(train_in_two(inputs, settings, tmp_path))
    assert message.count("resuming from") == 1
    assert (adapter_hash(tmp_path), len(history(tmp_path))) == uninterrupted


def test_a_step_that_the_processes_cannot_share_equally_is_refused():
    assert training.split_step(SETTINGS, 4) == 1
    with pytest.raises(InputError, match="batch 8 with packing 2 makes 4 prompts a step, which 3"):
        training.split_step(SETTINGS, 3)


def test_a_base_that_is_not_sharded_is_refused():
    model = checkpoints.attach_new_adapter(build_model("llama"), SETTINGS["lora"], 11)
    with pytest.raises(InputError, match="every process holds 21 weights whole"):
        devices.check_sharded(model)


def test_sharded_models_compute_what_whole_ones_do(tmp_path):
    """All architectures, each also in bfloat16 under autocast, as on a GPU."""
    message = finish(in_two(__file__, tmp_path))
    assert message.count("is sharded and equal") == 2 * (len(ARCHITECTURES) + 1)


@cache
def a_batch(architecture: str) -> dict[str, torch.Tensor]:
    tokenizer = build_tokenizer(architecture)
    dataset = training.VisitDataset(
        tiny_training.training_prompts(),
        np.arange(2),
        SETTINGS,
        lambda text: chat.encode_prompt(tokenizer, text, {}),
        chat.completion_encoder(tokenizer),
        chat.end_of_turn_id(tokenizer, {}),
        seed=0,
    )
    return training.collate([dataset[0], dataset[1]])


def loss_and_gradients(model, batch, dtype) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """With an adapter that changes something: a new one's second factor is 0."""
    trained = {n: weight for n, weight in model.named_parameters() if weight.requires_grad}
    generator = torch.Generator().manual_seed(0)
    for weight in trained.values():
        weight.data.normal_(0.0, 0.1, generator=generator)
    with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        loss = training.packed_batch_loss(model, batch)
    loss.backward()
    return loss.detach(), {name: weight.grad for name, weight in trained.items()}


def compare_with_whole(architecture: str, dtype: torch.dtype, folder: Path) -> None:
    """Compare one model, sharded over this process and the other, with the same one whole."""
    image_text = architecture == IMAGE_TEXT
    scope = "language_model" if image_text else None
    batch = a_batch("gemma3" if image_text else architecture)
    results = []
    for sharded in (False, True):
        base = build_image_text_model() if image_text else build_model(architecture)
        base.to(dtype)
        if sharded:
            devices.shard(base, torch.device("cpu"))
        model = checkpoints.attach_new_adapter(base, WITHOUT_DROPOUT["lora"], 11, scope)
        loss, gradients = loss_and_gradients(model, batch, dtype)
        cell = folder / f"{architecture}-{dtype}-{sharded}"
        if devices.rank() == 0:
            checkpoints.save_adapter(model, cell / "adapter", "0" * 40)
        results.append((loss, gradients, cell))
    devices.check_sharded(model)
    frozen = [weight for weight in model.parameters() if not weight.requires_grad]
    here = sum(weight.to_local().numel() for weight in frozen)
    assert here < 0.51 * sum(weight.numel() for weight in frozen)
    (loss, gradients, cell), (sharded_loss, sharded_gradients, sharded_cell) = results
    torch.testing.assert_close(sharded_loss, loss)
    torch.testing.assert_close(sharded_gradients, gradients)
    assert all(gradient.abs().max() > 0 for gradient in gradients.values())
    if devices.rank() == 0:
        assert adapter_hash(sharded_cell) == adapter_hash(cell)
        print(f"{architecture} in {dtype} is sharded and equal", file=sys.stderr)


def main() -> None:
    """What each of the two processes of the last test runs."""
    devices.join()
    torch.set_num_threads(1)
    for architecture in (*ARCHITECTURES, IMAGE_TEXT):
        for dtype in (torch.float32, torch.bfloat16):
            compare_with_whole(architecture, dtype, Path(sys.argv[1]))
    devices.leave()


if __name__ == "__main__":
    main()
