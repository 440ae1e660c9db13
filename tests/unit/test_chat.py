"""Chat formats: prompt ids, the end of a turn, and canonical texts that follow a prompt."""

import pytest
from transformers import GenerationConfig

from calibration_tuning import chat
from calibration_tuning.errors import InputError
from tiny_models import ARCHITECTURES, build_tokenizer

PROMPT = "Pick one number from a Poisson distribution with lambda=4."
TEXTS = ["0", "7", "1234", "-0.25", "12.34567"]


@pytest.fixture(params=ARCHITECTURES)
def tokenizer(request):
    return build_tokenizer(request.param)


def test_prompt_has_one_beginning_token_and_opens_the_answer(tokenizer):
    ids = chat.encode_prompt(tokenizer, PROMPT, {})
    assert ids.count(tokenizer.bos_token_id) == 1
    assert tokenizer.decode(ids) == f"<bos><start>user\n{PROMPT}<end>\n<start>assistant\n"
    assert all(type(i) is int for i in ids)


def test_template_arguments_reach_the_template(tokenizer):
    tokenizer.chat_template += "{% if not enable_thinking|default(true) %}off{% endif %}"
    settings = {"template_kwargs": {"enable_thinking": False}}
    assert tokenizer.decode(chat.encode_prompt(tokenizer, PROMPT, settings)).endswith("\noff")
    assert tokenizer.decode(chat.encode_prompt(tokenizer, PROMPT, {})).endswith("assistant\n")


@pytest.mark.parametrize("start", ["", "\n", "  {% if true %}\n{% endif %}", "{#- a note #}\n"])
def test_only_the_clock_of_a_template_is_changed(tokenizer, start):
    """What makes the date a fixed one stands before the template, and must add and take nothing."""
    tokenizer.chat_template = start + tokenizer.chat_template
    turns = [{"role": "user", "content": PROMPT}]
    plain = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
    assert chat.encode_prompt(tokenizer, PROMPT, {}) == plain
    tokenizer.chat_template += (
        "{% macro date() %}{{ strftime_now('%Y-%m-%d') if strftime_now is defined }}{% endmacro %}"
        "{{ date() + ', ' + strftime_now('%d %b %Y') }}"
    )
    text = tokenizer.decode(chat.encode_prompt(tokenizer, PROMPT, {}))
    assert text == tokenizer.decode(plain) + "2025-01-01, 01 Jan 2025"


def test_generation_prefix_is_appended_with_its_special_tokens(tokenizer):
    ids = chat.encode_prompt(tokenizer, PROMPT, {"generation_prefix": "<start>final"})
    plain = chat.encode_prompt(tokenizer, PROMPT, {})
    assert ids[: len(plain)] == plain
    assert ids[len(plain)] == tokenizer.convert_tokens_to_ids("<start>")


def test_plain_template_of_a_base_model(tokenizer):
    ids = chat.encode_prompt(tokenizer, PROMPT, {"template": "{prompt}\n"})
    assert tokenizer.decode(ids) == PROMPT + "\n"
    assert chat.end_of_turn_id(tokenizer, {"template": "{prompt}\n"}) == tokenizer.eos_token_id


def test_end_of_turn_comes_from_the_template_and_is_not_the_eos_token(tokenizer):
    end = chat.end_of_turn_id(tokenizer, {})
    assert tokenizer.convert_ids_to_tokens(end) == "<end>"
    assert end != tokenizer.eos_token_id


def test_last_answer_may_end_with_a_token_of_its_own(tokenizer):
    """gpt-oss ends the last answer of a conversation otherwise than the earlier ones."""
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<start>' + m.role + ' is 4.25<end>' + m.content }}"
        "{{ '<eos>' if loop.last else '<end>' }}{% endfor %}"
    )
    assert chat.end_of_turn_id(tokenizer, {}) == tokenizer.eos_token_id


@pytest.mark.parametrize(
    ("template", "eos", "settings", "message"),
    [
        ("{% for m in messages %}{{ m.content }}\n{% endfor %}", "<eos>", {}, "no special token"),
        (None, "<eos>", {}, "no chat template"),
        (None, None, {"template": "{prompt}"}, "no eos_token"),
    ],
)
def test_without_an_end_of_turn_the_tokenizer_is_named(template, eos, settings, message):
    tokenizer = build_tokenizer("llama")
    tokenizer.name_or_path = "resources/models/mine"
    tokenizer.chat_template = template
    tokenizer.eos_token = eos
    with pytest.raises(InputError, match=f"resources/models/mine.*{message}"):
        chat.end_of_turn_id(tokenizer, settings)


@pytest.mark.parametrize("eos", [4, [4, 9], None])
def test_stop_ids_hold_the_end_of_turn_and_every_eos(tokenizer, eos):
    stop = chat.stop_ids(tokenizer, GenerationConfig(eos_token_id=eos), {})
    listed = set(eos) if isinstance(eos, list) else {eos} - {None}
    assert stop == {tokenizer.convert_tokens_to_ids("<end>")} | listed


def test_completion_ids_are_those_of_the_text_after_the_prompt(tokenizer):
    encode = chat.completion_encoder(tokenizer)
    prompt = chat.encode_prompt(tokenizer, PROMPT, {})
    for text in TEXTS:
        whole = tokenizer.encode(tokenizer.decode(prompt) + text, add_special_tokens=False)
        assert whole == prompt + encode(text)
        assert tokenizer.decode(encode(text)) == text
