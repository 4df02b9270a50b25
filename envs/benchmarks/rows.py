"""Rows of JSON, JSON Lines and parquet files, with errors that name file, row and field."""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atommem.envs.task import Document
from atommem.errors import DataError, suggest_path
from atommem.text_safety import clean

_ARCHIVES = (b"\x1f\x8b", b"PK\x03\x04", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True)
class QARow:
    """One question of a benchmark with its paragraphs.

    Attributes:
        answers: The gold answer, then its aliases.
        paragraphs: Without repetitions; `gold` marks the supporting ones.
        source: The benchmark's name.
        answerable: Whether all supporting paragraphs are among `paragraphs`.
        place: File and row, for messages.
        metadata: ``type``, ``hops`` (supporting steps), ``supporting`` (pairs of title and sentence
            index, or None if the file names no sentence), and further fields of the benchmark.
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
    """A row of a file, or an object within one. All readers raise DataError.

    Attributes:
        number: From 1; in JSON Lines the line.
        within: Prefix of the names of its fields, for an object within a row (``qa[3].``).
    """

    path: Path
    number: int
    values: dict[str, Any]
    within: str = ""

    @property
    def place(self) -> str:
        """File and row."""
        return f"{self.path}: row {self.number}"

    def error(
        self, name: str, problem: str, fix: str = "Correct the row, or download the file again"
    ) -> DataError:
        """Return the error to raise for a field."""
        return DataError(f"{self.place}: field {self.within + name!r} {problem}. {fix}.")

    def get(self, *names: str) -> Any:
        """Return the value of the first of `names` that the row has."""
        for name in names:
            if name in self.values:
                return self.values[name]
        other = "".join(f" (or {name!r})" for name in names[1:])
        holder = "the object" if self.within else "the row"
        fields = ", ".join(map(repr, self.values)) or "no fields"
        raise self.error(names[0], f"is missing{other}; {holder} has {fields}")

    def text(self, *names: str) -> str:
        """Return a string that is not blank."""
        return self.check_text(names[0], self.get(*names))

    def text_or_number(self, *names: str) -> str:
        """Return a string that is not blank, or a number as a string."""
        value = self.get(*names)
        return str(value) if type(value) in (int, float) else self.check_text(names[0], value)

    def optional_text(self, name: str) -> str:
        """Return a string that is not blank, or "" if the field is missing, null or empty."""
        return "" if self.values.get(name) in (None, "") else self.text(name)

    def flag(self, name: str) -> bool:
        """Return true or false."""
        value = self.get(name)
        if not isinstance(value, bool):
            raise self.error(name, f"is {shown(value)}, expected true or false")
        return value

    def list_of(self, name: str) -> list[Any]:
        """Return a list."""
        return self.check_list(name, self.get(name))

    def texts(self, name: str) -> list[str]:
        """Return a list of strings without blank ones."""
        return self.check_texts(name, self.get(name))

    def objects(self, name: str) -> list[Row]:
        """Return a list of objects."""
        return [
            self.check_object(f"{name}[{i}]", item) for i, item in enumerate(self.list_of(name))
        ]

    def check_texts(self, name: str, value: Any) -> list[str]:
        """Return `value` if it is a list of strings, without blank ones."""
        for i, item in enumerate(self.check_list(name, value)):
            if not isinstance(item, str):
                raise self.error(f"{name}[{i}]", f"is {shown(item)}, expected a string")
        return [item for item in value if item.strip()]

    def check_answers(self, name: str, value: Any) -> tuple[str, ...]:
        """Return the different strings of `value`, a string or a list of at least one."""
        texts = self.check_texts(name, [value] if isinstance(value, str) else value)
        if not texts:
            raise self.error(name, "is empty")
        return tuple(dict.fromkeys(texts))

    def check_objects(self, name: str, value: Any) -> list[Row]:
        """Return `value` if it is a list of objects."""
        return [
            self.check_object(f"{name}[{i}]", item)
            for i, item in enumerate(self.check_list(name, value))
        ]

    def check_object(self, name: str, value: Any, expected: str = "an object") -> Row:
        """Return `value` as a row if it is an object."""
        if not isinstance(value, dict):
            raise self.error(name, f"is {shown(value)}, expected {expected}")
        return Row(self.path, self.number, value, f"{self.within}{name}.")

    def check_text(self, name: str, value: Any) -> str:
        """Return `value` if it is a string that is not blank."""
        if not isinstance(value, str):
            raise self.error(name, f"is {shown(value)}, expected a string")
        if not value.strip():
            raise self.error(name, "is empty")
        return value

    def check_list(self, name: str, value: Any) -> list[Any]:
        """Return `value` if it is a list."""
        if not isinstance(value, list):
            raise self.error(name, f"is {shown(value)}, expected a list")
        return value

    def decoded(self, name: str) -> Any:
        """Return a value that may also be a JSON string, as in some parquet conversions."""
        value = self.get(name)
        if not isinstance(value, str):
            return value
        try:
            return load_json(value)
        except json.JSONDecodeError as error:
            raise self.error(name, f"is a string but not JSON: {error}") from error


def read_rows(path: str | Path) -> Iterator[Row]:
    """Read a JSON list, JSON Lines or parquet file, recognised by its first bytes.

    Raises:
        DataError: The file cannot be read, is damaged, or has another format.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            head = file.read(4096).removeprefix(BOM_UTF8).lstrip()
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror or error}){suggest_path(path)}. Check the name "
            "and its permissions."
        ) from error
    if head.startswith(b"PAR1"):
        return _parquet_rows(path)
    if head.startswith(b"[") and b"\0" not in head:
        return _json_rows(path)
    if head.startswith(b"{") and b"\0" not in head:
        return _json_lines(path)
    if head.startswith(_ARCHIVES):
        raise DataError(f"{path}: is an archive. Unpack it, and give the file inside.")
    raise DataError(
        f"{path}: starts with {head[:20].decode('utf-8', 'replace')!r}, expected a JSON list, JSON "
        "Lines (UTF-8) or parquet file. Give the benchmark's own file."
    )


