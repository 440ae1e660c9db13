"""The penalty for leaving the untuned model: its value, its gradient, and training with it."""

import json
import sys

import numpy as np
import pytest
import torch

import sample_replay
import train_adapter
from calibration_tuning import checkpoints, errors, files, replay, training
from calibration_tuning.errors import InputError
from calibration_tuning.evaluations.samples import write_samples
from calibration_tuning.objectives import Example, Replayed, path_targets
from calibration_tuning.trie import PrefixTrie
from tiny_models import ARCHITECTURES, build_model, save_tiny
from tiny_training import SETTINGS, training_prompts

LORA = {"rank": 4, "alpha": 8, "dropout": 0.0}
PROMPT = [30, 31, 32, 33]
ANSWERS = [Replayed([30, 31, 40], [50, 51, 52, 3]), Replayed([30, 31, 32], [60, 61])]


def examples(replayed=ANSWERS):
    trie = PrefixTrie(["1", "12"], [0.25, 0.75], lambda text: [ord(c) for c in text], 3)
    paths = [trie.sample(np.random.default_rng(0)) for _ in range(3)]
    targets = path_targets(trie, paths)
    return [Example([*PROMPT, i], paths, targets, r) for i, r in enumerate(replayed)]


def tuned_model(architecture="llama"):
    model = checkpoints.attach_new_adapter(build_model(architecture), LORA, 11)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.2)
    return model.eval()


def plain_penalty(model, answers):
    """One answer at a time, each in a sequence of its own; a mean over answers, of tokens."""
    means = []
    for prompt, answer in answers:
        ids = torch.tensor([[*prompt, *answer[:-1]]])
        with torch.no_grad(), model.disable_adapter():
            q = torch.softmax(model(ids).logits[0, len(prompt) - 1 :], dim=-1)
        log_p = torch.log_softmax(model(ids).logits[0, len(prompt) - 1 :], dim=-1)
        means.append((q * (q.log() - log_p)).sum(dim=-1).mean())
    return torch.stack(means).mean()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_packed_penalty_and_its_gradient_equal_the_plain_ones(architecture):
    model = tuned_model(architecture)
    batch = training.collate(examples())
    untuned = training.untuned_replay_logits(model, batch)
    assert not untuned.requires_grad
    adapter = [p for n, p in model.named_parameters() if "lora" in n]
    assert all(p.requires_grad for p in adapter)  # switching it off left it trainable
    without = training.packed_batch_loss(model, training.collate(examples([None, None])))
    ours = training.packed_batch_loss(model, batch, 0.7, untuned)
    plain = without + 0.7 * plain_penalty(model, ANSWERS)
    assert ours.item() == pytest.approx(plain.item(), rel=1e-5)
    assert plain_penalty(model, ANSWERS) > 0.01
    gradients = torch.autograd.grad(ours, adapter)
    plain_gradients = torch.autograd.grad(plain, adapter)
    largest = max(g.abs().max().item() for g in plain_gradients)
    for mine, theirs in zip(gradients, plain_gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=2e-6 * max(1.0, largest))


def test_the_penalty_is_zero_where_the_adapter_does_nothing():
    model = checkpoints.attach_new_adapter(build_model("qwen3"), LORA, 11).eval()
    batch = training.collate(examples())
    untuned = training.untuned_replay_logits(model, batch)
    with_penalty = training.packed_batch_loss(model, batch, 100.0, untuned)
    without = training.packed_batch_loss(model, training.collate(examples([None, None])))
    assert with_penalty.item() == pytest.approx(without.item(), rel=1e-5)


def test_an_answer_that_is_drawn_twice_weighs_twice():
    batch = training.collate(examples([ANSWERS[0], ANSWERS[0]]))
    assert len(batch["replay_rows"]) == 2 * len(ANSWERS[0].answer_ids)
    assert batch["replay_weight"].sum().item() == pytest.approx(1)
    assert len(batch["replay_nodes"]) == len(PROMPT) - 1 + len(ANSWERS[0].answer_ids) - 1


