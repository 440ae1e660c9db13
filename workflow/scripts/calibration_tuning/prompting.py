"""Methods without training: a system prompt that makes a model sample better, and its answer.

String Seed of Thought (arXiv 2510.21150; Paper A, prompting baseline): the model writes a random
string, derives its choice from it step by step, and answers between tags. Verbalized sampling
(arXiv 2510.01171): it writes several answers with their probabilities, of which one is drawn. The
wording is ours.
"""

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from calibration_tuning import chat

_SEED_STRING = """\
<random_string> Write a string of about 30 characters, letters, digits and signs, as random as you \
can. Do not think about the request yet. </random_string>
"""

_STRING_SEED_NUMBER = f"""\
You draw random numbers. Work in three parts, each between its tags.
{_SEED_STRING}\
<thinking> Turn the string into a number u between 0 and 1, for example by adding up the values of \
its characters and taking the remainder modulo 1000, divided by 1000. Then find the value of the \
requested distribution below which it has probability u. </thinking>
<answer> That value, as a plain number and nothing else. </answer>"""

_STRING_SEED_OPEN = f"""\
You make random choices. Work in three parts, each between its tags.
{_SEED_STRING}\
<thinking> List different answers to the request. Turn the string into a number, for example by \
adding up the values of its characters, and take the remainder modulo the length of your list: the \
answer at that place is chosen. </thinking>
<answer> The chosen answer, as it was asked for and nothing else. </answer>"""

_VERBALIZED = """\
Write five different answers to the request and, for each, the probability that it is the one you \
would give, all of them together being all that you might answer{what}. Use exactly this form for \
each and write nothing else:
<response><text>one answer{form}</text><probability>a number from 0 to 1</probability></response>
After the fifth write </responses>"""

SYSTEM_PROMPTS = {
    "string_seed": {"number": _STRING_SEED_NUMBER, "open": _STRING_SEED_OPEN},
    "verbalized": {
        "number": _VERBALIZED.format(
            what=": draw them from the distribution that is asked for", form=", a plain number"
        ),
        "open": _VERBALIZED.format(what="", form=", as it was asked for"),
    },
}
"""By the name that a method's `prompting` has, and by what is asked for."""

STOP_STRINGS = {"string_seed": ("</answer>",), "verbalized": ("</responses>",)}
"""Nothing after them counts, so a sample ends there."""

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_RESPONSE = re.compile(
    r"<text>((?:(?!</?text>).)*)</text>\s*<probability>\s*([0-9]*\.?[0-9]+)\s*(%?)\s*</probability>",
    re.DOTALL,
)


def encode_prompt(tokenizer, text: str, settings: Mapping, kind: str) -> list[int]:
    """Token ids of a prompt, after the system prompt of a method that has one.

    A model with a channel for its reasoning (gpt-oss) reasons there: its generation prefix, which
    would open the final channel at once, is left out.

    Parameters
    ----------
    tokenizer : transformers tokenizer
    text : what the user says
    settings : an evaluation's settings: chat and, for such a method, prompting
    kind : "number" or "open", what is asked for
    """
    if "prompting" not in settings:
        return chat.encode_prompt(tokenizer, text, settings["chat"])
    chat_settings = dict(settings["chat"])
    if "final_channel" in chat_settings:
        chat_settings.pop("generation_prefix", None)
    system = SYSTEM_PROMPTS[settings["prompting"]][kind]
    return chat.encode_prompt(tokenizer, text, chat_settings, system=system)


def stop_strings(settings: Mapping) -> tuple[str, ...]:
    """Strings that end a sample; none where reasoning in its own channel may mention them."""
    if "prompting" not in settings or "final_channel" in settings["chat"]:
        return ()
    return STOP_STRINGS[settings["prompting"]]


def answers(samples: Sequence, tokenizer, settings: Mapping, rng: np.random.Generator) -> list:
    """For each sample [answer, token ids, whether it finished], as evaluations keep them."""
    return [
        [answer(sample, tokenizer, settings, rng), list(sample.token_ids), sample.finished]
        for sample in samples
    ]


def answer(sample, tokenizer, settings: Mapping, rng: np.random.Generator) -> str:
    """The answer in a sample: all of its text, or what a method with a system prompt asks for.

    Parameters
    ----------
    sample : with `token_ids` and `text`
    tokenizer : transformers tokenizer
    settings : as for `encode_prompt`
    rng : draws one of several verbalized answers

    Returns
    -------
    str
        Empty where the sample has no answer in the form that was asked for.
    """
    if "prompting" not in settings:
        return sample.text
    text, whole = sample.text, False
    if "final_channel" in settings["chat"]:
        _, opened, final = tokenizer.decode(sample.token_ids).rpartition(
            settings["chat"]["final_channel"]
        )
        ids = tokenizer.encode(final, add_special_tokens=False)
        text, whole = tokenizer.decode(ids, skip_special_tokens=True), bool(opened)
        if not opened:
            return ""
    if settings["prompting"] == "verbalized":
        return draw_response(text, rng)
    found = extract_answer(text)
    # In a channel of its own the answer needs no tags.
    return text.strip() if whole and not found and "<answer>" not in text else found


def extract_answer(text: str) -> str:
    """The text between the last pair of answer tags, stripped; empty where there is none.

    >>> extract_answer("<thinking>u = 0.5</thinking> <answer> 3.5 </answer>")
    '3.5'
    """
    answers = _ANSWER.findall(text)
    return answers[-1].strip() if answers else ""


def parse_responses(text: str) -> list[tuple[str, float]]:
    """Verbalized answers with their probabilities as written; broken ones are left out.

    >>> parse_responses("<text>7</text><probability>25%</probability>")
    [('7', 0.25)]
    """
    found = [
        (answer.strip(), float(number) / (100 if percent else 1))
        for answer, number, percent in _RESPONSE.findall(text)
    ]
    return [(answer, probability) for answer, probability in found if math.isfinite(probability)]


def draw_response(text: str, rng: np.random.Generator) -> str:
    """One verbalized answer, drawn by its share of the probability; empty where there is none."""
    responses = parse_responses(text)
    weights = np.array([probability for _, probability in responses])
    if weights.sum() <= 0:
        return ""
    return responses[rng.choice(len(responses), p=weights / weights.sum())][0]
