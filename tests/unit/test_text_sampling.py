"""Sampling answers in words: parts, resuming, decoding, first-token support."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calibration_tuning import prompting
from calibration_tuning.evaluations import open_ended, text_sampling
from calibration_tuning.evaluations.cell import Cell
from tiny_models import ARCHITECTURES, build_model, build_tokenizer

SETTINGS = {"samples": 5, "max_new_tokens": 4, "max_rows": 8, "chat": {}}
TEXTS = ["name a city", "pick one animal", "a job?"]


def tiny_cell(architecture="qwen3"):
    return Cell(build_model(architecture), build_tokenizer(architecture), frozenset({3, 4}), "cpu")


@given(st.integers(1, 40), st.integers(1, 50), st.integers(1, 60))
def test_every_prompt_is_sampled_as_often_as_asked(prompts, samples, max_rows):
    parts = text_sampling.plan_parts(prompts, samples, max_rows)
    totals = np.zeros(prompts, dtype=int)
    for indices, n in parts:
        assert len(indices) * n <= max_rows
        totals[indices] += n
    assert (totals == samples).all()


def test_a_run_that_was_killed_ends_with_the_same_answers(tmp_path):
    cell = tiny_cell()
    whole = text_sampling.sample_answers(cell, TEXTS, SETTINGS, [11], tmp_path / "a", "x")
    assert [len(answers) for answers in whole] == [5, 5, 5]
    parts = sorted((tmp_path / "a").glob("part-*.json"))
    assert len(parts) == 3
    parts[1].unlink()
    again = text_sampling.sample_answers(cell, TEXTS, SETTINGS, [11], tmp_path / "a", "x")
    assert again == json.loads(json.dumps(whole))
    other = text_sampling.sample_answers(cell, TEXTS, SETTINGS, [12], tmp_path / "b", "x")
    assert other != again


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_support_is_that_of_the_prompts_own_forward_pass(architecture):
    cell = tiny_cell(architecture)
    thresholds = open_ended.THRESHOLDS
    found = text_sampling.first_token_support(cell, TEXTS, thresholds, SETTINGS)
    for text, support in zip(TEXTS, found, strict=True):
        assert support == sorted(support)  # non-decreasing in p
        ids = prompting.encode_prompt(cell.tokenizer, text, SETTINGS, "open")
        with torch.inference_mode():
            logits = cell.model(torch.tensor([ids])).logits[0, -1]
        p = torch.softmax(logits.double(), -1).sort(descending=True).values.cumsum(0)
        expected = [int((p < threshold - 1e-7).sum()) + 1 for threshold in thresholds]
        assert support == expected


def test_hotter_support_is_wider_and_min_p_narrower():
    cell = tiny_cell()

    def support(**decoding):
        settings = SETTINGS | {"decoding": decoding}
        return np.array(
            text_sampling.first_token_support(cell, TEXTS, open_ended.THRESHOLDS, settings)
        )

    plain, hot, cut = support(temperature=1.0), support(temperature=2.0), support(min_p=0.3)
    assert (hot >= plain).all()
    assert (hot > plain).any()
    assert (cut <= plain).all()
    assert (cut < plain).any()


def test_the_first_token_after_a_system_prompt_says_nothing():
    settings = SETTINGS | {"prompting": "string_seed"}
    assert text_sampling.first_token_support(tiny_cell(), TEXTS, (0.9,), settings) == [None] * 3


def test_the_method_decides_how_is_drawn(tmp_path):
    """At a temperature near 0 all samples of a prompt are one."""
    settings = SETTINGS | {"decoding": {"temperature": 1e-4}}
    answers = text_sampling.sample_answers(tiny_cell(), TEXTS, settings, [1], tmp_path, "x")
    assert all(len({text for text, _, _ in of_prompt}) == 1 for of_prompt in answers)


@pytest.mark.parametrize(
    ("answers", "lines"),
    [
        ([[["a", [1], True]], [["", [1], False]]], []),
        ([[[" \n", [1], True]]], ["none of 1 answers has more than white space in it"]),
        ([[["a", [1], False]] * 3], ["none of 3 answers ends within 16 tokens"]),
    ],
)
def test_useless_answers_are_said_in_one_line(capsys, answers, lines):
    text_sampling.warn_of_useless_answers(answers, "tiny/base", 16)
    said = capsys.readouterr().out.splitlines()
    assert said == [f"warning: tiny/base: {line}" for line in lines]
