"""Structured sampling, the part that runs the model (Paper A, structured sampling).

Each selected prompt is sampled and its divergence from the target measured. A prompt's part is
stored as soon as it is done, so a run that is killed goes on where it was.
"""

import math
import re
from collections.abc import Sequence
from pathlib import Path

from calibration_tuning import chat, files
from calibration_tuning.divergences import Divergence, divergence
from calibration_tuning.evaluations.samples import write_samples
from calibration_tuning.families import Distribution
from calibration_tuning.sampling import Sample, sample_completions
from calibration_tuning.trie import CdfTrie, PrefixTrie, build_trie

_NUMBER_SO_FAR = re.compile(r"\s*[+-]?[0-9]*(\.[0-9]*)?([eE][+-]?[0-9]*)?\s*")

# Of a method whose divergence is not known. After a system prompt an answer's probability is a sum
# over every way to get there.
NO_DIVERGENCE = dict.fromkeys((*Divergence._fields, "space_mass_standard_error"))


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
        divergence_max_bins, exact_prefixes, sampled_paths, chat; decoding, for a method that draws
        in another way
    stop_ids : tokens that end an answer
    seed : random stream of this prompt

    Returns
    -------
    dict with "samples" (list of [text, token ids, finished]) and "divergence". With min-p there is
    no divergence, since texts of the target have probability 0.
    """
    decoding = settings.get("decoding", {})
    prompt_ids = chat.encode_prompt(tokenizer, prompt["prompt"], settings["chat"])
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
        **decoding,
    )
    answers = [[sample.text, list(sample.token_ids), sample.finished] for sample in samples]
    if decoding.get("min_p", 0) > 0:
        return {"samples": answers, "divergence": NO_DIVERGENCE}
    trie = build_trie(
        Distribution(prompt["family"], prompt["params"]),
        settings["decimals"],
        settings["divergence_max_bins"],
        chat.completion_encoder(tokenizer),
        chat.end_of_turn_id(tokenizer, settings["chat"]),
    )
    found = divergence(
        model,
        prompt_ids,
        trie,
        exact_prefixes=settings["exact_prefixes"],
        sampled_paths=settings["sampled_paths"],
        seed=[*seed, 1],
        temperature=decoding.get("temperature", 1.0),
    )
    return {"samples": answers, "divergence": with_mass(found, samples, trie)}


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


def write_cell(
    results: Sequence[tuple[str, int, dict, dict]], samples_path: Path, divergences_path: Path
) -> None:
    """Write the parts of all prompts as one Parquet and one JSONL file.

    Parameters
    ----------
    results : (split, row of the prompt in its split's file, prompt record, part) of each prompt
    """
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
    write_samples(
        samples_path, [(split, index, part["samples"]) for split, index, _, part in results]
    )
