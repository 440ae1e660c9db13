"""How a tokenizer writes numbers: one token a digit, or up to a few digits a token from the left.

Qwen3, Gemma-3 and SmolLM2 have a token for each digit; Llama-3 and gpt-oss group up to three
digits from the left of every run of digits. In both, sign and point are tokens of their own.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

_SAMPLE_DIGITS = "98765432101234567890"
_CHUNKS = {group: re.compile(rf"[-.]|\d{{1,{group}}}") for group in (1, 2, 3)}


class NumberTokens(NamedTuple):
    """The tokens of numbers.

    Attributes
    ----------
    group : int
        Most digits in a token.
    digits : tuple of int64 arrays
        ``digits[length][value]`` is the token of `value` written with `length` digits; entry 0
        is empty.
    token_of, chunk_of : dict
        From the text of every one of these tokens to its id, and back.
    """

    group: int
    digits: tuple[np.ndarray, ...]
    token_of: dict[str, int]
    chunk_of: dict[int, str]

    def encode(self, text: str) -> tuple[int, ...]:
        """Tokens of a plain decimal number."""
        token_of = self.token_of
        return tuple([token_of[chunk] for chunk in _CHUNKS[self.group].findall(text)])


@lru_cache(maxsize=8)
def number_tokens(encode: Callable[[str], list[int]]) -> NumberTokens:
    """Find out how a tokenizer writes numbers.

    Parameters
    ----------
    encode : callable
        Text to token ids, without special tokens.

    Raises
    ------
    ValueError
        If it does so in another way, for which a trie must be built from a list of texts.
    """
    group = next(
        (g for g in (1, 2, 3) if len(encode(_SAMPLE_DIGITS)) == -(-len(_SAMPLE_DIGITS) // g)), 0
    )
    if group == 0:
        raise ValueError("the tokenizer writes digits neither singly nor in groups of two or three")

    def single(chunk: str) -> int:
        ids = encode(chunk)
        if len(ids) != 1:
            raise ValueError(f"the tokenizer has no single token for {chunk!r}")
        return ids[0]

    digits = [np.zeros(0, dtype=np.int64)]
    token_of = {"-": single("-"), ".": single(".")}
    for length in range(1, group + 1):
        chunks = [f"{value:0{length}d}" for value in range(10**length)]
        digits.append(np.array([single(chunk) for chunk in chunks]))
        token_of |= dict(zip(chunks, digits[-1].tolist(), strict=True))
    chunk_of = {token: chunk for chunk, token in token_of.items()}
    if len(chunk_of) != len(token_of):
        raise ValueError("the tokenizer writes two numbers alike")
    tokens = NumberTokens(group, tuple(digits), token_of, chunk_of)
    for text in ("-0.1", "1234567.12345678", "-100020.0", "7", "12", "-123.45", "1000000000"):
        if tuple(encode(text)) != tokens.encode(text):
            raise ValueError(f"the tokenizer does not write {text} piece by piece from the left")
    return tokens
