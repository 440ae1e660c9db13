"""The papers' way, written plainly: what ours is measured against, never used otherwise.

One completion a sequence, padded; full-vocabulary logits at every position; losses in a Python
loop over examples and positions; tries as nested dictionaries over every listed text; sampling
with `generate`. Model, adapter, targets and data are the same as ours.
"""

import math
from collections.abc import Callable, Collection, Sequence

import torch
from transformers import GenerationConfig

from calibration_tuning.objectives import TARGET_FLOOR, Example

Targets = list[dict[int, float]]
"""At each position of a completion, the target probability of some tokens."""


def build_trie(
    texts: Sequence[str],
    probabilities: Sequence[float],
    encode: Callable[[str], list[int]],
    end_id: int,
) -> dict[tuple[int, ...], dict[int, float]]:
    """Mass of every token after every prefix: {prefix: {token: mass}}."""
    trie: dict[tuple[int, ...], dict[int, float]] = {}
    for text, probability in zip(texts, probabilities, strict=True):
        tokens = (*encode(text), end_id)
        for depth, token in enumerate(tokens):
            children = trie.setdefault(tokens[:depth], {})
            children[token] = children.get(token, 0.0) + probability
    return trie


def soft_targets(trie: dict[tuple[int, ...], dict[int, float]], path: tuple[int, ...]) -> Targets:
    """The target distribution at every prefix of a path."""
    targets = []
    for depth in range(len(path)):
        children = trie[path[:depth]]
        total = sum(children.values())
        targets.append({token: mass / total for token, mass in children.items()})
    return targets


def targets_of(example: Example) -> list[Targets]:
    """The targets of every path of a visit, in the form of `soft_targets`."""
    prefix, row, token, q = example.targets
    return [
        [
            dict(zip(token[row == at].tolist(), q[row == at].tolist(), strict=True))
            for at in prefix[number, : len(path)]
        ]
        for number, path in enumerate(example.paths)
    ]


def batch_loss(
    model: torch.nn.Module,
    prompts: Sequence[list[int]],
    paths: Sequence[tuple[int, ...]],
    targets: Sequence[Targets],
    pad_id: int,
    gather: bool = False,
) -> torch.Tensor:
    """Mean over sequences of the mean over a completion's tokens.

    Parameters
    ----------
    model : causal language model
    prompts, paths, targets : of each sequence
    pad_id : any token
    gather : bool
        Pick the logits of all targets at once, rather than those of one example after the other.

    Returns
    -------
    scalar tensor, nats per token
    """
    sequences = [[*prompt, *path[:-1]] for prompt, path in zip(prompts, paths, strict=True)]
    longest = max(map(len, sequences))
    padded = [s + [pad_id] * (longest - len(s)) for s in sequences]
    input_ids = torch.tensor(padded, device=model.device)
    attention = torch.tensor(
        [[1] * len(s) + [0] * (longest - len(s)) for s in sequences], device=model.device
    )
    logits = model(input_ids=input_ids, attention_mask=attention, use_cache=False).logits.float()
    starts = [len(prompt) - 1 for prompt in prompts]
    if gather:
        rows = [row for row, path in enumerate(paths) for _ in path]
        columns = [s + i for s, path in zip(starts, paths, strict=True) for i in range(len(path))]
        picked = logits[rows, columns].split([len(path) for path in paths])
    else:
        # Position by position the backward pass would even allocate all logits once a token.
        picked = [
            logits[row, start : start + len(path)]
            for row, (start, path) in enumerate(zip(starts, paths, strict=True))
        ]
    losses = []
    for of_path, path_logits in zip(targets, picked, strict=True):
        at_positions = []
        for depth, target in enumerate(of_path):
            log_p = torch.log_softmax(path_logits[depth], dim=-1)
            q = torch.tensor(list(target.values()), dtype=torch.float32, device=model.device)
            kl = q * (q.clamp_min(TARGET_FLOOR).log() - log_p[list(target)])
            at_positions.append(kl.sum())
        losses.append(torch.stack(at_positions).mean())
    return torch.stack(losses).mean()


@torch.inference_mode()
def generate_samples(
    model: torch.nn.Module,
    prompt_ids: list[int],
    n: int,
    *,
    batch: int,
    stop_ids: Collection[int],
    pad_id: int,
    max_new_tokens: int,
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
    prompt = torch.tensor([prompt_ids], device=model.device)
    rows: list[list[int]] = []
    for _ in range(math.ceil(n / batch)):
        output = model.generate(prompt, generation_config=settings)
        rows += output[:, len(prompt_ids) :].tolist()
    return rows[:n]
