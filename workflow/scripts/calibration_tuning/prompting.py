"""Methods without training: a system prompt that makes a model sample better, and its answer.

String Seed of Thought (arXiv 2510.21150; Paper A, prompting baseline): the model writes a random
string, derives its choice from it step by step, and answers between tags. The wording is ours.
"""

import re

_STRING_SEED_NUMBER = """\
You draw random numbers. Work in three parts, each between its tags.
<random_string> Write a string of about 30 characters, letters, digits and signs, as random as you \
can. Do not think about the request yet. </random_string>
<thinking> Turn the string into a number u between 0 and 1, for example by adding up the values of \
its characters and taking the remainder modulo 1000, divided by 1000. Then find the value of the \
requested distribution below which it has probability u. </thinking>
<answer> That value, as a plain number and nothing else. </answer>"""

SYSTEM_PROMPTS = {"string_seed": _STRING_SEED_NUMBER}
"""By the name that a method's `prompting` has."""

STOP_STRING = "</answer>"
"""Nothing after it counts, so a sample ends there."""

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def extract_answer(text: str) -> str:
    """The text between the last pair of answer tags, stripped; empty where there is none.

    >>> extract_answer("<thinking>u = 0.5</thinking> <answer> 3.5 </answer>")
    '3.5'
    """
    answers = _ANSWER.findall(text)
    return answers[-1].strip() if answers else ""
