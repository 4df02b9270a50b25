"""Rows of files: JSON, JSON Lines, CSV, parquet or Arrow; errors name row and field.

All formats give equal rows: null is absent, and text that stands for a list, object or number is
decoded where a reader asks for one.
"""

import ast
import csv
import json
import math
import re
import sys
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from functools import partial
from itertools import chain
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import yaml
from msgspec import inspect

from atommem.config import check_choice
from atommem.envs.task import Document
from atommem.errors import DataError, suggest_path
from atommem.text_safety import clean

Text = Annotated[str, msgspec.Meta(min_length=1)]
"""The type of a field that must not be empty. (msgspec 0.22 crashes on a `pattern` in unions.)"""
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
_Kind = TypeVar("_Kind")
_FILES: dict[str, dict[str, list[str]]] = yaml.safe_load(
    Path(__file__).with_name("files.yaml").read_bytes()
)


@dataclass(frozen=True, slots=True)
class QARow:
    """One question of a benchmark with its paragraphs.

    Attributes:
        answers: The gold answer, then its aliases.
        paragraphs: Without repetitions; `gold` marks the supporting ones.
        answerable: Whether all supporting paragraphs are among `paragraphs`.
        metadata: ``type``, ``hops`` and further fields of the benchmark.
        place: File and row, for messages.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    paragraphs: tuple[Document, ...]
    source: str
    answerable: bool = True
    metadata: dict[str, Any] = field(default_factory=dict)
    place: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a file, numbered from 1 (in JSON Lines by its line). All readers raise DataError."""

    path: Path
    number: int
    values: dict[str, Any]

    @property
    def place(self) -> str:
        return f"{self.path}: row {self.number}"

    def error(self, name: str, problem: str) -> DataError:
        return DataError(
            f"{self.place}: field {name!r} {problem}. Correct the row, or download the file again."
        )

    def get(self, *names: str) -> Any:
        """Return the value of the first of `names` that the row has."""
        for name in names:
            if name in self.values:
                return self.values[name]
        known = ", ".join(map(repr, self.values))
        raise self.error(names[0], f"is missing; the row has {known or 'no fields'}")

    def text(self, *names: str) -> str:
        """Return a text that is not empty."""
        return self.convert(names[0], self.get(*names), Text)

    def optional_text(self, name: str) -> str:
        """Return a text, or "" if the field is missing."""
        text: str = self.convert(name, self.values.get(name, ""), str)
        return text

    def pairs(self, name: str, value: Any, kind: Any, *keys: str) -> list[tuple[str, Any]]:
        """Return title and other half of the items of a field, as tuples of a `kind`.

        They are pairs, objects with one of `keys`, columns of these, texts alone, or JSON of any.
        """
        try:
            value = decoded(value)
            if isinstance(value, dict):
                halves = next(value[key] for key in keys if key in value)
                value = zip(value.get("title", [""] * len(halves)), halves, strict=True)
            found = [_pair(decoded(item), keys) for item in value]
        except (StopIteration, TypeError, ValueError) as error:
            raise self.error(name, f"does not have pairs of title and {keys[0]}") from error
        pairs: list[tuple[str, Any]] = self.convert(name, found, list[kind])
        return pairs

    def parse(self, kind: type[_Kind]) -> _Kind:
        return self.convert("", self.values, kind)

    def convert(self, name: str, value: Any, kind: Any) -> Any:
        """Return the value of a field as a `kind`, checked by msgspec."""
        with suppress(msgspec.ValidationError):
            return msgspec.convert(value, kind)
        try:
            return msgspec.convert(_fit(value, inspect.type_info(kind)), kind)
        except msgspec.ValidationError as error:
            problem = str(error).replace("`$", f"`{name}").replace("`.", "`")
            if f"`{name}" not in problem:
                problem += f" - at `{name}`"
            raise DataError(
                f"{self.place}: {problem}. Correct the row, or download the file again."
            ) from error


def _pair(item: Any, keys: Sequence[str]) -> Any:
    if isinstance(item, dict):
        return item.get("title", ""), next(item[key] for key in keys if key in item)
    if isinstance(item, str):
        return "", item
    if all(isinstance(half, str) for half in item):  # each may be JSON, as `datasets` stores them
        return [decoded(half) if half.startswith('"') else half for half in item]
    return item


