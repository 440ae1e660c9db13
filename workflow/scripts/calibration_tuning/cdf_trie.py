"""Next-token targets of a distribution at full resolution, straight from its CDF."""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from calibration_tuning.families import Distribution
from calibration_tuning.number_tokens import number_tokens
from calibration_tuning.output_space import CellMasses
from calibration_tuning.prefix_trie import Branches


class _Prefix(NamedTuple):
    """A prefix as text: sign, whole digits, decimals (None before the point).

    `closed` says that the run of digits has ended, since its last token could hold more.
    """

    negative: bool
    whole: str
    fraction: str | None
    closed: bool


_START = _Prefix(False, "", None, False)


class CdfTrie:
    """The trie of every text at full resolution, computed from the CDF with nothing enumerated.

    A prefix of a number's text stands for runs of neighbouring values: "-3.1" with two decimals
    for -3.19 to -3.10; "3" for 3.00 to 3.99, 30.00 to 39.99, and so on. The mass of a run is a
    CDF difference, so the target at a prefix costs a few CDF values whatever the number of texts.
    Equal to `PrefixTrie` over the output space with all points.

    Parameters
    ----------
    distribution : calibration_tuning.families.Distribution
    decimals : int
        Not used for integer families.
    encode, end_id : see `PrefixTrie`

    Raises
    ------
    InputError
        If the output space has no text or too many to count.
    ValueError
        If the tokenizer does not write numbers digit by digit or in groups from the left.
    """

    def __init__(
        self,
        distribution: Distribution,
        decimals: int,
        encode: Callable[[str], list[int]],
        end_id: int,
    ):
        self._cells = CellMasses(distribution.functions, distribution.is_integer, decimals)
        self._decimals = 0 if distribution.is_integer else decimals
        self._scale = 10**self._decimals
        self._tokens, self.end_id = number_tokens(encode), end_id
        largest = max(abs(self._cells.first), abs(self._cells.last)) // self._scale
        self._whole_digits = len(str(largest))

    def branches(self, prefixes: Sequence[tuple[int, ...]]) -> Branches:
        """The children of prefixes; see `PrefixTrie.branches`."""
        row, token, low, high, length = self._runs(self._read(prefixes))
        mass = self._cells.mass(low, high)
        # A child may stand for several runs, numbers with more or fewer digits.
        key = row * (int(token.max()) + 1) + token
        _, first, child = np.unique(key, return_index=True, return_inverse=True)
        over_length = np.bincount(child, mass / length)
        mass = np.bincount(child, mass)
        kept = mass > 0
        found = Branches(row[first][kept], token[first][kept], mass[kept], over_length[kept])
        missing = np.bincount(found.row, minlength=len(prefixes)) == 0
        if missing.any():
            raise KeyError(prefixes[np.flatnonzero(missing)[0]])
        return found

    def next_tokens(self, prefix: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """The target distribution of the token after a prefix; see `PrefixTrie.next_tokens`."""
        found = self.branches([tuple(prefix)])
        return found.token, found.mass / found.mass.sum()

    def text(self, path: tuple[int, ...]) -> str:
        """The text of a token sequence, end token included; KeyError if it is no number's."""
        return "".join(self._tokens.chunk_of[token] for token in path[:-1])

    def sample(self, rng: np.random.Generator) -> tuple[int, ...]:
        """Draw a text from the target; its tokens, ending in the end token."""
        return self.sample_paths(rng, 1)[0]

    def sample_paths(self, rng: np.random.Generator, n: int) -> list[tuple[int, ...]]:
        """Draw n texts."""
        return [self._path(number) for number in self._cells.draw(rng.random(n)).tolist()]

    def _path(self, number: int) -> tuple[int, ...]:
        whole, fraction = divmod(abs(number), self._scale)
        text = f"{'-' * (number < 0)}{whole}"
        if self._decimals:
            text += f".{fraction:0{self._decimals}d}"
        return (*self._tokens.encode(text), self.end_id)

    def _read(self, prefixes: Sequence[tuple[int, ...]]) -> list[_Prefix]:
        """What prefixes say about the number; KeyError where no number starts so."""
        known = {(): _START}

        def read(prefix: tuple[int, ...]) -> _Prefix:
            if prefix not in known:
                known[prefix] = self._extend(read(prefix[:-1]), prefix)
            return known[prefix]

        return [read(tuple(prefix)) for prefix in prefixes]

    def _extend(self, state: _Prefix, prefix: tuple[int, ...]) -> _Prefix:
        """What the last token of a prefix adds to what the ones before it say."""
        negative, whole, fraction, closed = state
        chunk = self._tokens.chunk_of.get(prefix[-1])
        if chunk == "-" and len(prefix) == 1:
            return _Prefix(True, "", None, False)
        if chunk == "." and whole and fraction is None and self._decimals:
            return _Prefix(negative, whole, "", False)
        if chunk is None or chunk in "-." or closed or (fraction is None and whole == "0"):
            raise KeyError(prefix)
        short = len(chunk) < self._tokens.group
        if fraction is None:
            if len(whole + chunk) > self._whole_digits or (not whole and re.match("0.", chunk)):
                raise KeyError(prefix)
            return _Prefix(negative, whole + chunk, None, short)
        fraction += chunk
        rest = self._decimals - len(fraction)
        if rest < 0 or (short and rest):
            raise KeyError(prefix)
        return _Prefix(negative, whole, fraction, short)

    def _runs(self, states: list[_Prefix]) -> tuple[np.ndarray, ...]:
        """Row, token, first and one past the last value number, and path length of every run."""
        parts, by_decimals = [], defaultdict(list)
        for row, state in enumerate(states):
            if state.fraction is None:
                for token, low, high, length in self._whole_runs(state):
                    parts.append((np.full(len(low), row), token, low, high, length))
            else:
                by_decimals[len(state.fraction)].append(row)
        for decimals, rows in by_decimals.items():
            parts.append(self._fraction_runs(states, rows, decimals))
        row, token, low, high, length = (np.concatenate(x) for x in zip(*parts, strict=True))
        # Magnitudes so far; zero has no sign.
        negative = np.array([state.negative for state in states])[row]
        low, high = (
            np.where(negative, 1 - high, low),
            np.where(negative, 1 - np.maximum(low, 1), high),
        )
        runs = [(row, token, low, high, length)]
        if self._cells.first < 0:
            runs += [self._sign_runs(row) for row, state in enumerate(states) if state == _START]
        return tuple(np.concatenate(arrays) for arrays in zip(*runs, strict=True))

    def _fraction_runs(
        self, states: list[_Prefix], rows: list[int], decimals: int
    ) -> tuple[np.ndarray, ...]:
        """After the point and so many decimals: the next ones, or the end."""
        rest = self._decimals - decimals
        taken = min(self._tokens.group, rest)
        children, width = 10**taken, 10 ** (rest - taken)
        base = np.array([int(states[row].whole + states[row].fraction) for row in rows])
        low = (base[:, None] * children + np.arange(children)).ravel() * width
        token = self._tokens.digits[taken] if rest else np.array([self.end_id])
        length = [self._length(states[row].negative, len(states[row].whole)) for row in rows]
        return (
            np.repeat(rows, children),
            np.tile(token, len(rows)),
            low,
            low + width,
            np.repeat(length, children),
        )

    def _whole_runs(self, state: _Prefix) -> list[tuple[np.ndarray, ...]]:
        """Before the point: more digits, and the point or the end where there is a digit."""
        digits, value = len(state.whole), int(state.whole or 0)
        runs = []
        if digits:
            token = self._tokens.token_of["."] if self._decimals else self.end_id
            low = np.array([value]) * self._scale
            length = np.array([self._length(state.negative, digits)])
            runs.append((np.array([token]), low, low + self._scale, length))
        if state.closed or state.whole == "0":
            return runs
        for taken in range(1, min(self._tokens.group, self._whole_digits - digits) + 1):
            # No number starts with a zero that other digits follow.
            smallest = 10 ** (taken - 1) if digits == 0 and taken > 1 else 0
            chunk = np.arange(smallest, 10**taken)
            token, extended = self._tokens.digits[taken][chunk], value * 10**taken + chunk
            # A token of fewer digits than fit ends the run of digits.
            more = self._whole_digits - digits - taken if taken == self._tokens.group else 0
            for following in range(more + 1):
                low = extended * (10**following * self._scale)
                high = low + 10**following * self._scale
                if following:  # zero is followed by no digit
                    high = np.where(extended == 0, low, high)
                length = self._length(state.negative, digits + taken + following)
                runs.append((token, low, high, np.full(len(low), length)))
        return runs

    def _sign_runs(self, row: int) -> tuple[np.ndarray, ...]:
        """The sign: all negative numbers, by their number of digits."""
        digits = np.arange(1, self._whole_digits + 1)
        smallest = np.where(digits == 1, 1, 10 ** (digits - 1) * self._scale)
        length = np.array([self._length(True, count) for count in digits.tolist()])
        token = np.full(len(digits), self._tokens.token_of["-"])
        low = 1 - 10**digits * self._scale
        return np.full(len(digits), row), token, low, 1 - smallest, length

    def _length(self, negative: bool, whole_digits: int) -> int:
        """Tokens of a number with its end token."""
        decimals = -(-self._decimals // self._tokens.group)
        whole = -(-whole_digits // self._tokens.group)
        return negative + whole + (decimals > 0) + decimals + 1
