"""Perplexity of whole documents (Paper A, PALOMA).

A document longer than the context is read in overlapping windows, and every token is scored once,
in the window in which it has most context. Texts and windows come first, then what runs the model,
the file between the two programs, and the scores.
"""

import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from calibration_tuning import checkpoints, files
from calibration_tuning.errors import InputError, remake

STATUSES = ("scored", "short", "empty", "broken")
"""Of a row: scored; a text of fewer than two tokens; only white space; no text."""
SCHEMA = pa.schema(
    [
        ("data", pa.string()),
        ("document", pa.int32()),
        ("status", pa.string()),
        ("bytes", pa.int64()),
        ("tokens", pa.int64()),
        ("nll", pa.float64()),
    ]
)
"""A row a document: the data set, its place there, bytes of its text in UTF-8, tokens that were
scored, and their negative log-likelihood in nats (null unless scored)."""
RESAMPLES = 2000
LEVEL = 0.95
POSITIONS_AT_A_TIME = 256
"""Positions whose distribution over the vocabulary is held in float32."""


class Window(NamedTuple):
    """Tokens start to end, of which scored_from to end are scored; the ends are exclusive."""

    start: int
    end: int
    scored_from: int


def windows(tokens: int, context: int, stride: int) -> list[Window]:
    """The windows in which a document is read.

    The first token has no context and is not scored. Where stride is smaller than context, every
    other token is scored once, after at least context - stride tokens or all that there are; where
    it is the same, nor is the first token of any window.

    Parameters
    ----------
    tokens : int
        Of the document.
    context : int
        Most tokens of a window, 2 or more.
    stride : int
        Tokens from the start of a window to that of the next, 1 to context.

    Returns
    -------
    list of Window
        None for fewer than two tokens.

    Raises
    ------
    ValueError
        A context or stride out of range.
    """
    if context < 2 or not 1 <= stride <= context:
        raise ValueError(
            f"context {context}, stride {stride}: expected 1 <= stride <= context >= 2"
        )
    found, scored = [], 0
    for start in range(0, tokens, stride):
        end, scored_from = min(start + context, tokens), max(scored, start + 1)
        if scored_from < end:
            found.append(Window(start, end, scored_from))
        scored = end
        if end == tokens:
            break
    return found


def check_settings(settings: Mapping, model_directory: Path) -> None:
    """Refuse windows that make no sense or that the model has no positions for.

    Raises
    ------
    InputError
        One line, before the model's weights are read.
    """
    from transformers import AutoConfig

    context, stride = settings["context"], settings["stride"]
    if context < 2 or not 1 <= stride <= context:
        raise InputError(
            f"evaluations.perplexity: expected a context of 2 or more and a stride of 1 to "
            f"context, got context {context}, stride {stride}"
        )
    checkpoints.check_fetched(model_directory)
    config = AutoConfig.from_pretrained(model_directory, **checkpoints.OFFLINE)
    longest = getattr(config.get_text_config(), "max_position_embeddings", None)
    if longest is not None and context > longest:
        raise InputError(
            f"{model_directory / 'config.json'}: evaluations.perplexity.context: expected at most "
            f"{longest}, the model's max_position_embeddings, got {context}"
        )


def read_texts(path: Path, limit: int) -> list[str | None]:
    """The first rows of a data set as `texts.fetch_texts` gives them; None for a broken one.

    Raises
    ------
    InputError
        Names the file and line that is no such row, or says that there is none.
    """
    again, found = remake("fetch_data", path), []
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                text = json.loads(line)["text"]
                if not isinstance(text, str | None):
                    raise TypeError
                found.append(text)
                if number == limit:
                    break
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); {again}") from None
    except (ValueError, KeyError, TypeError):
        line = len(found) + 1
        raise InputError(
            f"{path}, line {line}: expected a JSON object with text; {again}"
        ) from None
    if not found:
        raise InputError(f"{path}: expected at least one document, found none; {again}")
    return found


def score_texts(
    cell, texts: Sequence[str | None], settings: Mapping, label: str, progress: Callable
) -> list[list]:
    """Score the texts of a data set.

    Parameters
    ----------
    cell : Cell
        The model and its tokenizer, which adds the special tokens that it adds to any text.
    texts : sequence of str or None
    settings : mapping
        context, stride, tokens_at_a_time.
    label : str
        Of the data set, for messages.
    progress : callable
        From the number of tokens to score to a progress bar, as tqdm makes it.

    Returns
    -------
    list of [status, bytes, tokens scored, nll in nats or None], one a text

    Raises
    ------
    InputError
        A document whose likelihood is no number.
    """
    context, stride = settings["context"], settings["stride"]
    documents = [_encode(cell.tokenizer, text) for text in texts]
    statuses = [_status(text, ids) for text, ids in zip(texts, documents, strict=True)]
    chosen = [index for index, status in enumerate(statuses) if status == "scored"]
    total = sum(_count(windows(len(documents[index]), context, stride)) for index in chosen)
    rows = [
        [status, len((text or "").encode()), 0, None]
        for text, status in zip(texts, statuses, strict=True)
    ]
    with progress(total=total) as bar:
        scores = score_documents(
            cell.model,
            [documents[index] for index in chosen],
            context,
            stride,
            settings["tokens_at_a_time"],
            bar.update,
        )
    for index, (nll, tokens) in zip(chosen, scores, strict=True):
        if not math.isfinite(nll):
            raise InputError(
                f"{label}: document {index}: the model's log-likelihood is {nll}; expected a "
                "finite number; the weights are damaged or overflow in this dtype"
            )
        rows[index][2:] = [tokens, nll]
    return rows