def read_rows(path: str | Path) -> Iterator[Row]:
    """Read the rows of a file; its first bytes tell the format, of CSV the name (.csv, .tsv)."""
    path, number = Path(path), 0
    try:
        for number, value in enumerate(_values(path), start=1):
            if value is None:  # a blank line
                continue
            if not isinstance(value, dict):
                raise DataError(f"{path}: row {number} is {value!r:.60}, expected an object.")
            yield Row(path, number, without_nulls(value))
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror or error}){suggest_path(path)}. "
            "Check the name and its permissions."
        ) from error
    except (ValueError, RecursionError, csv.Error) as error:  # of JSON, UTF-8 and Arrow
        raise DataError(
            f"{path}: row {number + 1} is damaged or not in UTF-8 ({error}). If the file is "
            "truncated, download it again."
        ) from error


def _values(path: Path) -> Iterator[Any]:
    with path.open("rb") as file:
        head = file.read(4096).removeprefix(BOM_UTF8).lstrip()
    for start, problem in _REFUSED:
        if head.startswith(start):
            raise DataError(f"{path}: {problem} {path.name}")
    if head.startswith((b"PAR1", b"ARROW1", b"\xff\xff\xff\xff")):
        yield from _arrow_rows(path, head)
        return
    if path.suffix.lower() in (".csv", ".tsv"):
        yield from _without_quotes(lambda: _csv_rows(path))
    elif head.startswith(b"["):
        yield from _list_items(path)
    elif head.startswith(b"{"):
        if head.split(b"\n")[0].strip() == b"{":
            raise DataError(
                f"{path}: is one JSON object. Give the list in it: jq .NAME {path.name}"
            )
        with path.open("rb") as lines:
            for line in lines:
                text = line.decode("utf-8-sig").strip()
                yield load_json(text) if text else None
    else:
        raise DataError(
            f"{path}: starts with {head[:20].decode('utf-8', 'replace')!r}, expected a JSON list, "
            "JSON Lines (in UTF-8), .csv, parquet or Arrow file. Give one of these."
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


def _csv_rows(path: Path) -> Iterator[dict[str | Any, Any]]:
    """Yield the rows of a table whose header has commas, semicolons, tabs or bars; "" is absent."""
    csv.field_size_limit(sys.maxsize)
    with path.open(encoding="utf-8-sig", newline="") as file:
        delimiter = max(",;\t|", key=file.readline().count)
        file.seek(0)
        table = csv.DictReader(file, delimiter=delimiter, skipinitialspace=True, strict=True)
        for row in table:
            if None in row:
                raise ValueError(f"{len(row[None])} values more than the header has names")
            yield {k: None if v in ("", "nan", "NaN", "NaT", "<NA>") else v for k, v in row.items()}


def _arrow_rows(path: Path, head: bytes) -> Iterator[Any]:
    """Yield the rows of a parquet file or of an Arrow file or stream (`Dataset.save_to_disk`)."""
    pyarrow, parquet = import_pyarrow()
    if head.startswith(b"PAR1"):
        with parquet.ParquetFile(path) as table:
            batches = partial(table.iter_batches, batch_size=128)
            yield from _without_quotes(lambda: chain.from_iterable(map(_plain, batches())))
    else:
        is_file = head.startswith(b"ARROW1")
        with pyarrow.memory_map(str(path)) as source:
            reader = (pyarrow.ipc.open_file if is_file else pyarrow.ipc.open_stream)(source)
            numbers = range(reader.num_record_batches) if is_file else ()
            for batch in map(reader.get_batch, numbers) if is_file else reader:
                yield from _plain(batch)


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


def without_nulls(value: Any) -> Any:
    """Drop members of objects that are null (or NaN, as pandas has it), at any depth.

    Arrow gives each object of a column the names of all of them.
    """
    if isinstance(value, dict):
        return {name: without_nulls(item) for name, item in value.items() if not _is_null(item)}
    return [*map(without_nulls, value)] if isinstance(value, list) else value


def _is_null(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _fit(value: Any, kind: inspect.Type) -> Any:
    """Decode texts where `kind` has none (nested JSON, numbers of CSV), and make texts of numbers.

    A whole number is written without its ".0", which comes from pandas.
    """
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    kinds = tuple(one.type if isinstance(one, inspect.Metadata) else one for one in kinds)
    is_text = any(isinstance(one, inspect.StrType) for one in kinds)
    if is_text and isinstance(value, int | float | Decimal | date) and not isinstance(value, bool):
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        return str(value).removesuffix(" 00:00:00")
    if isinstance(value, str):
        if is_text or any(isinstance(one, inspect.AnyType) for one in kinds):
            return value
        if any(isinstance(one, inspect.LiteralType) and value in one.values for one in kinds):
            return value
        value = without_nulls(decoded(value))
    for one in kinds:
        if isinstance(value, list | tuple):
            if isinstance(one, inspect.ListType | inspect.VarTupleType):
                return [_fit(item, one.item_type) for item in value]
            if isinstance(one, inspect.TupleType) and len(one.item_types) == len(value):
                return [*map(_fit, value, one.item_types)]
        elif isinstance(value, dict):
            if isinstance(one, inspect.ListType) and {*map(type, value.values())} == {list}:
                columns = zip(*value.values(), strict=False)  # as old `datasets` has objects
                return [_fit(dict(zip(value, row, strict=True)), one.item_type) for row in columns]
            if isinstance(one, inspect.DictType):
                return {name: _fit(item, one.value_type) for name, item in value.items()}
            if isinstance(one, inspect.StructType | inspect.DataclassType):
                types = {field.name: field.type for field in one.fields}
                return {
                    name: _fit(item, types[name]) if name in types else item
                    for name, item in value.items()
                }
    return value


def decoded(value: Any) -> Any:
    """Return the value of a text that is JSON, a Python literal or numpy's; others as they are."""
    if not isinstance(value, str):
        return value
    with suppress(ValueError, RecursionError):
        return load_json(value)
    if value in ("True", "False") or value.lstrip().startswith(("[", "{", "(", "array(")):
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            commas = _ARRAY_ITEM.sub(
                lambda item: item[1] + "," * bool(item[2]), _ARRAY.sub(r"\1", value)
            )
            return ast.literal_eval(commas)
    return value


def listed(value: Any) -> list[Any]:
    """Return a list, perhaps of JSON in a text; anything else is the only item of one."""
    items = decoded(value)
    return items if isinstance(items, list) else [value]


def import_pyarrow() -> tuple[Any, Any]:
    """Import pyarrow and pyarrow.parquet; JSON files work without them."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(
            f"parquet files need pyarrow ({error}). Install it: pip install 'atommem[data]'."
        ) from error
    return pyarrow, pyarrow.parquet


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


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark of ``files.yaml``; `parse` makes one of its questions of a row."""

    name: str
    parse: Callable[[Row], QARow]

    @property
    def files(self) -> Mapping[str, Sequence[str]]:
        return _FILES[self.name]

    def read(self, path: str | Path) -> Iterator[QARow]:
        """Yield the questions of a file; DataError if it is damaged or has another layout."""
        return map(self.parse, read_rows(path))

    def find(self, split: str, path: str | Path) -> list[Path]:
        """Return `path` if it is a file, else the files of `split` in its folder `name` or it."""
        path = Path(path)
        check_choice("split", split, tuple(self.files))
        if path.is_file():
            named = [other for other, names in self.files.items() if any(map(path.match, names))]
            if named and split not in named:
                raise DataError(f"{path}: is the {named[0]} file by its name. Give its split.")
            return [path]
        # The subfolder comes first: any benchmark may have a dev.json.
        for folder in (path / self.name, path):
            for pattern in self.files[split]:
                if found := sorted(folder.glob(pattern)):
                    _check_shards(found)
                    return found
        raise DataError(
            f"{path}{suggest_path(path)}: no {split} file of {self.name} here or in the folder "
            f"{self.name}; looked for {', '.join(self.files[split])}. Give the file or its folder."
        )


def _check_shards(files: list[Path]) -> None:
    """Raise if ``NAME-00000-of-00002.parquet`` has another number of shards than its name has."""
    count = files[0].stem.rpartition("-of-")[2]
    if "-of-" in files[0].stem and len(files) != int(count):
        raise DataError(
            f"{files[0].parent}: has {len(files)} shards such as {files[0].name}, expected "
            f"{int(count)}. Give all shards of one release and no others."
        )
