"""Models that judge generations: whether two say the same, and how good one is (Paper A, A9).

The paper's are a classifier of pairs and a reward model. Two stand-ins of ours need no hub: the
cosine of sentence embeddings, and the likelihood under a language model at hand. A stand-in's
numbers are not the paper's, and are named so wherever they show.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError

from calibration_tuning import chat, checkpoints
from calibration_tuning.errors import InputError
from calibration_tuning.evaluations.novelty import rating
from calibration_tuning.packing import pack, packed_logits

SIDE_TOKENS = 128
"""Tokens of each text that the classifier sees."""

TOKENS_AT_A_TIME = 1024
"""Tokens of responses whose logits are held at once."""

SAME_LABEL = 1
"""The classifier's label of texts that are the same."""


def load_equivalence(folder: Path, settings: dict, device: str) -> Callable[[str, str], bool]:
    """A judge of whether two texts are the same.

    Parameters
    ----------
    folder : Path
        A fetched model.
    settings : dict
        kind: classifier (the paper's) or encoder; threshold, of the probability or the cosine
        above which texts are the same; dtype.
    device : str
        As torch names it, or "auto", which spreads the model over the job's GPUs.

    Returns
    -------
    callable (first, second) -> bool

    Raises
    ------
    InputError
        A folder without such a model, or a classifier without two labels.
    """
    threshold = settings["threshold"]
    tokenizer = _read(folder, settings, checkpoints.load_tokenizer)
    if settings["kind"] == "classifier":
        model = _load_head(folder, settings, device, labels=2)
        return lambda first, second: probability_same(model, tokenizer, first, second) > threshold
    model = load(folder, settings, device, "AutoModel")

    @lru_cache(maxsize=4096)
    def embed(text: str) -> torch.Tensor:
        return embedding(model, tokenizer, text)

    return lambda first, second: float(embed(first) @ embed(second)) > threshold


def load_rater(
    folder: Path, settings: dict, device: str
) -> Callable[[str, Sequence[str]], list[int]]:
    """A judge of how good responses to a prompt are.

    Parameters
    ----------
    folder, device : as for `load_equivalence`
    settings : dict
        kind: reward (the paper's) or likelihood; thresholds, nine, at which the rating goes up;
        dtype; chat, the registry's block of a language model.

    Returns
    -------
    callable (prompt, responses) -> ratings, 1 to 10
        An empty response is rated 1 by likelihood, since it has none.

    Raises
    ------
    InputError
        A folder without such a model, or a reward model without exactly one label.
    """
    tokenizer = _read(folder, settings, checkpoints.load_tokenizer)
    thresholds = settings["thresholds"]
    if settings["kind"] == "reward":
        model = _load_head(folder, settings, device, labels=1)
        return lambda prompt, responses: [
            rating(reward(model, tokenizer, prompt, response), thresholds) for response in responses
        ]
    model = checkpoints.load_model(folder, settings["dtype"], device)
    return lambda prompt, responses: [
        rating(value, thresholds)
        for value in mean_log_probabilities(model, tokenizer, prompt, responses, settings["chat"])
    ]


@torch.inference_mode()
def embedding(model, tokenizer, text: str) -> torch.Tensor:
    """Embedding of a text: the mean of its tokens' last states, of length 1.

    Each text alone, so that no padding or neighbour changes its rounding.

    Returns
    -------
    float32 tensor (width,)
    """
    ids = tokenizer(text, truncation=True, return_tensors="pt").to(model.device)
    states = model(**ids).last_hidden_state[0].float()
    return torch.nn.functional.normalize(states.mean(dim=0), dim=0)


def pair_ids(tokenizer, first: str, second: str) -> tuple[list[int], list[int]]:
    """Token ids [CLS] first [SEP] second [SEP], each text cut to `SIDE_TOKENS`, and token types."""
    ids, types = [tokenizer.cls_token_id], [0]
    for side, text in enumerate((first, second)):
        own = tokenizer.encode(
            text, add_special_tokens=False, truncation=True, max_length=SIDE_TOKENS
        )
        own.append(tokenizer.sep_token_id)
        ids += own
        types += [side] * len(own)
    return ids, types


@torch.inference_mode()
def probability_same(model, tokenizer, first: str, second: str) -> float:
    """The classifier's probability that two texts are the same."""
    ids, types = (
        torch.tensor([x], device=model.device) for x in pair_ids(tokenizer, first, second)
    )
    logits = model(input_ids=ids, token_type_ids=types).logits[0].float()
    return float(torch.softmax(logits, dim=-1)[SAME_LABEL])