def _encode(tokenizer, text: str | None) -> list[int]:
    """Token ids of a text that is not blank; a text longer than the context is no mistake here."""
    if text is None or not text.strip():
        return []
    return list(tokenizer(text, verbose=False)["input_ids"])


def _status(text: str | None, token_ids: Sequence[int]) -> str:
    if text is None:
        return "broken"
    if not text.strip():
        return "empty"
    return "scored" if len(token_ids) > 1 else "short"


def _count(of_document: Sequence[Window]) -> int:
    """Tokens that are scored in some windows."""
    return sum(window.end - window.scored_from for window in of_document)


def score_documents(
    model,
    documents: Sequence[Sequence[int]],
    context: int,
    stride: int,
    tokens_at_a_time: int,
    on_done: Callable[[int], object] = lambda tokens: None,
) -> list[tuple[float, int]]:
    """Negative log-likelihood of documents, several windows in a forward pass.

    Parameters
    ----------
    model : a causal language model in evaluation mode
    documents : sequence of sequences of token ids
    context, stride : int
        See `windows`.
    tokens_at_a_time : int
        Most tokens of a forward pass, padding included; one window is read even if it has more.
    on_done : callable
        Called after each forward pass with the number of tokens it scored.

    Returns
    -------
    list of (nll in nats, tokens scored), one a document
        (0.0, 0) for a document of fewer than two tokens.
    """
    import torch  # here, since scoring a cell needs no more than what is above and below

    jobs = [
        (number, window)
        for number, ids in enumerate(documents)
        for window in windows(len(ids), context, stride)
    ]
    # Of one length together, and of one place to score from, since only from there on are logits
    # computed. The longest first: what does not fit into memory fails at once.
    jobs.sort(key=lambda job: (_length(job[1]), job[1].scored_from - job[1].start), reverse=True)
    nll, tokens = [0.0] * len(documents), [0] * len(documents)
    with torch.inference_mode():
        for batch in _batches(jobs, tokens_at_a_time):
            rows = [documents[number][window.start : window.end] for number, window in batch]
            offsets = [window.scored_from - window.start for _, window in batch]
            for (number, window), value in zip(batch, _score(model, rows, offsets), strict=True):
                nll[number] += value
                tokens[number] += window.end - window.scored_from
            on_done(_count([window for _, window in batch]))
    return list(zip(nll, tokens, strict=True))


def _length(window: Window) -> int:
    return window.end - window.start