def unique_paragraphs(documents: list[Document]) -> tuple[Document, ...]:
    """Drop repeated documents; one is gold if any repetition is."""
    kept: dict[tuple[str, str], Document] = {}
    for document in documents:
        key = (document.title, document.text)
        if key not in kept or (document.gold and not kept[key].gold):
            kept[key] = document
    return tuple(kept.values())


def _json_rows(path: Path) -> Iterator[Row]:
    try:
        values = load_json(path.read_text(encoding="utf-8-sig"))
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError, too
        raise DataError(
            f"{path}: not JSON in UTF-8 ({error}). If it is truncated, download it again."
        ) from error
    for number, value in enumerate(values, start=1):
        yield _row(path, number, value)


def _json_lines(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                text = line.decode("utf-8-sig").strip()
                value = load_json(text) if text else None
            except ValueError as error:
                raise DataError(
                    f"{path}: row {number} is not JSON in UTF-8 ({error}). Give one object a line; "
                    "if the file is truncated, download it again."
                ) from error
            if text:
                yield _row(path, number, value)


def _parquet_rows(path: Path) -> Iterator[Row]:
    pyarrow, parquet = import_pyarrow()
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=128):
                for value in batch.to_pylist():
                    number += 1
                    yield Row(path, number, value)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: row {number + 1}: the parquet file is damaged ({error}). Download it again."
        ) from error


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
    """Parse JSON without lone surrogates, which no tokenizer or file accepts."""
    value = json.loads(text)
    return _clean(value) if _SURROGATE.search(text) else value


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {clean(key): _clean(item) for key, item in value.items()}
    return value


def _row(path: Path, number: int, value: Any) -> Row:
    if not isinstance(value, dict):
        raise DataError(f"{path}: row {number} is {shown(value)}, expected an object.")
    return Row(path, number, value)


def shown(value: Any) -> str:
    """Return a value and its type for a message, cut to 60 characters."""
    if value is None:
        return "null"
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"
