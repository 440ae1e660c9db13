"""Live branches of prompts and their keys and values: as one token tree, or as rows of a batch.

The tree is for branches that share much and are short, such as numbers; the rows are for many
different and long ones. transformers' DynamicCache copies all it holds at every token; here a
layer owns arrays with room to grow, so a token costs its own size.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from transformers.cache_utils import Cache, DynamicLayer

from calibration_tuning.packing import layer_masks, pack, score_dtype

_ROOM = 32
"""Tokens of room that a layer adds when it is full."""


class BranchLayer(DynamicLayer):
    """Keys and values (rows, heads, tokens, width) with room for more tokens.

    Layers with a sliding window keep all tokens too: their masks hide what lies outside it.
    """

    def __init__(self):
        super().__init__()
        self.length = 0

    def update(self, key_states, value_states, *args, **kwargs):
        """Add tokens; returns all keys and values as views."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
        start, end = self.length, self.length + key_states.shape[-2]
        if end > self.keys.shape[-2]:
            self.keys, self.values = (
                _with_room(full[:, :, :start], end + _ROOM) for full in (self.keys, self.values)
            )
        self.keys[:, :, start:end] = key_states
        self.values[:, :, start:end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_seq_length(self) -> int:
        """Number of tokens held."""
        return self.length

    def picked(self, rows: torch.Tensor) -> "BranchLayer":
        """A new layer that holds these rows, in this order, any of them several times."""
        return self._filled(lambda full: full[rows.to(full.device)])

    def unfolded(self, tokens: torch.Tensor) -> "BranchLayer":
        """A new layer whose rows are made of tokens of this one's only row.

        Parameters
        ----------
        tokens : int64 tensor (rows, tokens)
        """
        return self._filled(lambda full: full[0][:, tokens.to(full.device)].transpose(0, 1))

    def _filled(self, take: Callable[[torch.Tensor], torch.Tensor]) -> "BranchLayer":
        layer = BranchLayer()
        layer.lazy_initialization(self.keys, self.values)
        keys, values = take(self.keys[:, :, : self.length]), take(self.values[:, :, : self.length])
        layer.length = keys.shape[2]
        layer.keys, layer.values = (_with_room(x, layer.length + _ROOM) for x in (keys, values))
        return layer


def _with_room(full: torch.Tensor, tokens: int) -> torch.Tensor:
    """A copy with room for so many tokens."""
    grown = full.new_empty((*full.shape[:2], tokens, full.shape[3]))
    grown[:, :, : full.shape[2]] = full
    return grown


class TokenTree:
    """Branches of prompts as one row: a token tree whose nodes are each evaluated once.

    Branches share the nodes of what they have in common, so nothing is copied when they split,
    and a pass costs its new tokens. A query sees all nodes through a mask, though, and the scores
    of those that it does not attend to are computed too: with many nodes `BatchRows` is faster.

    Parameters
    ----------
    model : causal language model in evaluation mode
    prompts : token ids of each prompt

    Attributes
    ----------
    logits : tensor (branches, vocabulary)
        Of each branch's next token, as of the last start or `extend`; `keep` leaves them.
    paths : int64 array (branches, longest)
        Nodes of each live branch from its first token to its last, -1 before its first.
    """

    def __init__(self, model: torch.nn.Module, prompts: Sequence[Sequence[int]]):
        self.model = model
        layers = model.config.get_text_config(decoder=True).num_hidden_layers
        self.cache = Cache(layers=[BranchLayer() for _ in range(layers)])
        self.positions = np.zeros(0, dtype=np.int64)
        self.paths = np.zeros((len(prompts), 0), dtype=np.int64)
        self._add(prompts)
        self._roots = (self.paths, self.logits, len(self.positions))

    def restart(self, prompts: np.ndarray, prefixes: np.ndarray) -> None:
        """Forget all branches for these: a prompt's number and the tokens after it, each.

        Parameters
        ----------
        prompts : int64 array (branches,)
        prefixes : int64 array (branches, tokens)
        """
        paths, logits, size = self._roots
        self.positions = self.positions[:size]
        for layer in self.cache.layers:
            layer.length = size
        self.paths, self.logits = paths[prompts], logits[torch.from_numpy(prompts)]
        if prefixes.shape[1]:
            self._add(prefixes.tolist())

    @property
    def new_nodes(self) -> int:
        """Number of nodes below the prompts."""
        return len(self.positions) - self._roots[2]

    def keep(self, rows: np.ndarray) -> None:
        """Keep these branches, in this order, any of them several times."""
        self.paths = self.paths[rows]

    def extend(self, tokens: np.ndarray) -> None:
        """Add a token (branches,) to each branch; no two alike after the same node."""
        start = len(self.positions)
        depth = (self.paths >= 0).sum(axis=1)
        nodes = start + np.arange(len(tokens))[:, None]
        self.paths = np.hstack([self.paths, nodes])
        self._forward(tokens, depth, self.paths, np.arange(len(tokens)))

    def _add(self, sequences: Sequence[Sequence[int]]) -> None:
        """Add a sequence of tokens to each branch, what they share once."""
        # A branch's own last node in front keeps those of different branches apart.
        last = self.paths[:, -1] if self.paths.shape[1] else np.full(len(sequences), -1)
        tree = pack([[node + 1, *tokens] for node, tokens in zip(last, sequences, strict=True)])
        below = np.flatnonzero(tree.positions > 0)  # without the nodes that are there already
        number = np.full(len(tree.positions) + 1, -1)  # the last one for the -1 of no node
        number[below] = len(self.positions) + np.arange(len(below))
        paths = np.hstack([self.paths, _to_the_right(number[tree.nodes[:, 1:]])])
        # Every new node attends to the path of some branch up to itself.
        branch, place = np.empty(len(below), dtype=np.int64), np.empty(len(below), dtype=np.int64)
        rows, columns = np.nonzero(paths >= len(self.positions))
        branch[paths[rows, columns] - len(self.positions)] = rows
        place[paths[rows, columns] - len(self.positions)] = columns
        depth = (paths >= 0).cumsum(axis=1)[branch, place] - 1
        until = np.where(np.arange(paths.shape[1]) <= place[:, None], paths[branch], -1)
        ends = paths[:, -1] - len(self.positions)
        self.paths = paths
        self._forward(tree.token_ids[below], depth, until, ends)

    def _forward(
        self, tokens: np.ndarray, positions: np.ndarray, attended: np.ndarray, ends: np.ndarray
    ) -> None:
        """Evaluate new nodes.

        Parameters
        ----------
        tokens, positions : int64 arrays (new,)
        attended : int64 array (new, longest)
            The nodes that each attends to, itself among them; -1 for none.
        ends : int64 array (branches,)
            Which of the new nodes' logits are wanted.
        """
        device = self.model.device
        self.positions = np.concatenate([self.positions, positions])
        visible = np.zeros((len(tokens), len(self.positions) + 1), dtype=bool)
        visible[np.arange(len(tokens))[:, None], attended] = True  # -1 is the last column
        visible, tokens, depth, all_depths, ends = (
            torch.from_numpy(np.asarray(array)).to(device)
            for array in (visible[:, :-1], tokens, positions, self.positions, ends)
        )
        output = self.model(
            input_ids=tokens[None],
            position_ids=depth[None],
            attention_mask=layer_masks(
                self.model.config, visible, depth, all_depths, score_dtype(self.model)
            ),
            cache=self.cache,
            use_cache=True,
            logits_to_keep=ends,
        )
        self.logits = output.logits[0]


def _to_the_right(matrix: np.ndarray) -> np.ndarray:
    """Move the -1 after each row's entries to the front of the row."""
    length = (matrix >= 0).sum(axis=1)[:, None]
    source = np.arange(matrix.shape[1]) - (matrix.shape[1] - length)
    return np.where(source >= 0, np.take_along_axis(matrix, np.maximum(source, 0), axis=1), -1)


class BatchRows:
    """Branches as the rows of a batch, each with keys and values of its own.

    Parameters
    ----------
    tree : TokenTree
        Its branches are copied out.

    Attributes
    ----------
    logits : tensor (rows, vocabulary)
        Of each row's next token, as of the last `extend`; `keep` leaves them.
    """

    def __init__(self, tree: TokenTree):
        self.model, self.logits = tree.model, tree.logits
        self.padding = torch.from_numpy((tree.paths < 0).sum(axis=1)).to(self.model.device)
        self.length = tree.paths.shape[1]
        nodes = torch.from_numpy(np.maximum(tree.paths, 0)).to(self.model.device)
        self.cache = Cache(layers=[layer.unfolded(nodes) for layer in tree.cache.layers])

    def keep(self, rows: np.ndarray) -> None:
        """Keep these rows, in this order, any of them several times.

        One layer at a time, so that only one is in memory twice.
        """
        if np.array_equal(rows, np.arange(len(self.padding))):
            return
        index = torch.as_tensor(rows, device=self.model.device)
        for number, layer in enumerate(self.cache.layers):
            self.cache.layers[number] = layer.picked(index)
        self.padding = self.padding[index]

    def extend(self, tokens: np.ndarray) -> None:
        """Add a token (rows,) to each row."""
        device = self.model.device
        self.length += 1
        place = torch.arange(self.length, device=device) - self.padding[:, None]
        output = self.model(
            input_ids=torch.as_tensor(tokens, device=device)[:, None],
            attention_mask=(place >= 0).long() if self.padding.any() else None,
            position_ids=place[:, -1:],
            cache=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self.logits = output.logits[:, -1]
