"""Many token sequences in one forward pass, as one row of a token tree.

A batch is a set of sequences (a prompt followed by a completion). Sequences that share a prefix
share its nodes: the completions of one prompt share the prompt, two prompts share the system
message and the words before their first difference. Nodes are laid out depth first, so a node's
descendants are the contiguous run that follows it, and "j is an ancestor of i" is just
``j <= i < subtree_end[j]``: the attention mask comes from two comparisons.

Positions are depths, and a node attends to its ancestors and itself only, so each node's logits
are those of the unpacked sequence that it ends (to rounding). The papers train one completion a
sequence; this is the same computation without the repetition.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch


class PackedTree(NamedTuple):
    """A token tree in depth-first order.

    Attributes
    ----------
    token_ids : int64 array (nodes,)
    positions : int64 array (nodes,)
        Depth of a node, its position in each sequence through it.
    subtree_end : int64 array (nodes,)
        One past the last descendant of a node.
    nodes : int64 array (sequences, longest)
        Node of each token of each sequence; -1 past a sequence's end.
    """

    token_ids: np.ndarray
    positions: np.ndarray
    subtree_end: np.ndarray
    nodes: np.ndarray


def pad(sequences: Sequence[Sequence[int]]) -> np.ndarray:
    """Pad sequences of token ids on the right with -1.

    Returns
    -------
    int64 array (sequences, longest)
    """
    lengths = np.fromiter((len(sequence) for sequence in sequences), np.int64, len(sequences))
    if lengths.size == 0 or lengths.min() == 0:
        raise ValueError("packing needs at least one sequence, and none of them empty")
    matrix = np.full((len(sequences), lengths.max()), -1, dtype=np.int64)
    matrix[np.arange(lengths.max()) < lengths[:, None]] = np.concatenate(
        [np.asarray(sequence, dtype=np.int64) for sequence in sequences]
    )
    return matrix


def pack(sequences: Sequence[Sequence[int]]) -> PackedTree:
    """Merge sequences into a token tree.

    Parameters
    ----------
    sequences : sequence of non-empty sequences of non-negative token ids

    Raises
    ------
    ValueError
        If there is no sequence or one is empty.
    """
    matrix = pad(sequences)
    order = np.lexsort(matrix.T[::-1])
    rows = matrix[order]
    # A token opens a new node where its row has differed from the row before at or before it.
    differs = np.ones(rows.shape, dtype=bool)
    differs[1:] = np.logical_or.accumulate(rows[1:] != rows[:-1], axis=1)
    is_token = rows >= 0
    opens = differs & is_token
    first_node = np.concatenate([[0], np.cumsum(opens.sum(axis=1))])
    # Depth first: a row's new nodes are numbered in a run, rows in sorted order.
    numbered = np.where(opens, np.cumsum(opens).reshape(opens.shape) - 1, -1)
    nodes = np.where(is_token, np.maximum.accumulate(numbered, axis=0), -1)
    # The subtree of a node ends where the next row that differs at or before its depth begins.
    row_index = np.arange(len(rows))[:, None]
    next_difference = np.full(rows.shape, len(rows), dtype=np.int64)
    next_difference[:-1] = np.where(differs[1:], row_index[1:], len(rows))
    next_difference = np.minimum.accumulate(next_difference[::-1], axis=0)[::-1]
    unsorted_nodes = np.empty_like(nodes)
    unsorted_nodes[order] = nodes
    return PackedTree(
        token_ids=rows[opens],
        positions=np.broadcast_to(np.arange(rows.shape[1]), rows.shape)[opens],
        subtree_end=first_node[next_difference][opens],
        nodes=unsorted_nodes,
    )


def visibility(subtree_end: torch.Tensor) -> torch.Tensor:
    """Which node (column) each node (row) of a packed tree attends to; bool (nodes, nodes)."""
    index = torch.arange(len(subtree_end), device=subtree_end.device)
    return (index <= index[:, None]) & (index[:, None] < subtree_end)


def as_additive(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """An additive float mask (1, 1, queries, keys): 0 where visible, the dtype's lowest elsewhere.

    Eager attention (gpt-oss) adds its mask to the scores, so a boolean one would be wrong there.
    """
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min)[None, None]


def layer_masks(
    config,
    visible: torch.Tensor,
    query_depth: torch.Tensor,
    key_depth: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor | dict[str, torch.Tensor]:
    """The mask of a token tree in the form that a model takes.

    Parameters
    ----------
    config : transformers.PreTrainedConfig
        Models that mix full and sliding-window layers (Gemma-3, gpt-oss) get one mask for each
        kind; in a tree the window counts depths, not places in the row.
    visible : bool tensor (queries, keys)
        Whether the key is the query itself or one of its ancestors.
    query_depth, key_depth : int64 tensors (queries,), (keys,)
    dtype : floating dtype of the attention scores

    Returns
    -------
    tensor (1, 1, queries, keys), or a dict of such tensors by layer type
    """
    text_config = config.get_text_config()
    full = as_additive(visible, dtype)
    if "sliding_attention" not in (getattr(text_config, "layer_types", None) or ()):
        return full
    window = visible & (query_depth[:, None] - key_depth < text_config.sliding_window)
    return {"full_attention": full, "sliding_attention": as_additive(window, dtype)}


def score_dtype(model: torch.nn.Module) -> torch.dtype:
    """The dtype in which a model computes attention scores here and now."""
    parameter = next(p for p in model.parameters() if p.is_floating_point())
    if torch.is_autocast_enabled(parameter.device.type):
        return torch.get_autocast_dtype(parameter.device.type)
    return parameter.dtype


def packed_logits(
    model: torch.nn.Module,
    token_ids: torch.Tensor,
    positions: torch.Tensor,
    subtree_end: torch.Tensor,
    rows: torch.Tensor,
) -> torch.Tensor:
    """Next-token logits at some nodes of a packed tree; the output head runs at those only.

    Parameters
    ----------
    token_ids, positions, subtree_end : int64 tensors (nodes,)
    rows : int64 tensor (rows,)
        The nodes whose next token is wanted.

    Returns
    -------
    tensor (rows, vocabulary)
    """
    masks = layer_masks(
        model.config, visibility(subtree_end), positions, positions, score_dtype(model)
    )
    output = model(
        input_ids=token_ids[None],
        position_ids=positions[None],
        attention_mask=masks,
        logits_to_keep=rows,
        use_cache=False,
    )
    return output.logits.squeeze(0)  # indexing would copy in the backward pass


def next_token_logits(model: torch.nn.Module, sequences: Sequence[Sequence[int]]) -> torch.Tensor:
    """Next-token logits after whole sequences, which share one forward pass as a token tree.

    Returns
    -------
    tensor (sequences, vocabulary)
    """
    tree = pack(sequences)
    last = np.array([len(sequence) - 1 for sequence in sequences])
    nodes = tree.nodes[np.arange(len(sequences)), last]
    arrays = (tree.token_ids, tree.positions, tree.subtree_end, nodes)
    return packed_logits(model, *(torch.from_numpy(a).to(model.device) for a in arrays))
