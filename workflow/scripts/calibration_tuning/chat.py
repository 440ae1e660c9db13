"""A model's chat format: the prompt's ids, the tokens that end a turn, canonical texts' tokens.

A registry entry may have a `chat` block with
    template_kwargs     passed to the chat template (enable_thinking: false, reasoning_effort: low)
    generation_prefix   text appended to the generation prompt, such as gpt-oss's final channel
    template            for base models without a chat template: plain text around {prompt}
"""

from collections.abc import Callable
from functools import lru_cache

from calibration_tuning.errors import InputError

_SENTINEL = "4.25"


def encode_prompt(tokenizer, text: str, settings: dict) -> list[int]:
    """Token ids of a single user turn, up to where the answer starts.

    The chat template gives the ids itself: rendering it to text and tokenizing that adds a second
    beginning-of-sequence token for Gemma and Llama.

    Parameters
    ----------
    tokenizer : transformers tokenizer
    text : str
        What the user says.
    settings : dict
        The registry's `chat` block.

    Raises
    ------
    InputError
        If the tokenizer has no chat template and the settings no template.
    """
    if "template" in settings:
        ids = tokenizer.encode(settings["template"].replace("{prompt}", text))
    else:
        ids = _render(tokenizer, [{"role": "user", "content": text}], settings, True)
    prefix = settings.get("generation_prefix", "")
    return ids + tokenizer.encode(prefix, add_special_tokens=False)


def _render(tokenizer, messages: list[dict], settings: dict, generation: bool) -> list[int]:
    if tokenizer.chat_template is None:
        raise InputError(
            f"{tokenizer.name_or_path}: the tokenizer has no chat template; expected a "
            "chat.template with {prompt} in the model's registry entry"
        )
    rendered = tokenizer.apply_chat_template(
        messages,
        add_generation_prompt=generation,
        tokenize=True,
        return_dict=True,
        **settings.get("template_kwargs", {}),
    )
    return list(rendered["input_ids"])


def end_of_turn_id(tokenizer, settings: dict) -> int:
    """The token that ends an answer, derived from the chat template.

    It is the first special token after the answer of a rendered conversation (Gemma's
    <end_of_turn>, Llama-3's <|eot_id|>, gpt-oss's <|return|>), which need not be the eos token.
    Models without a chat template end with their eos token.

    Raises
    ------
    InputError
        If there is none.
    """
    if "template" in settings:
        if tokenizer.eos_token_id is None:
            raise InputError(
                f"{tokenizer.name_or_path}: no end-of-turn token: the tokenizer has no eos_token"
            )
        return tokenizer.eos_token_id
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _SENTINEL}]
    ids = _render(tokenizer, turns, settings, False)
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    special |= set(tokenizer.all_special_ids)
    answer_end = _end_of(ids, tokenizer.encode(_SENTINEL, add_special_tokens=False))
    for token in ids[answer_end:]:
        if token in special:
            return token
    raise InputError(
        f"{tokenizer.name_or_path}: no end-of-turn token: the chat template puts no special token "
        "after an answer"
    )


def _end_of(ids: list[int], part: list[int]) -> int:
    """Where the last occurrence of part in ids ends; 0 if there is none."""
    for start in range(len(ids) - len(part), -1, -1):
        if ids[start : start + len(part)] == part:
            return start + len(part)
    return 0


def stop_ids(tokenizer, generation_config, settings: dict) -> frozenset[int]:
    """Every token that ends an answer when sampling: the end of a turn and all eos tokens."""
    eos = generation_config.eos_token_id if generation_config is not None else None
    listed = eos if isinstance(eos, list) else [eos]
    return frozenset({end_of_turn_id(tokenizer, settings), *(i for i in listed if i is not None)})


@lru_cache(maxsize=8)
def completion_encoder(tokenizer) -> Callable[[str], list[int]]:
    """A function from a canonical text to its token ids, as they follow the generation prompt.

    Prompts share most of their texts, so the ids are remembered.
    """

    @lru_cache(maxsize=1 << 18)
    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    return encode
