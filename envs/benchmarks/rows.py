"""Rows of JSON, JSON Lines and parquet files; errors name the file, the row and the field."""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from atommem.envs.task import Document
from atommem.errors import DataError, suggest_path

Text = Annotated[str, msgspec.Meta(min_length=1)]
"""The type of a field that must not be empty. (msgspec 0.22 crashes on a `pattern` in unions.)"""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_Kind = TypeVar("_Kind")


@dataclass(frozen=True, slots=True)
class QARow:
    """One question of a benchmark with its paragraphs.

    Attributes:
        answers: The gold answer, then its aliases.
        paragraphs: Without repetitions; `gold` marks the supporting ones.
        source: The benchmark's name.
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
        """File and row."""
        return f"{self.path}: row {self.number}"

    def error(self, name: str, problem: str) -> DataError:
        """Return the error to raise for a field."""
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
        """Return a text, or "" if the field is missing or null."""
        value = self.values.get(name)
        return "" if value is None else self.convert(name, value, str)

    def decoded(self, name: str) -> Any:
        """Return a value that may be JSON in a string, as in some parquet conversions."""
        value = self.get(name)
        if not isinstance(value, str):
            return value
        try:
            return load_json(value)
        except json.JSONDecodeError as error:
            raise self.error(name, f"is a string but not JSON: {error}") from error

    def parse(self, kind: type[_Kind], **changes: Any) -> _Kind:
        """Return the row as a msgspec struct; `changes` replace fields."""
        return self.convert("", {**self.values, **changes}, kind)

    def convert(self, name: str, value: Any, kind: Any) -> Any:
        """Return the value of a field as a `kind`, checked by msgspec."""
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            problem = str(error).replace("`$", f"`{name}").replace("`.", "`")
            if f"`{name}" not in problem:
                problem += f" - at `{name}`"
            raise DataError(
                f"{self.place}: {problem}. Correct the row, or download the file again."
            ) from error


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
            f"{path}: cannot be read ({error.strerror or error}){suggest_path(path)}. "
            "Check the name and its permissions."
        ) from error
    if head.startswith(b"PAR1"):
        return _parquet_rows(path)
    if head.startswith(b"["):
        return _json_rows(path)
    if head.startswith(b"{"):
        return _json_lines(path)
    raise DataError(
        f"{path}: starts with {head[:20].decode('utf-8', 'replace')!r}, expected a JSON list, JSON "
        "Lines (UTF-8) or parquet file. Give the benchmark's own file, unpacked."
    )


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


def _row(path: Path, number: int, value: Any) -> Row:
    if not isinstance(value, dict):
        raise DataError(f"{path}: row {number} is {value!r:.60}, expected an object.")
    return Row(path, number, value)


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
    """Parse JSON; lone surrogates, which no tokenizer or file accepts, become U+FFFD."""
    value = json.loads(text)
    if not _SURROGATE.search(text):
        return value
    encoded = json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass")
    return json.loads(encoded.decode("utf-16", "replace"))
