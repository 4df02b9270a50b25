"""Values in files of rows: JSON, JSON Lines, CSV, parquet or Arrow."""

import ast
import csv
import json
import re
import sys
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import msgspec

from atommem.errors import DataError
from atommem.text_safety import clean

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
# An array in a text, as numpy prints it: ['Ann' "O'Neil" 3] or array(['Ann'], dtype=object).
_ARRAY = re.compile(r"\barray\((\[[^\[\]]*\])(?:,\s*dtype=[^)]*)?\)")
_ARRAY_ITEM = re.compile(
    r"""('(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+"|[-+.\w]++|\])(\s+(?=["'\[\d-]))?""", re.DOTALL
)
_REFUSED = (
    (b"version https://git-lfs", "is a pointer of Git LFS. Get the file with: git lfs pull"),
    (b"\x1f\x8b", "is compressed. Unpack it: gunzip"),
    (b"PK\x03\x04", "is an archive. Unpack it: unzip"),
    (b"\x28\xb5\x2f\xfd", "is compressed. Unpack it: unzstd"),
)
"""First bytes of files that cannot be read as they are."""


def read_values(path: Path) -> Iterator[Any]:
    """Yield the values of a file, None for a blank line; its first bytes tell the format.

    DataError: it is of another format. OSError, ValueError, RecursionError, csv.Error: damaged.
    """
    with path.open("rb") as file:
        head = file.read(4096).removeprefix(BOM_UTF8).lstrip()
    for start, problem in _REFUSED:
        if head.startswith(start):
            raise DataError(f"{path}: {problem} {path.name}")
    if head.startswith((b"PAR1", b"ARROW1", b"\xff\xff\xff\xff")):
        yield from _arrow_rows(path, head)
    elif path.suffix.lower() in (".csv", ".tsv"):
        is_utf16 = head.startswith((BOM_UTF16_LE, BOM_UTF16_BE))  # Excel's "Unicode text"
        yield from _without_quotes(lambda: _csv_rows(path, "utf-16" if is_utf16 else "utf-8-sig"))
    elif head.startswith(b"["):
        yield from _list_items(path)
    elif head.startswith(b"{"):
        if head.split(b"\n")[0].strip() == b"{":
            raise DataError(f"{path}: is one JSON object. Give the list in it: jq .KEY {path.name}")
        with path.open("rb") as lines:
            for line in lines:
                text = line.decode("utf-8-sig").strip()
                yield load_json(text) if text else None
    else:
        found = f"starts with {head[:20].decode('utf-8', 'replace')!r}" if head else "is empty"
        raise DataError(
            f"{path}: {found}, expected a JSON list, JSON Lines (in UTF-8), .csv, parquet or Arrow "
            "file. Give one of these."
        )


def _list_items(path: Path) -> Iterator[Any]:
    """Yield the items of a JSON list, of which one at a time is decoded."""
    with path.open("rb") as file:
        content = memoryview(mmap(file.fileno(), 0, access=ACCESS_READ))
    if content[: len(BOM_UTF8)] == BOM_UTF8:
        content = content[len(BOM_UTF8) :]
    try:
        items = msgspec.json.decode(content, type=list[msgspec.Raw])
    except msgspec.DecodeError:  # lone surrogates are not for msgspec; the others say where
        yield from load_json(str(content, "utf-8"))
    else:
        yield from (load_json(str(memoryview(item), "utf-8")) for item in items)


def _csv_rows(path: Path, encoding: str) -> Iterator[dict[str | Any, Any]]:
    """Yield the rows of a table whose header has commas, semicolons, tabs or bars; "" is absent."""
    csv.field_size_limit(sys.maxsize)
    with path.open(encoding=encoding, newline="") as file:
        delimiter = max(",;\t|", key=file.readline().count)
        file.seek(0)
        for row in csv.DictReader(file, delimiter=delimiter, skipinitialspace=True, strict=True):
            if None in row:
                raise ValueError(f"{len(row[None])} values more than the header has names")
            yield {k: None if v in ("", "nan", "NaN", "NaT", "<NA>") else v for k, v in row.items()}


def _arrow_rows(path: Path, head: bytes) -> Iterator[Any]:
    """Yield the rows of a parquet file or of an Arrow file or stream (`Dataset.save_to_disk`)."""
    import pyarrow  # here: JSON files are read without it
    from pyarrow import parquet

    if head.startswith(b"PAR1"):
        with parquet.ParquetFile(path) as table:
            batches = partial(table.iter_batches, batch_size=128)
            yield from _without_quotes(lambda: chain.from_iterable(map(_plain, batches())))
    else:
        is_file = head.startswith(b"ARROW1")
        with pyarrow.memory_map(str(path)) as source:
            reader: Any = (pyarrow.ipc.open_file if is_file else pyarrow.ipc.open_stream)(source)
            found = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
            yield from chain.from_iterable(map(_plain, found))


def _without_quotes(rows: Callable[[], Iterable[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Decode the columns of JSON in texts, some of them quoted: mixed types, as pandas has them."""
    known: set[str] | None = None
    quoted: set[str] = set()
    with suppress(ValueError, csv.Error):  # raised again below, where rows are counted
        for row in rows():
            known = {*row} if known is None else known
            for name in [*known]:
                for text in _items(row.get(name)):
                    if decoded(text) is text:
                        known.discard(name)
                    elif text.startswith('"'):
                        quoted.add(name)
            if not known:
                break
    for row in rows():
        for name in (known or set()) & quoted & row.keys():
            value = row[name]
            row[name] = [*map(decoded, value)] if isinstance(value, list) else decoded(value)
        yield row


def _items(value: Any) -> list[Any]:
    return [item for item in (value if isinstance(value, list) else [value]) if item is not None]


def _plain(batch: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of an Arrow batch; `datasets` stores values of mixed types as JSON."""
    fields = [field for field in batch.schema if "arrow.json" in str(field.type)]
    for row in batch.to_pylist():
        yield row | {field.name: _parse_json(row[field.name], field.type) for field in fields}


def _parse_json(value: Any, kind: Any) -> Any:
    if value is None or "arrow.json" not in str(kind):
        return value
    if isinstance(value, str):
        return load_json(value)
    if isinstance(value, dict):
        return {name: _parse_json(item, kind.field(name).type) for name, item in value.items()}
    return [_parse_json(item, kind.value_type) for item in value]


def decoded(value: Any) -> Any:
    """Return the value of a text that is JSON, a Python literal or numpy's; others as they are."""
    if not isinstance(value, str):
        return value
    with suppress(ValueError, RecursionError):
        return load_json(value)
    if value in ("True", "False") or value.lstrip().startswith(("[", "{", "(", "array(")):
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            lists = _ARRAY.sub(r"\1", value)
            commas = _ARRAY_ITEM.sub(lambda item: item[1] + "," * bool(item[2]), lists)
            return ast.literal_eval(commas)
    return value


def load_json(text: str) -> Any:
    """Parse JSON; lone surrogates, which no tokenizer or file accepts, become U+FFFD.

    ValueError: it is not JSON, which has no NaN and no Infinity.
    """
    value = json.loads(text, parse_constant=_refuse_constant)
    if not _SURROGATE.search(text):
        return value
    return json.loads(clean(json.dumps(value, ensure_ascii=False)))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON: write null")