def test_without_replay_a_batch_is_as_it_was():
    batch = training.collate(examples([None, None]))
    assert all(len(batch[name]) == 0 for name in batch if name.startswith("replay"))


def test_which_answer_a_visit_replays_depends_on_seed_and_visit_only():
    records = training_prompts()[:3]
    many = [Replayed([5], [number]) for number in range(50)]

    def drawn(seed):
        options = (lambda text: [7], lambda text: [ord(c) for c in text], 3)
        visits = np.array([0, 1, 2, 0, 1, 2])
        dataset = training.VisitDataset(records, visits, SETTINGS, *options, seed, many)
        return [dataset[i].replay for i in (5, 0, 3, 5)]

    first = drawn(1)
    assert first[0] == first[3]
    assert first == drawn(1) != drawn(2)
    assert first[1] != first[2]  # the same prompt at another visit


def run(monkeypatch, program, *arguments):
    monkeypatch.setattr(sys, "argv", [program.__name__, *map(str, arguments)])
    errors.run(program.main)


def test_a_model_is_trained_on_its_own_answers(monkeypatch, tmp_path):
    base = save_tiny("qwen3", tmp_path / "source")
    model = tmp_path / "model" / "manifest.json"
    settings = {"source": f"path:{base}"}
    checkpoints.fetch("tiny", settings, model.parent, tmp_path / "downloads")
    instructions = tmp_path / "instructions.jsonl"
    files.write_atomic(instructions, '{"prompt": "Say hi."}\n{"prompt": "What is 1 and 1?"}\n')
    prompts = tmp_path / "train.jsonl"
    files.write_atomic(prompts, files.to_jsonl(training_prompts()[:40]))
    loading = {"dtype": "float32", "chat": {}}
    sampling = {"samples": 2, "max_new_tokens": 5, "max_rows": 8} | loading
    common = ("--model", model, "--seed", 11, "--threads", 1)
    run(monkeypatch, sample_replay, *common, "--prompts", instructions, "--settings",
        json.dumps(sampling), "--output-directory", tmp_path / "replay")  # fmt: skip
    method = SETTINGS | loading | {"epochs": 0.5, "checkpoint_steps": 50, "lora": LORA}
    hashes = {}
    for name, extra in {"plain": {}, "kept": {"replay_coefficient": 5.0}}.items():
        answers = (tmp_path / "replay" / "samples.parquet", instructions) if extra else ()
        run(monkeypatch, train_adapter, *common, "--prompts", prompts, "--replay", *answers,
            "--settings", json.dumps(method | extra | {"micro_batch": 2}),
            "--output-directory", tmp_path / name)  # fmt: skip
        hashes[name] = files.sha256(tmp_path / name / "adapter" / "adapter_model.safetensors")
    assert hashes["plain"] != hashes["kept"]

    def distance(name):
        """KL from the untuned model along its answers."""
        loaded = checkpoints.load_model(model.parent, "float32", "cpu", None)
        tuned = checkpoints.load_adapter(loaded, tmp_path / name / "adapter", merge=False)
        encoded = [{"prompt": "Say hi."}, {"prompt": "What is 1 and 1?"}]
        path = tmp_path / "replay" / "samples.parquet"
        answers = replay.read_replay(path, encoded, lambda text: [ord(c) - 26 for c in text])
        with torch.no_grad():
            return plain_penalty(tuned, answers).item()

    assert distance("kept") < 0.7 * distance("plain")


def test_answers_of_other_instructions_are_refused(tmp_path):
    path = tmp_path / "samples.parquet"
    write_samples(path, [("replay", 0, [["", [], False]]), ("replay", 1, [["a", [5, 3], True]])])
    found = replay.read_replay(path, [{"prompt": "a"}, {"prompt": "b"}], lambda text: [len(text)])
    assert found == [Replayed([1], [5, 3])]
    with pytest.raises(InputError, match="answers to more instructions than there are"):
        replay.read_replay(path, [{"prompt": "a"}], lambda text: [1])
    write_samples(path, [("replay", 0, [["", [], False]])])
    with pytest.raises(InputError, match="no answer has a token"):
        replay.read_replay(path, [{"prompt": "a"}], lambda text: [1])
