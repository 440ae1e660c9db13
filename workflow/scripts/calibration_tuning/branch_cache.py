"""A key-value cache for sampling: rows are picked and repeated, tokens added without copying.

transformers' DynamicCache copies all it holds at every token. Here a layer owns arrays with room
to grow, so a token costs its own size, and picking rows copies only when something changes.
"""

import copy
from collections.abc import Sequence

import numpy as np
import torch
from transformers.cache_utils import Cache, DynamicLayer

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
        layer = BranchLayer()
        layer.lazy_initialization(self.keys, self.values)
        layer.length = self.length
        layer.keys, layer.values = (
            _with_room(full[:, :, : self.length], self.length + _ROOM, rows)
            for full in (self.keys, self.values)
        )
        return layer


def _with_room(full: torch.Tensor, tokens: int, rows: torch.Tensor | None = None) -> torch.Tensor:
    """A copy of (some rows of) an array with room for so many tokens."""
    count = full.shape[0] if rows is None else len(rows)
    grown = full.new_empty((count, full.shape[1], tokens, full.shape[3]))
    grown[:, :, : full.shape[2]] = full if rows is None else full[rows]
    return grown


class BatchRows:
    """The rows of a batch: their cache, and the model that extends them.

    Parameters
    ----------
    model : causal language model in evaluation mode
    prompts : token ids of each row's prompt
        They run at once, padded on the left.

    Attributes
    ----------
    logits : tensor (rows, vocabulary)
        Of each row's next token.
    """

    def __init__(self, model: torch.nn.Module, prompts: Sequence[Sequence[int]]):
        self.model = model
        longest = max(map(len, prompts))
        self.padding = torch.tensor(
            [longest - len(prompt) for prompt in prompts], device=model.device
        )
        layers = model.config.get_text_config(decoder=True).num_hidden_layers
        self.cache = Cache(layers=[BranchLayer() for _ in range(layers)])
        self.length = 0
        ids = [[prompt[0]] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
        self.extend(np.array(ids))

    def picked(self, rows: np.ndarray) -> "BatchRows":
        """Some rows as a batch of their own; this one stays as it is."""
        other = copy.copy(self)
        other.cache = Cache(layers=list(self.cache.layers))
        other.keep(rows)
        return other

    def keep(self, rows: np.ndarray) -> None:
        """Keep these rows, in this order, any of them several times.

        One layer at a time, so that only one is in memory twice.
        """
        index = torch.as_tensor(rows, device=self.model.device)
        for number, layer in enumerate(self.cache.layers):
            self.cache.layers[number] = layer.picked(index)
        self.padding, self.logits = self.padding[index], self.logits[index]

    def extend(self, token_ids: np.ndarray) -> None:
        """Add tokens (rows, new) to the rows."""
        device = self.model.device
        self.length += token_ids.shape[1]
        place = torch.arange(self.length, device=device) - self.padding[:, None]
        output = self.model(
            input_ids=torch.as_tensor(token_ids, device=device),
            attention_mask=(place >= 0).long() if self.padding.any() else None,
            position_ids=place[:, -token_ids.shape[1] :].clamp_min(0),
            cache=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self.logits = output.logits[:, -1]
