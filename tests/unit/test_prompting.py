"""Methods without training: the system prompt, the answer between tags, what is measured of it."""

from argparse import Namespace
from collections import Counter

import numpy as np
import pytest

import sample_structured
from calibration_tuning import chat, prompting
from calibration_tuning.evaluations import (
    samples,
    structured,
    structured_sampling,
    text_sampling,
)
from calibration_tuning.evaluations.cell import Cell
from calibration_tuning.families import Distribution
from calibration_tuning.sampling import Sample
from calibration_tuning.trie import build_trie
from tiny_models import ARCHITECTURES, build_model, build_tokenizer

PROMPT = Distribution("gaussian", {"mu": 0.0, "sigma": 1.0})
RECORD = {"family": PROMPT.family, "params": PROMPT.params, "prompt": PROMPT.prompt}
SETTINGS = {
    "samples": 3,
    "max_new_tokens": 5,
    "max_rows": 8,
    "decimals": 1,
    "chat": {},
    "prompting": "string_seed",
}


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<random_string>ab</random_string><answer> -3.25 </answer>", "-3.25"),
        ("<answer>1</answer> no, <answer>2</answer>", "2"),
        ("<answer>\n4\n</answer> and more", "4"),
        ("<thinking>an <answer> is asked for</thinking>", ""),
        ("<answer>3", ""),  # cut before its end
        ("7", ""),
        ("", ""),
    ],
)
def test_the_last_whole_answer_counts(text, answer):
    assert prompting.extract_answer(text) == answer


RESPONSES = """<response><text>one</text><probability>0.5</probability></response>
<response><text> two </text> <probability> 25% </probability></response>
<response><text>broken</text><probability>many</probability></response>
<response><text>three</text><probability>.25</probability></response>
</responses>"""


def test_verbalized_answers_are_drawn_by_their_probability():
    assert prompting.parse_responses(RESPONSES) == [("one", 0.5), ("two", 0.25), ("three", 0.25)]
    rng = np.random.default_rng(0)
    drawn = Counter(prompting.draw_response(RESPONSES, rng) for _ in range(4000))
    assert set(drawn) == {"one", "two", "three"}
    assert drawn["one"] == pytest.approx(2000, abs=120)  # four standard deviations
    assert drawn["two"] == pytest.approx(1000, abs=110)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "seven",
        "<text>a</text>",
        "<text>a</text><probability>0</probability>",
        "<text>a</text><probability>-1</probability>",
    ],
)
def test_no_probability_is_no_answer(text):
    assert prompting.draw_response(text, np.random.default_rng(0)) == ""


CHANNELS = {"generation_prefix": "<eos>final<start>", "final_channel": "<eos>final<start>"}


def test_a_model_with_channels_reasons_in_its_own_and_answers_in_the_final_one():
    """The tiny tokenizer's special tokens stand for gpt-oss's channel markers."""
    tokenizer = build_tokenizer("gptoss")
    settings = {"chat": CHANNELS, "prompting": "string_seed"}
    plain = tokenizer.decode(prompting.encode_prompt(tokenizer, "x", {"chat": CHANNELS}, "open"))
    asked = tokenizer.decode(prompting.encode_prompt(tokenizer, "x", settings, "open"))
    assert plain.endswith("<eos>final<start>")
    assert asked.endswith("<start>assistant\n")  # the final channel is not opened for it
    assert prompting.stop_strings(settings) == ()
    rng = np.random.default_rng(0)

    def answer(text):
        ids = tuple(tokenizer.encode(text, add_special_tokens=False))
        sample = Sample(ids, tokenizer.decode(ids, skip_special_tokens=True), True)
        return prompting.answer(sample, tokenizer, settings, rng)

    reasoning = "I will put 3 into <answer>3</answer>"
    assert answer(f"{reasoning}<eos>final<start><answer>4</answer><end>") == "4"
    assert answer(f"{reasoning}<eos>final<start>5<end>") == "5"  # tags are not needed there
    assert answer(f"{reasoning}<eos>final<start><answer>6") == ""  # cut
    assert answer(reasoning) == ""  # never came to an answer
    settings["prompting"] = "verbalized"
    assert answer(f"x<eos>final<start>{RESPONSES}") in {"one", "two", "three"}


