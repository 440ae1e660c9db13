"""lm-eval's model with answers to choose from scored in token trees.

The tasks, their prompts and metrics are lm-eval's. It runs the question anew for every answer and
takes the logits of the whole vocabulary at every token; here the answers of a question, and
questions after the same examples, share one forward pass, and logits are taken at the answers'
tokens only.
"""

import logging
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from tqdm import tqdm

from calibration_tuning import chat
from calibration_tuning.evaluations.benchmarks import CHANCE
from calibration_tuning.packing import pack, packed_logits


class PackedLM(HFLM):
    """lm-eval's model with answers scored in token trees, and the registry's chat format.

    Parameters
    ----------
    model, tokenizer : as loaded, with an adapter or without
    settings : dict
        batch (prompts in a forward pass that generates), context (most tokens of a request),
        tokens_at_a_time (of a token tree), chat.
    """

    def __init__(self, model, tokenizer, settings: dict):
        # It warns of each thing that is meant here: a model that is loaded, data that are at hand.
        logging.getLogger("lm_eval").setLevel(logging.ERROR)
        super().__init__(
            pretrained=model,
            tokenizer=tokenizer,
            batch_size=settings["batch"],
            max_length=settings["context"],
        )
        self.settings = settings

    def apply_chat_template(self, chat_history, add_generation_prompt: bool = True) -> str:
        """A conversation as text, by the registry's chat settings."""
        return chat.render_conversation(
            self.tokenizer, chat_history, self.settings["chat"], add_generation_prompt
        )

    def _loglikelihood_tokens(self, requests, disable_tqdm=False, override_bs=None):
        """(log likelihood in nats, whether greedy) of each continuation after its context."""
        inputs = [
            (context + continuation)[-(self.max_length + 1) :][:-1]
            for _, context, continuation in requests
        ]
        answers: list = [None] * len(requests)
        bar = tqdm(total=len(requests), disable=disable_tqdm, desc="answers", mininterval=5)
        for group in plan_trees(inputs, self.settings["tokens_at_a_time"]):
            continuations = [requests[index][2] for index in group]
            found = continuation_scores(self.model, [inputs[i] for i in group], continuations)
            for index, answer in zip(group, found, strict=True):
                answers[index] = answer
                if requests[index][0] is not None:  # rolling windows have no key
                    self.cache_hook.add_partial("loglikelihood", requests[index][0], answer)
            bar.update(len(group))
        bar.close()
        return answers


def plan_trees(inputs: Sequence[Sequence[int]], tokens_at_a_time: int) -> list[list[int]]:
    """Which sequences share a token tree: neighbours in sorted order, which share most.

    Returns
    -------
    list of lists of indices
        Each tree has at most `tokens_at_a_time` nodes, or one sequence.
    """
    groups: list[list[int]] = []
    nodes, before = 0, None
    for index in sorted(range(len(inputs)), key=lambda i: inputs[i]):
        sequence = inputs[index]
        new = len(sequence) - (_shared(before, sequence) if before is not None else 0)
        if before is None or nodes + new > tokens_at_a_time:
            groups.append([])
            nodes, new = 0, len(sequence)
        groups[-1].append(index)
        nodes += new
        before = sequence
    return groups


def _shared(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    for place, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return place
    return min(len(first), len(second))


@torch.inference_mode()
def continuation_scores(
    model: torch.nn.Module,
    inputs: Sequence[Sequence[int]],
    continuations: Sequence[Sequence[int]],
) -> list[tuple[float, bool]]:
    """Log likelihoods of continuations, from one forward pass over all of them.

    Parameters
    ----------
    model : causal language model
    inputs : sequences of token ids
        Context and continuation without its last token; they may share prefixes.
    continuations : sequences of token ids, none empty

    Returns
    -------
    list of (nats, whether each token is the likeliest)
    """
    tree = pack(inputs)
    nodes = [
        tree.nodes[number, len(sequence) - len(continuation) : len(sequence)]
        for number, (sequence, continuation) in enumerate(zip(inputs, continuations, strict=True))
    ]
    rows, row_of = np.unique(np.concatenate(nodes), return_inverse=True)
    arrays = (tree.token_ids, tree.positions, tree.subtree_end, rows)
    logits = packed_logits(model, *(torch.from_numpy(a).to(model.device) for a in arrays)).float()
    row_of = torch.from_numpy(row_of).to(logits.device)
    tokens = torch.tensor([t for c in continuations for t in c], device=logits.device)
    log_p = logits[row_of, tokens] - torch.logsumexp(logits, dim=-1)[row_of]
    greedy = logits.argmax(dim=-1)[row_of] == tokens
    lengths = [len(continuation) for continuation in continuations]
    parts = zip(log_p.split(lengths), greedy.split(lengths), strict=True)
    return [(float(part.sum()), bool(every.all())) for part, every in parts]


def run_task(lm: HFLM, task, settings: dict) -> list[tuple[int, str, float]]:
    """Scores of a task's items, as lm-eval gives them.

    Parameters
    ----------
    lm : lm-eval model
    task : lm_eval.api.task.Task
    settings : dict
        items (most items, the first), max_new_tokens.

    Returns
    -------
    list of (item, metric, value)
        Metrics by lm-eval's name and filter, and `CHANCE` where it is defined.
    """
    name = task.config.task
    generates = task.config.output_type == "generate_until"
    result = simple_evaluate(
        model=lm,
        tasks=[task],
        limit=settings["items"],
        apply_chat_template=True,
        gen_kwargs={"max_gen_toks": settings["max_new_tokens"]} if generates else None,
        log_samples=True,
        bootstrap_iters=0,
        task_manager=TaskManager(include_defaults=False),  # else it reads all its tasks' files
    )
    rows = []
    for sample in result["samples"][name]:
        item = int(sample["doc_id"])
        rows += [(item, f"{m},{sample['filter']}", float(sample[m])) for m in sample["metrics"]]
        guess = _chance(task, sample)
        if guess is not None:
            rows.append((item, CHANCE, guess))
    return rows


def _chance(task, sample: Mapping) -> float | None:
    """What guessing gets on an item, where one of several answers is right."""
    single = task.config.output_type == "multiple_choice" and task.config.process_results is None
    return 1 / len(sample["arguments"]) if single else None
