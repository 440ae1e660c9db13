"""The comparison of ways to train: clock, schedule, and the same loss both ways."""

from itertools import count
from types import SimpleNamespace

import pytest
import torch
from test_training import LORA, RECORDS

from calibration_tuning import chat, checkpoints, training, training_speed
from calibration_tuning.families import Distribution
from tiny_models import build_model, build_tokenizer

PACKED = {
    "objective": "soft_target",
    "packed": True,
    "decimals": 1,
    "max_bins": "full",
    "packing": 2,
    "batch": 4,
    "learning_rate": 1e-2,
    "weight_decay": 0.0,
}
PLAIN = PACKED | {"packed": False, "packing": 1, "max_bins": 51}


def heldout():
    records = [("bernoulli", {"p": 0.3}), ("maxwell", {"scale": 1.0})]
    return [{"family": f, "params": p, "prompt": Distribution(f, p).prompt} for f, p in records]


@pytest.mark.parametrize("way", [PACKED, PLAIN])
def test_a_way_is_measured_at_every_stop(way, monkeypatch):
    ticks = count(step=0.1)  # every step takes a tenth of a second, however slow the machine is
    clock = SimpleNamespace(perf_counter=lambda: next(ticks))
    monkeypatch.setattr(training_speed, "time", clock)
    model = checkpoints.attach_new_adapter(build_model("llama"), LORA, seed=1)
    settings = {
        "way": way, "seconds": 1.0, "checkpoints": 2, "decimals": 1, "samples": 8,
        "exact_prefixes": 30, "sampled_paths": 4, "chat": {},
    }  # fmt: skip
    told = []
    lines = training_speed.run_way(
        model, build_tokenizer("llama"), {"train": RECORDS, "heldout": heldout()}, settings, 3,
        told.append,
    )  # fmt: skip
    assert all(line["seconds"] >= share for line, share in zip(lines, (0.5, 1.0), strict=True))
    assert len(told) == 2
    assert lines[1]["steps"] > lines[0]["steps"] > 0
    assert all(line["values"] == 4 * line["steps"] for line in lines)
    assert lines[1]["sequence_kl"] < lines[0]["sequence_kl"]
    assert 0 <= lines[1]["valid_rate"] <= 1
    assert "valid_rate" not in lines[0]


def test_both_ways_have_the_same_loss_for_the_same_values():
    model = build_model("llama")
    tokenizer = build_tokenizer("llama")
    settings = PACKED | {"packing": 1}
    visits = training.plan_visits(
        [r["family"] for r in RECORDS], settings | {"epochs": 1, "values_per_prompt": 1}, 5
    )
    dataset = training.VisitDataset(
        RECORDS, visits, settings,
        encode_prompt=lambda text: chat.encode_prompt(tokenizer, text, {}),
        encode=chat.completion_encoder(tokenizer),
        end_id=chat.end_of_turn_id(tokenizer, {}),
        seed=5,
    )  # fmt: skip
    examples = [dataset[i] for i in range(4)]
    with torch.no_grad():
        ours = training_speed.packed_step(model, examples).item()
        plain = training_speed.plain_step(model, examples).item()
    assert ours == pytest.approx(plain, rel=1e-5)


def test_the_learning_rate_rises_and_falls_to_nothing():
    rates = [training_speed.learning_rate(2.0, share / 100) for share in range(101)]
    assert rates[0] == 0
    assert max(rates) == pytest.approx(2.0, rel=0.01)
    assert rates[-1] == pytest.approx(0)
    assert rates[5:] == sorted(rates[5:], reverse=True)