def _batches(jobs: Sequence[tuple[int, Window]], tokens_at_a_time: int) -> list[Sequence]:
    """Cut jobs, the longest first, into runs whose padded windows have so many tokens at most."""
    batches, start = [], 0
    while start < len(jobs):
        rows = max(1, tokens_at_a_time // _length(jobs[start][1]))
        batches.append(jobs[start : start + rows])
        start += rows
    return batches


def _score(model, rows: Sequence[Sequence[int]], offsets: Sequence[int]) -> list[float]:
    """Negative log-likelihood in nats of each row from its offset on, in one forward pass.

    Padding is on the right, where no token of a causal model sees it.
    """
    import torch

    longest, first = max(map(len, rows)), min(offsets) - 1
    token_ids = torch.zeros((len(rows), longest), dtype=torch.int64)
    mask = torch.zeros_like(token_ids)
    for index, row in enumerate(rows):
        token_ids[index, : len(row)] = torch.as_tensor(row)
        mask[index, : len(row)] = 1
    device = model.device
    logits = model(
        input_ids=token_ids.to(device),
        attention_mask=mask.to(device),
        logits_to_keep=torch.arange(first, longest - 1, device=device),
        use_cache=False,
    ).logits
    targets = token_ids.to(logits.device)
    return [
        _row_nll(
            logits[index, offset - 1 - first : len(row) - 1 - first],
            targets[index, offset : len(row)],
        )
        for index, (row, offset) in enumerate(zip(rows, offsets, strict=True))
    ]


def _row_nll(logits, targets) -> float:
    """Sum of the targets' negative log-likelihoods; logits (positions, vocabulary)."""
    import torch

    pieces = zip(logits.split(POSITIONS_AT_A_TIME), targets.split(POSITIONS_AT_A_TIME), strict=True)
    losses = [
        torch.nn.functional.cross_entropy(some.float(), wanted, reduction="none").double().sum()
        for some, wanted in pieces
    ]
    return float(torch.stack(losses).sum())


def write_samples(path: Path, scored: Mapping[str, Sequence[Sequence]]) -> None:
    """Write the rows of `score_texts` of each data set, by its name, as Parquet."""
    rows = [
        (name, number, *row) for name, rows in scored.items() for number, row in enumerate(rows)
    ]
    columns = [list(column) for column in zip(*rows, strict=True)]
    arrays = [pa.array(c, field.type) for c, field in zip(columns, SCHEMA, strict=True)]
    buffer = io.BytesIO()
    pq.write_table(pa.table(arrays, schema=SCHEMA), buffer, compression="zstd")
    files.write_atomic(path, buffer.getvalue())


def read_samples(path: Path) -> pd.DataFrame:
    """What `write_samples` wrote.

    Raises
    ------
    InputError
        If it has no such columns, no rows or values that cannot be.
    """
    again, names = remake("sample_perplexity", path), SCHEMA.names
    try:
        frame = pd.read_parquet(path, columns=names)
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"{path}: expected Parquet with columns {', '.join(names)} ({reason}); {again}"
        ) from error
    scored = frame["status"] == "scored"
    if (
        frame.empty
        or frame.drop(columns="nll").isna().any(axis=None)
        or not frame["status"].isin(STATUSES).all()
        or not (frame["nll"].notna() == scored).all()
        or not (frame.loc[scored, ["tokens", "bytes"]] > 0).all(axis=None)
    ):
        raise InputError(
            f"{path}: expected documents with a status of {', '.join(STATUSES)}, and tokens, bytes "
            f"and nll of each that is scored; {again}"
        )
    return frame


def score_cell(frame: pd.DataFrame, seed: int) -> dict:
    """Metrics of a cell's documents, by data set.

    Perplexity is exp of the nats a scored token; bits per byte divides by the bytes of the whole
    texts instead, so that tokenizers can be compared. The intervals draw documents.

    Parameters
    ----------
    frame : DataFrame
        A row a document, as `read_samples` gives them.
    seed : int
        Of the bootstrap.

    Returns
    -------
    dict
        "splits": from data set to counts and "metrics"; a data set without a scored document has
        no perplexity (None).
    """
    splits = {}
    for name, rows in frame.groupby("data", sort=False):
        rows = rows.sort_values("document")
        scored = rows[rows["status"] == "scored"]
        counts = rows["status"].value_counts()
        metrics = _rates(*(scored[c].to_numpy() for c in ("nll", "tokens", "bytes")), seed)
        for metric, status in (
            ("documents_short", "short"),
            ("documents_empty", "empty"),
            ("rows_broken", "broken"),
        ):
            metrics[metric] = _metric(int(counts.get(status, 0)), len(rows))
        splits[name] = {
            "prompts": len(scored),
            "samples": int(scored["tokens"].sum()),
            "metrics": metrics,
        }
    return {"splits": splits}


def _rates(nll: np.ndarray, tokens: np.ndarray, size: np.ndarray, seed: int) -> dict:
    """Perplexity and bits per byte of some documents, with percentile bootstrap intervals."""
    n = len(nll)
    if n == 0:
        return {name: _metric(None, 0) for name in ("perplexity", "bits_per_byte")}
    totals = np.array([[nll.sum(), tokens.sum(), size.sum()]])
    if n > 1:
        rng, values = np.random.default_rng(seed), np.stack([nll, tokens, size], axis=1)
        drawn = [values[rng.integers(n, size=n)].sum(axis=0) for _ in range(RESAMPLES)]
        totals = np.concatenate([totals, drawn])
    nats, bits = totals[:, 0] / totals[:, 1], totals[:, 0] / totals[:, 2] / math.log(2)
    return {
        "perplexity": _with_interval(nats, n, _exp),
        "bits_per_byte": _with_interval(bits, n, float),
    }


def _with_interval(values: np.ndarray, n: int, scale: Callable) -> dict:
    """A metric of a value and its resampled ones, which follow it.

    The scale, which keeps the order, comes after the quantiles: exp may overflow.
    """
    mean, resampled = scale(values[0]), values[1:]
    if resampled.size == 0:
        return _metric(mean, n)
    low, high = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return _metric(mean, n, scale(low), scale(high))


def _exp(value: float) -> float | None:
    """None for what JSON can't hold."""
    try:
        return math.exp(value)
    except OverflowError:
        return None


def _metric(
    value: float | None, n: int, low: float | None = None, high: float | None = None
) -> dict:
    return {"mean": value, "low": low, "high": high, "n": n}