@pytest.mark.parametrize("prompting_name", prompting.SYSTEM_PROMPTS)
def test_system_prompts_ask_for_numbers_and_for_choices_in_a_form_that_is_read(prompting_name):
    prompts = prompting.SYSTEM_PROMPTS[prompting_name]
    assert set(prompts) == {"number", "open"}
    assert prompts["number"] != prompts["open"]
    for prompt in prompts.values():
        assert any(stop in prompt for stop in prompting.STOP_STRINGS[prompting_name])
        assert "{" not in prompt


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_system_prompt_comes_before_the_user(architecture):
    tokenizer = build_tokenizer(architecture)
    ids = chat.encode_prompt(tokenizer, "draw", {}, system="be random")
    text = tokenizer.decode(ids)
    assert text == "<bos><start>system\nbe random<end>\n<start>user\ndraw<end>\n<start>assistant\n"
    plain = chat.encode_prompt(tokenizer, "draw", {"template": "{prompt}\n"}, system="be random")
    assert tokenizer.decode(plain) == "be random\n\ndraw\n"


def test_every_prompting_of_the_schema_has_a_system_prompt():
    from calibration_tuning.planning import load_yaml
    from repository import ROOT

    schema = load_yaml(ROOT / "workflow/schemas/config.schema.yaml")
    known = schema["properties"]["methods"]["additionalProperties"]["properties"]["prompting"]
    assert set(known["enum"]) == set(prompting.SYSTEM_PROMPTS)


def test_a_prompted_cell_has_samples_and_no_divergence(tmp_path, monkeypatch):
    """Answers are scored as any other samples; a divergence of answers is not known."""
    cell = Cell(build_model("llama"), build_tokenizer("llama"), frozenset({3}), "cpu")
    seen = {}

    def sampled(model, tokenizer, prompts, n, **options):
        seen.update(options, prompt=tokenizer.decode(prompts[0]))
        texts = ["<answer>0.5</answer>", "<answer>none</answer>", "0.5"]
        return [[Sample((9, 3), text, True) for text in texts[:n]] for _ in prompts]

    monkeypatch.setattr(text_sampling, "sample_prompts", sampled)
    arguments = Namespace(settings=SETTINGS, seed=1, label="x")
    selected = [(0, "unseen", 0, RECORD)]
    parts = sample_structured.sample_prompted(arguments, cell, selected, tmp_path)
    asked = seen["prompt"].split("<start>user")[0]
    assert prompting.SYSTEM_PROMPTS["string_seed"]["number"] in asked
    assert seen["stop_strings"] == ("</answer>",)
    assert [sample[0] for sample in parts[0]["samples"]] == ["0.5", "none", ""]
    paths = tmp_path / "samples.parquet", tmp_path / "divergences.jsonl"
    structured_sampling.write_cell([("unseen", 0, RECORD, parts[0])], *paths)
    values = structured.score_cell(
        samples.read_samples(paths[0], "sample_structured", samples.SCHEMA.names),
        structured.read_divergences(paths[1]),
        {"unseen": [RECORD]},
        decimals=1,
        max_bins=101,
        seed=0,
    )
    metrics = values["splits"]["unseen"]["metrics"]
    assert metrics["valid_rate"]["mean"] == pytest.approx(1 / 3)
    assert metrics["sequence_kl"] == {"mean": None, "low": None, "high": None, "n": 0}
    assert metrics["tokens_per_answer"]["mean"] == 2


def test_a_prompted_sample_of_a_real_model(tmp_path):
    cell = Cell(build_model("qwen3"), build_tokenizer("qwen3"), frozenset({3}), "cpu")
    part = text_sampling.sample_part(cell, [RECORD["prompt"]], 3, SETTINGS, [1], "number")
    assert len(part["answers"][0]) == 3
    assert all(text == "" and 1 <= len(ids) <= 5 for text, ids, _ in part["answers"][0])


def test_a_hotter_cell_has_the_divergence_of_its_temperature_and_min_p_none():
    model, tokenizer = build_model("qwen3"), build_tokenizer("qwen3")
    settings = {
        "samples": 4, "max_new_tokens": 5, "max_rows": 8, "decimals": 1, "chat": {},
        "divergence_max_bins": 21, "exact_prefixes": 500, "sampled_paths": 4,
    }  # fmt: skip

    def sequence_kl(**decoding):
        part = structured_sampling.evaluate_prompt(
            model, tokenizer, RECORD, settings | {"decoding": decoding}, frozenset({3}), [1]
        )
        return part["divergence"]["sequence_kl"]

    plain, hot = sequence_kl(temperature=1.0), sequence_kl(temperature=1e6)
    assert plain != pytest.approx(hot, rel=1e-3)
    # Hot without limit, every token is as likely as any other.
    trie = build_trie(PROMPT, 1, 21, lambda text: tokenizer.encode(text), 3)
    log_q = np.log(trie.probabilities)
    tokens = np.array([len(sequence) for sequence in trie.sequences])
    uniform = trie.probabilities @ (log_q + tokens * np.log(model.config.vocab_size))
    assert hot == pytest.approx(uniform, rel=1e-3)
    assert sequence_kl(min_p=0.1) is None
