"""The papers' way, written plainly: what ours is measured against.

One completion a sequence, padded; full-vocabulary logits at every position; losses in a Python
loop over examples and positions; tries as nested dictionaries over every listed text; sampling
with `generate`. It uses the same model, adapter, targets and data as ours.
"""

import math
from collections.abc import Sequence

import torch
from transformers import GenerationConfig


def build_trie(texts, probabilities, encode, end_id) -> dict:
    """Mass of every token after every prefix: {prefix: {token: mass}}."""
    trie: dict[tuple[int, ...], dict[int, float]] = {}
    for text, probability in zip(texts, probabilities, strict=True):
        tokens = (*encode(text), end_id)
        for depth, token in enumerate(tokens):
            children = trie.setdefault(tokens[:depth], {})
            children[token] = children.get(token, 0.0) + probability
    return trie


def soft_targets(trie: dict, path: tuple[int, ...]) -> list[dict[int, float]]:
    """The target distribution at every prefix of a path."""
    targets = []
    for depth in range(len(path)):
        children = trie[path[:depth]]
        total = sum(children.values())
        targets.append({token: mass / total for token, mass in children.items()})
    return targets


def hard_targets(trie: dict, path: tuple[int, ...]) -> list[dict[int, float]]:
    """One-hot targets of a drawn value."""
    return [{token: 1.0} for token in path]


def batch_loss(
    model, prompts: Sequence[list[int]], paths: Sequence[tuple[int, ...]], targets, pad_id: int
) -> torch.Tensor:
    """Mean over sequences of the mean over a completion's tokens; nats per token.

    Parameters
    ----------
    model : causal language model
    prompts, paths : token ids of each sequence's prompt and completion
    targets : for each sequence, a list of {token: probability} by position
    pad_id : any token
    """
    sequences = [[*prompt, *path[:-1]] for prompt, path in zip(prompts, paths, strict=True)]
    longest = max(map(len, sequences))
    input_ids = torch.tensor([s + [pad_id] * (longest - len(s)) for s in sequences])
    attention = torch.tensor([[1] * len(s) + [0] * (longest - len(s)) for s in sequences])
    logits = model(input_ids=input_ids, attention_mask=attention, use_cache=False).logits.float()
    losses = []
    for row, (prompt, of_path) in enumerate(zip(prompts, targets, strict=True)):
        positions = []
        for depth, target in enumerate(of_path):
            log_p = torch.log_softmax(logits[row, len(prompt) - 1 + depth], dim=-1)
            tokens = torch.tensor(list(target))
            q = torch.tensor(list(target.values()), dtype=torch.float32).clamp_min(1e-8)
            positions.append((q * (q.log() - log_p[tokens])).sum())
        losses.append(torch.stack(positions).mean())
    return torch.stack(losses).mean()


@torch.inference_mode()
def generate_samples(
    model, prompt_ids, n: int, *, batch: int, stop_ids, pad_id: int, max_new_tokens: int
) -> list[list[int]]:
    """n samples at temperature 1 by `generate`, `batch` return sequences a call."""
    settings = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        max_new_tokens=max_new_tokens,
        num_return_sequences=batch,
        eos_token_id=sorted(stop_ids),
        pad_token_id=pad_id,
    )
    rows = []
    for _ in range(math.ceil(n / batch)):
        output = model.generate(torch.tensor([prompt_ids]), generation_config=settings)
        rows += output[:, len(prompt_ids) :].tolist()
    return rows[:n]


@torch.inference_mode()
def path_kl(model, prompt_ids, paths, targets, pad_id: int) -> float:
    """Mean soft loss over paths, one a sequence (Paper A's logit KL)."""
    loss = batch_loss(model, [prompt_ids] * len(paths), paths, targets, pad_id)
    return float(loss)
