"""A model's chat format: the prompt's ids, the tokens that end a turn, canonical texts' tokens.

A registry entry may have a `chat` block with
    template_kwargs     passed to the chat template (enable_thinking: false, reasoning_effort: low)
    generation_prefix   text appended to the generation prompt, such as gpt-oss's final channel
    template            for base models without a chat template: plain text around {prompt}
"""

from collections.abc import Callable
from functools import lru_cache

from calibration_tuning.errors import InputError

STOPPED_CLOCK = (
    "{%- macro strftime_now(format) -%}"
    "{%- if format == '%d %b %Y' -%}01 Jan 2025{%- else -%}2025-01-01{%- endif -%}"
    "{%- endmacro %}\n"
)
"""Before a template that tells the model today's date (Llama-3.2, gpt-oss), it makes that date a
fixed one: a prompt must not change from one day to the next. The template starts on a line of its
own, where it is read as without this."""

_ANSWER = "4.25"
"""Stands for an answer when a conversation is rendered to see what follows answers."""


def encode_prompt(tokenizer, text: str, settings: dict, system: str | None = None) -> list[int]:
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
    system : str or None
        A system message before it. A plain template has no place for one, so there it comes first
        in the text.

    Raises
    ------
    InputError
        If the tokenizer has no chat template and the settings no template.
    """
    if "template" in settings:
        text = text if system is None else f"{system}\n\n{text}"
        ids = tokenizer.encode(settings["template"].replace("{prompt}", text))
    else:
        turns = [] if system is None else [{"role": "system", "content": system}]
        turns.append({"role": "user", "content": text})
        ids = list(_render(tokenizer, turns, settings, add_generation_prompt=True, tokenize=True))
    prefix = settings.get("generation_prefix", "")
    return ids + tokenizer.encode(prefix, add_special_tokens=False)


def render_conversation(
    tokenizer, turns: list[dict], settings: dict, add_generation_prompt: bool
) -> str:
    """A conversation as text, up to where its next answer starts or its last one goes on.

    Parameters
    ----------
    tokenizer : transformers tokenizer
    turns : list of dict
        role and content of each.
    settings : dict
        The registry's `chat` block.
    add_generation_prompt : bool
        Whether an answer follows; else the last turn is one that is begun.

    Raises
    ------
    InputError
        If the tokenizer has no chat template and the settings no template.
    """
    if "template" in settings:
        begun = [] if add_generation_prompt else [turns[-1]["content"]]
        asked = turns if add_generation_prompt else turns[:-1]
        text = "\n\n".join(turn["content"] for turn in asked)
        return settings["template"].replace("{prompt}", text) + "".join(begun)
    options = {"add_generation_prompt": add_generation_prompt, "tokenize": False}
    text = _render(
        tokenizer, turns, settings, continue_final_message=not add_generation_prompt, **options
    )
    return text + settings.get("generation_prefix", "") * add_generation_prompt


def _render(tokenizer, turns: list[dict], settings: dict, **options) -> list[int] | str:
    """Apply the chat template: token ids, or text without `tokenize`."""
    if tokenizer.chat_template is None:
        raise InputError(
            f"{tokenizer.name_or_path}: the tokenizer has no chat template; expected a "
            "chat.template with {prompt} in the model's registry entry"
        )
    options |= {"return_dict": False} | settings.get("template_kwargs", {})
    template = STOPPED_CLOCK + tokenizer.get_chat_template()
    return tokenizer.apply_chat_template(turns, chat_template=template, **options)


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
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _ANSWER}]
    text = _render(tokenizer, turns, settings, add_generation_prompt=False, tokenize=False)
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    special |= set(tokenizer.all_special_ids)
    # Positions in the text, not tokens: an answer's tokens may depend on what stands before it.
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    answer_end = text.rfind(_ANSWER) + len(_ANSWER)
    for token, (start, _) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
        if start >= answer_end and token in special:
            return token
    raise InputError(
        f"{tokenizer.name_or_path}: no end-of-turn token: the chat template puts no special token "
        "after an answer"
    )


def stop_ids(tokenizer, generation_config, settings: dict) -> frozenset[int]:
    """Every token that ends an answer when sampling: the end of a turn and all eos tokens."""
    eos = generation_config.eos_token_id if generation_config is not None else None
    listed = eos if isinstance(eos, list) else [eos]
    return frozenset({end_of_turn_id(tokenizer, settings), *(i for i in listed if i is not None)})


@lru_cache(maxsize=8)
def completion_encoder(tokenizer) -> Callable[[str], list[int]]:
    """A function from a canonical text to its token ids, as they follow the generation prompt.

    Tries need it for thousands of texts, of which prompts share most: it calls the tokenizer's
    backend directly, which is several times faster, and remembers the ids.
    """
    backend = tokenizer.backend_tokenizer

    @lru_cache(maxsize=1 << 18)
    def encode(text: str) -> list[int]:
        return backend.encode(text, add_special_tokens=False).ids

    return encode