@torch.inference_mode()
def reward(model, tokenizer, prompt: str, response: str) -> float:
    """The reward model's number for a response, without unit."""
    turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": response}]
    ids = tokenizer.apply_chat_template(turns, tokenize=True, return_dict=False)
    return float(model(input_ids=torch.tensor([ids], device=model.device)).logits[0, 0])


def mean_log_probabilities(
    model, tokenizer, prompt: str, responses: Sequence[str], chat_settings: dict
) -> list[float]:
    """Log-probability of each response, its end of turn included, in nats per token.

    Returns
    -------
    list of float
        Minus infinity for a response without content.
    """
    prompt_ids = chat.encode_prompt(tokenizer, prompt, chat_settings)
    end = chat.end_of_turn_id(tokenizer, chat_settings)
    encode = chat.completion_encoder(tokenizer)
    bodies = [[*encode(response), end] if response.strip() else [] for response in responses]
    values: list[float] = []
    while len(values) < len(bodies):
        # As many as fit, at least one; their prompt is computed once.
        sizes = np.cumsum([len(body) for body in bodies[len(values) :]])
        count = max(1, int(np.searchsorted(sizes, TOKENS_AT_A_TIME, side="right")))
        values += _mean_log_probabilities(model, prompt_ids, bodies[len(values) :][:count])
    return values


@torch.inference_mode()
def _mean_log_probabilities(
    model, prompt_ids: list[int], bodies: Sequence[list[int]]
) -> list[float]:
    """Mean log-probability of completions that share one forward pass as a token tree."""
    whole = [body for body in bodies if body]
    if not whole:
        return [float("-inf")] * len(bodies)
    tree = pack([[*prompt_ids, *body] for body in whole])
    first = len(prompt_ids) - 1
    nodes = np.concatenate(
        [tree.nodes[row, first : first + len(body)] for row, body in enumerate(whole)]
    )
    arrays = (tree.token_ids, tree.positions, tree.subtree_end, nodes)
    logits = packed_logits(model, *(torch.from_numpy(a).to(model.device) for a in arrays)).float()
    tokens = torch.tensor([token for body in whole for token in body], device=logits.device)
    chosen = logits.gather(1, tokens[:, None])[:, 0] - torch.logsumexp(logits, dim=-1)
    means = iter(part.mean().item() for part in chosen.double().split([len(b) for b in whole]))
    return [next(means) if body else float("-inf") for body in bodies]


def _load_head(folder: Path, settings: dict, device: str, labels: int):
    """A sequence classifier with this number of labels."""
    from transformers import AutoConfig

    config = _read(folder, settings, AutoConfig.from_pretrained, **checkpoints.OFFLINE)
    found = config.num_labels
    if found != labels:
        raise InputError(
            f"{folder / 'config.json'}: a {settings['kind']} with {found} labels; expected {labels}"
        )
    return load(folder, settings, device, "AutoModelForSequenceClassification")


def load(folder: Path, settings: dict, device: str, loader: str):
    """A model of some class of transformers in evaluation mode.

    Parameters
    ----------
    folder, device : as for `load_equivalence`
    settings : kind, for messages, and dtype
    loader : name of an Auto class, such as AutoModel

    Raises
    ------
    InputError
        A folder without such a model, or one whose files lack a weight, which transformers would
        leave random.
    """
    import transformers

    options = {"dtype": getattr(torch, settings["dtype"]), "use_safetensors": True}
    if device == "auto":
        options["device_map"] = "auto"
    read = getattr(transformers, loader).from_pretrained
    model, loading = _read(
        folder, settings, read, output_loading_info=True, **options, **checkpoints.OFFLINE
    )
    missing = set(loading["missing_keys"])
    if settings["kind"] == "encoder":
        # Its pooler is not used here; a classifier's is a part of its head.
        missing = {name for name in missing if "pooler" not in name}
    if missing:
        raise InputError(
            f"{folder}: not a {settings['kind']}: the weight files lack {min(missing)}"
        )
    return (model if device == "auto" else model.to(device)).eval()


def _read(folder: Path, settings: dict, read: Callable, **options):
    """What a reader of transformers makes of a folder; its own errors become one line."""
    try:
        return read(folder, **options)
    except (OSError, ValueError, SafetensorError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{folder}: no {settings['kind']} can be loaded: {reason}") from None
