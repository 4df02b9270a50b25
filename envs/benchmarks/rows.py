"""Rows of files, whose errors name row and field, and the benchmarks' questions in them.

All formats give equal rows: null is absent, and text that stands for a list, object or number is
decoded where a reader asks for one.
"""

import csv
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import inspect

from atommem.config import check_choice
from atommem.envs.benchmarks.formats import decoded, read_values
from atommem.envs.task import Document, Question, Task
from atommem.errors import ConfigError, DataError, suggest_path
from atommem.files import load_beside

Text = Annotated[str, msgspec.Meta(min_length=1)]
"""The type of a field that must not be empty. (msgspec 0.22 crashes on a `pattern` in unions.)"""
_Kind = TypeVar("_Kind")
_FILES: dict[str, dict[str, list[str]]] = load_beside(__file__, "files.yaml")


@dataclass(frozen=True, slots=True)
class QARow:
    """One question of a benchmark with its paragraphs."""

    question: Question  # with ``type``, ``hops`` and further fields of the benchmark as metadata
    paragraphs: tuple[Document, ...] = ()  # without repetitions; `gold` marks the supporting ones
    answerable: bool = True  # whether all supporting paragraphs are among these
    place: str = field(default="", compare=False)  # file and row, for messages


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
        return DataError(f"{self.place}: field {name!r} {problem}. Correct the row.")

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
        return self.convert(name, self.values.get(name, ""), str)

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
        return self.convert(name, found, list[kind])

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
            raise DataError(f"{self.place}: {problem}. Correct the row.") from error


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
        for number, value in enumerate(read_values(path), start=1):
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
        fix = "If it was truncated, download it again."
        if isinstance(error, UnicodeDecodeError):
            fix = "If it is not in UTF-8, convert it: iconv -f ENCODING -t utf-8."
        raise DataError(f"{path}: row {number + 1} is damaged ({error}). {fix}") from error


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
                return {k: _fit(v, types.get(k, inspect.AnyType())) for k, v in value.items()}
    return value


def listed(value: Any) -> list[Any]:
    """Return a list, perhaps of JSON in a text; anything else is the only item of one."""
    items = decoded(value)
    return items if isinstance(items, list) else [value]


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


TABLE = "table"


@dataclass(frozen=True)
class Columns:
    """Names of columns; ``answers.text`` is the field `text` of the objects in `answers`."""

    question: str
    answer: str
    text: str
    id: str | None = None


_BODIES = ("text", "sentences", "paragraph_text", "passage_text", "content")
"""Names that the text of a passage has in tables."""


def read_table(rows: Iterable[Row], columns: Columns, left_out: list[int]) -> Iterator[Task]:
    """Yield the tasks of rows; the numbers of those without an answer are added to `left_out`."""
    numbers: dict[str, int] = {}
    for row in rows:
        if (task := _parse(row, columns)) is None:
            left_out.append(row.number)
            continue
        if (first := numbers.setdefault(task.id, row.number)) != row.number:
            raise row.error(columns.id or "", f"is {task.id!r}, as in row {first}; ids must differ")
        yield task
    if left_out and not numbers:
        known = ", ".join(map(repr, row.values))
        raise row.error(columns.answer, f"is missing or empty, in all rows; this one has {known}")


def _parse(row: Row, columns: Columns) -> Task | None:
    """Return the task of a row, None if it has no answer.

    Of several answers each is right, and of a whole number that pandas made a float (``3.0``) both
    forms. The text may be a list of passages (`Row.pairs`), or their columns.
    """
    given = decoded(_value(row, columns.answer, []))
    if isinstance(given, dict):
        problem = f"has fields: name one of {columns.answer}.{f', {columns.answer}.'.join(given)}"
        raise row.error(columns.answer, problem)
    golds = row.convert(columns.answer, listed(_value(row, columns.answer, [])), list[bool | str])
    texts = (("no", "yes")[gold] if isinstance(gold, bool) else gold.strip() for gold in golds)
    forms = (form for text in texts for form in (re.sub(r"^(-?\d+)\.0$", r"\1", text), text))
    answers = tuple(dict.fromkeys(filter(None, forms)))
    if not answers:
        return None
    task_id = f"{TABLE}-{row.number - 1:05d}"
    if columns.id is not None:
        task_id = row.convert(columns.id, _value(row, columns.id), Text)
    question = row.convert(columns.question, _value(row, columns.question), Text).strip()
    asked = (Question(question, answers, task_id),)
    text = _value(row, columns.text)
    passages = decoded(text) if isinstance(text, str) and text.startswith(("[", "{")) else text
    if not isinstance(passages, list | dict):
        return Task(task_id, asked, context=row.convert(columns.text, text, Text), source=TABLE)
    found = row.pairs(columns.text, passages, tuple[str, Text | list[str]], *_BODIES)
    documents = (Document(title, "".join(parts)) for title, parts in found)
    return Task(task_id, asked, tuple(documents), source=TABLE)


def _value(row: Row, column: str, default: Any = None) -> Any:
    names = [column] if column in row.values else column.split(".")
    value: Any = row.values
    for name in names:
        objects = map(decoded, value if isinstance(value, list) else [value])
        items = [item.get(name) for item in objects if isinstance(item, dict)]
        items = [item for item in items if item is not None]
        value = items if isinstance(value, list) else next(iter(items), None)
    if value is None and default is None:
        row.get(column)
    return default if value is None else value


def find_rows(name: str, split: str | None = None, subset: str | None = None) -> Iterator[Row]:
    """Yield the rows of a file, else of a folder or hub name that `datasets` loads."""
    path = Path(name)
    if path.is_file():
        if split or subset:
            raise ConfigError(f"split, subset: {name} is a file, which has none. Leave them out.")
        return read_rows(path)
    if not path.exists() and path.suffix in (".csv", ".tsv", ".json", ".jsonl", ".parquet"):
        raise DataError(f"{name}: there is no such file{suggest_path(path)}.")
    folder = path if split is None else path / split
    if shards := sorted(folder.glob("data-*.arrow")):  # of `Dataset.save_to_disk`
        found: Iterable[Any] = (row.values for shard in shards for row in read_rows(shard))
    else:
        found = _load_dataset(name, split, subset)
    return (Row(path, number, without_nulls(row)) for number, row in enumerate(found, start=1))


def _load_dataset(name: str, split: str | None, subset: str | None) -> Iterable[Any]:
    import datasets

    try:
        found = datasets.load_dataset(name, subset, split=split)
    except (OSError, ValueError) as error:  # of names, splits, files and the network
        problem = str(error).partition("\n")[0]
        raise DataError(
            f"{name}: cannot be loaded ({problem}). Give a file, or a name of the hub."
        ) from error
    if split is None:
        if len(found) > 1:
            raise DataError(f"{name}: has the splits {', '.join(found)}. Give one as --split.")
        (found,) = found.values()
    return found
