"""Structured sampling, the part that runs the model (Paper A, structured sampling).

Each selected prompt is sampled and its divergence from the target measured. A prompt's part is
stored as soon as it is done, so a run that is killed goes on where it was.
"""

import io
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from calibration_tuning import chat, files, prompting
from calibration_tuning.divergences import Divergence, divergence
from calibration_tuning.families import Distribution
from calibration_tuning.sampling import Sample, sample_completions
from calibration_tuning.trie import CdfTrie, PrefixTrie, build_trie

_NUMBER_SO_FAR = re.compile(r"\s*[+-]?[0-9]*(\.[0-9]*)?([eE][+-]?[0-9]*)?\s*")

NO_DIVERGENCE = dict.fromkeys((*Divergence._fields, "space_mass_standard_error"))

SAMPLES_SCHEMA = pa.schema(
    [
        ("split", pa.string()),
        ("prompt_index", pa.int32()),
        ("sample", pa.int32()),
        ("text", pa.string()),
        ("token_ids", pa.list_(pa.int32())),
        ("finished", pa.bool_()),
    ]
)


def may_become_number(text: str) -> bool:
    """Whether a text can still be continued to one decimal number; if not, it stays invalid."""
    return _NUMBER_SO_FAR.fullmatch(text) is not None


def evaluate_prompt(
    model, tokenizer, prompt: dict, settings: dict, stop_ids: frozenset[int], seed: list[int]
) -> dict:
    """Samples and divergence of one prompt.

    Parameters
    ----------
    prompt : record with family, params and prompt
    settings : evaluation settings: samples, max_new_tokens, max_rows, decimals,
        divergence_max_bins, exact_prefixes, sampled_paths, chat; prompting, for a method that
        asks with a system prompt
    stop_ids : tokens that end an answer
    seed : random stream of this prompt

    Returns
    -------
    dict with "samples" (list of [text, token ids, finished]) and "divergence". After a system
    prompt the text is the answer, of all that was sampled, and there is no divergence: the
    answer's probability is a sum over every way to get there.
    """
    chat_settings = settings["chat"]
    if "prompting" in settings:
        samples = sample_answers(model, tokenizer, prompt, settings, stop_ids, seed)
        return {"samples": samples, "divergence": NO_DIVERGENCE}
    prompt_ids = chat.encode_prompt(tokenizer, prompt["prompt"], chat_settings)
    samples = sample_completions(
        model,
        tokenizer,
        prompt_ids,
        settings["samples"],
        stop_ids=stop_ids,
        max_new_tokens=settings["max_new_tokens"],
        max_rows=settings["max_rows"],
        seed=[*seed, 0],
        viable=may_become_number,
    )
    trie = build_trie(
        Distribution(prompt["family"], prompt["params"]),
        settings["decimals"],
        settings["divergence_max_bins"],
        chat.completion_encoder(tokenizer),
        chat.end_of_turn_id(tokenizer, chat_settings),
    )
    found = divergence(
        model,
        prompt_ids,
        trie,
        exact_prefixes=settings["exact_prefixes"],
        sampled_paths=settings["sampled_paths"],
        seed=[*seed, 1],
    )
    return {
        "samples": [[sample.text, list(sample.token_ids), sample.finished] for sample in samples],
        "divergence": with_mass(found, samples, trie),
    }


def sample_answers(
    model, tokenizer, prompt: dict, settings: dict, stop_ids: frozenset[int], seed: list[int]
) -> list[list]:
    """Answers of a method that asks with a system prompt: [answer, token ids, finished]."""
    samples = sample_completions(
        model,
        tokenizer,
        chat.encode_prompt(
            tokenizer,
            prompt["prompt"],
            settings["chat"],
            system=prompting.SYSTEM_PROMPTS[settings["prompting"]],
        ),
        settings["samples"],
        stop_ids=stop_ids,
        max_new_tokens=settings["max_new_tokens"],
        max_rows=settings["max_rows"],
        seed=[*seed, 0],
        stop_strings=[prompting.STOP_STRING],
    )
    return [
        [prompting.extract_answer(sample.text), list(sample.token_ids), sample.finished]
        for sample in samples
    ]


def with_mass(found: Divergence, samples: Sequence[Sample], trie: PrefixTrie | CdfTrie) -> dict:
    """A divergence as a dict whose mass on the output space is known for every prompt.

    Where the trie was too large for every path, the mass is the share of the samples that are
    canonical texts, an unbiased estimate, with its standard error.
    """
    values = found._asdict() | {"space_mass_standard_error": 0.0}
    if found.space_mass is None:
        mass = sum(is_canonical(trie, sample.token_ids) for sample in samples) / len(samples)
        values["space_mass"] = mass
        values["space_mass_standard_error"] = math.sqrt(mass * (1 - mass) / len(samples))
    return values


def is_canonical(trie: PrefixTrie | CdfTrie, path: tuple[int, ...]) -> bool:
    """Whether a token sequence is one of the target's texts with its end token."""
    try:
        return path[-1] in trie.next_tokens(path[:-1])[0]
    except KeyError:
        return False


def evaluate_or_read(part: Path, *arguments) -> dict:
    """`evaluate_prompt`, kept in a file; a part that an earlier run finished is read instead."""
    if part.exists():
        return files.read_json(part)
    result = evaluate_prompt(*arguments)
    files.write_atomic(part, json.dumps(result, allow_nan=False))
    return result


def write_cell(
    results: Sequence[tuple[str, int, dict, dict]], samples_path: Path, divergences_path: Path
) -> None:
    """Write the parts of all prompts as one Parquet and one JSONL file.

    Parameters
    ----------
    results : (split, row of the prompt in its split's file, prompt record, part) of each prompt
    """
    rows = [
        (split, index, number, text, token_ids, finished)
        for split, index, _, part in results
        for number, (text, token_ids, finished) in enumerate(part["samples"])
    ]
    columns = [list(column) for column in zip(*rows, strict=True)]
    table = pa.table(
        [
            pa.array(column, field.type)
            for column, field in zip(columns, SAMPLES_SCHEMA, strict=True)
        ],
        schema=SAMPLES_SCHEMA,
    )
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    divergences = [
        {
            "split": split,
            "prompt_index": index,
            "family": prompt["family"],
            "params": prompt["params"],
            "exact": part["divergence"]["prefixes"] is not None
            and part["divergence"]["paths"] is None,
            **part["divergence"],
        }
        for split, index, prompt, part in results
    ]
    files.write_atomic(divergences_path, files.to_jsonl(divergences))
    files.write_atomic(samples_path, buffer.getvalue())
