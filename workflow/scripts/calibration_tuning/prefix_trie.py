"""Next-token targets from a list of texts with probabilities (Paper A, prefix trie)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from calibration_tuning.packing import pad


class Branches(NamedTuple):
    """The children of a list of prefixes, one entry a child, by prefix and token.

    Attributes
    ----------
    row : int64 array (children,)
        Number of the prefix in the list.
    token : int64 array (children,)
    mass : float64 array (children,)
        Probability of the texts through the child, up to one constant for the whole trie.
    mass_over_length : float64 array (children,)
        The same with every text's probability divided by its number of tokens.
    """

    row: np.ndarray
    token: np.ndarray
    mass: np.ndarray
    mass_over_length: np.ndarray


class PrefixTrie:
    """The trie over the tokens of every text followed by the end-of-turn token.

    At a prefix the target of a token is the mass through that child over the mass through the
    prefix. The sequences are kept as a sorted matrix, in which a prefix is a run of rows, and
    targets are computed when they are asked for.

    Parameters
    ----------
    texts : sequence of str
    probabilities : float (texts,)
        Not negative; texts of probability 0 are left out.
    encode : callable
        Text to token ids, without special tokens.
    end_id : int
        The token that ends a turn.

    Attributes
    ----------
    sequences : list of tuple of int
        The token sequence of every text, end token included, sorted.
    probabilities : float64 array (sequences,)
        Sums to 1.

    Raises
    ------
    ValueError
        If lengths differ, no probability is positive or one is negative or not finite, a text
        encodes to nothing or holds the end token, or two texts encode alike.
    """

    def __init__(
        self,
        texts: Sequence[str],
        probabilities: Sequence[float],
        encode: Callable[[str], list[int]],
        end_id: int,
    ):
        weights = np.asarray(probabilities, dtype=np.float64)
        if weights.shape != (len(texts),):
            raise ValueError(f"{len(texts)} texts, but probabilities of shape {weights.shape}")
        if not np.isfinite(weights).all() or (weights < 0).any() or weights.sum() == 0:
            raise ValueError("probabilities must be finite, not negative, and not all zero")
        self.end_id = end_id
        encoded = []
        for text, weight in zip(texts, weights, strict=True):
            if weight > 0:
                tokens = encode(text)
                if len(tokens) == 0 or end_id in tokens:
                    raise ValueError(f"text {text!r} is empty in tokens or holds the end token")
                encoded.append((*tokens, end_id))
        weights = weights[weights > 0]
        matrix = pad(encoded)
        order = np.lexsort(matrix.T[::-1])
        self._matrix = matrix[order]
        if (self._matrix[1:] == self._matrix[:-1]).all(axis=1).any():
            raise ValueError("two texts have the same tokens")
        self.sequences: list[tuple[int, ...]] = [encoded[index] for index in order]
        kept = np.flatnonzero(np.asarray(probabilities) > 0)[order]
        self._texts = {path: texts[i] for path, i in zip(self.sequences, kept, strict=True)}
        self.probabilities: np.ndarray = weights[order] / weights.sum()
        self._over_length = self.probabilities / (self._matrix >= 0).sum(axis=1)
        self._cumulative = np.cumsum(self.probabilities)

    def branches(self, prefixes: Sequence[tuple[int, ...]]) -> Branches:
        """The children of prefixes.

        Raises
        ------
        KeyError
            If no text continues a prefix.
        """
        parts = [self._children(prefix) for prefix in prefixes]
        row = np.repeat(np.arange(len(parts)), [len(part[0]) for part in parts])
        return Branches(row, *(np.concatenate([part[i] for part in parts]) for i in range(3)))

    def _children(self, prefix: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rows = self._rows(tuple(prefix))
        column = self._matrix[rows, len(prefix)]
        starts = np.flatnonzero(np.concatenate([[True], column[1:] != column[:-1]]))
        mass = np.add.reduceat(self.probabilities[rows], starts)
        return column[starts], mass, np.add.reduceat(self._over_length[rows], starts)

    def next_tokens(self, prefix: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """The target distribution of the token after a prefix.

        Returns
        -------
        token_ids : int64 array (k,), rising
        probabilities : float64 array (k,), sums to 1

        Raises
        ------
        KeyError
            If no text continues the prefix.
        """
        tokens, mass, _ = self._children(prefix)
        return tokens, mass / mass.sum()

    def _rows(self, prefix: tuple[int, ...]) -> slice:
        """The run of sorted sequences that continue a prefix."""
        low, high = 0, len(self._matrix)
        for depth, token in enumerate(prefix):
            if depth + 1 >= self._matrix.shape[1]:
                raise KeyError(prefix)
            column = self._matrix[low:high, depth]
            low, high = low + np.searchsorted(column, [token, token + 1])
        # A complete sequence is a run too, but only padding follows it.
        if low == high or self._matrix[low, len(prefix)] < 0:
            raise KeyError(prefix)
        return slice(low, high)

    def text(self, path: tuple[int, ...]) -> str:
        """The text of a token sequence, end token included; KeyError if it is none of them."""
        return self._texts[path]

    def sample(self, rng: np.random.Generator) -> tuple[int, ...]:
        """Draw a text from the target; its tokens, ending in the end token."""
        return self.sample_paths(rng, 1)[0]

    def sample_paths(self, rng: np.random.Generator, n: int) -> list[tuple[int, ...]]:
        """Draw n texts."""
        uniform = rng.random(n) * self._cumulative[-1]
        indices = np.searchsorted(self._cumulative, uniform, side="right")
        return [self.sequences[i] for i in np.minimum(indices, len(self.sequences) - 1)]
