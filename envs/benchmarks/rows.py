"""Rows of data files: JSON lists, JSON Lines and parquet, with errors that name the file, the row and the field."""

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

_PACKED = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "zip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True)
class QARow:
    """One question of a benchmark with the paragraphs that it comes with.

    Attributes:
        answers: The gold answer first, then its aliases.
        paragraphs: Without repetitions; `gold` marks the supporting ones.
        source: The benchmark's name.
        answerable: Whether every supporting paragraph stands among `paragraphs`.
        place: File and row, for messages.
        metadata: ``type``, ``hops`` (the supporting steps), ``supporting`` (pairs of a title and a sentence index;
            the index is None where the file names no sentence, or one that its paragraph does not have), and what
            else the benchmark says of a question.
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
    """One row as it stands in its file, or an object within one.

    Attributes:
        number: From 1 (in JSON Lines it is the line).
        within: Of an object within a row, what its fields' names begin with (``qa[3].``).
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
        self, name: str, problem: str, remedy: str = "Mend the row, or get the file again"
    ) -> DataError:
        """The error to raise for the field `name`."""
        return DataError(f"{self.place}: field {self.within + name!r} {problem}. {remedy}.")

    def get(self, *names: str) -> Any:
        """The value of the first of `names` that the row has.

        Raises:
            DataError: The row has none of them.
        """
        for name in names:
            if name in self.values:
                return self.values[name]
        other = "".join(f" (or {name!r})" for name in names[1:])
        holder, fields = (
            "the object" if self.within else "the row",
            ", ".join(map(repr, self.values)) or "no fields",
        )
        raise self.error(names[0], f"is missing{other}; {holder} has {fields}")

    def text(self, *names: str) -> str:
        """The value of the first of `names` that the row has, which must be a string that is not blank."""
        return self.check_text(names[0], self.get(*names))

    def text_or_number(self, *names: str) -> str:
        """As `text`, of what may also be a number: years and counts are, in some files."""
        value = self.get(*names)
        return str(value) if type(value) in (int, float) else self.check_text(names[0], value)

    def optional_text(self, name: str) -> str:
        """As `text`; "" where the row has no `name`, or nothing in it."""
        return "" if self.values.get(name) in (None, "") else self.text(name)

    def flag(self, name: str) -> bool:
        """The value of `name`, which must be true or false."""
        value = self.get(name)
        if not isinstance(value, bool):
            raise self.error(name, f"is {shown(value)}, expected true or false")
        return value

    def list_of(self, name: str) -> list[Any]:
        """The value of `name`, which must be a list."""
        return self.check_list(name, self.get(name))

    def texts(self, name: str) -> list[str]:
        """The value of `name`, which must be a list of strings, without the blank ones."""
        return self.check_texts(name, self.get(name))

    def objects(self, name: str) -> list[Row]:
        """The value of `name`, which must be a list of objects."""
        return self.check_objects(name, self.get(name))

    def check_texts(self, name: str, value: Any) -> list[str]:
        """`value` if it is a list of strings, without the blank ones."""
        for i, item in enumerate(self.check_list(name, value)):
            if not isinstance(item, str):
                raise self.error(f"{name}[{i}]", f"is {shown(item)}, expected a string")
        return [item for item in value if item.strip()]

    def check_answers(self, name: str, value: Any) -> tuple[str, ...]:
        """`value` if it is an answer, or a list of at least one, which all count; each once."""
        texts = self.check_texts(name, [value] if isinstance(value, str) else value)
        if not texts:
            raise self.error(name, "is empty")
        return tuple(dict.fromkeys(texts))

    def check_objects(self, name: str, value: Any) -> list[Row]:
        """`value` if it is a list of objects."""
        return [
            self.check_object(f"{name}[{i}]", item)
            for i, item in enumerate(self.check_list(name, value))
        ]

    def check_object(self, name: str, value: Any, expected: str = "an object") -> Row:
        """`value` if it is an object: what is wrong in it is said with the name of its field in the whole row."""
        if not isinstance(value, dict):
            raise self.error(name, f"is {shown(value)}, expected {expected}")
        return Row(self.path, self.number, value, f"{self.within}{name}.")

    def check_text(self, name: str, value: Any) -> str:
        """`value` if it is a string that is not blank."""
        if not isinstance(value, str):
            raise self.error(name, f"is {shown(value)}, expected a string")
        if not value.strip():
            raise self.error(name, "is empty")
        return value

    def check_list(self, name: str, value: Any) -> list[Any]:
        """`value` if it is a list."""
        if not isinstance(value, list):
            raise self.error(name, f"is {shown(value)}, expected a list")
        return value

    def decoded(self, name: str) -> Any:
        """The value of `name`; a string is decoded as JSON (some parquet conversions store nested fields so)."""
        value = self.get(name)
        if not isinstance(value, str):
            return value
        try:
            return load_json(value)
        except json.JSONDecodeError as error:
            raise self.error(name, f"is a string but not JSON: {error}") from error


def read_rows(path: str | Path) -> Iterator[Row]:
    """Read a JSON list, JSON Lines or parquet file; which one it is, its first bytes say.

    Raises:
        DataError: The file cannot be read, is truncated or is none of these; the message says at which row.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            head = file.read(4096).removeprefix(BOM_UTF8).lstrip()
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read: {error.strerror or error}{suggest_path(path)}. Check the name, and who may read it."
        ) from error
    if kind := next((name for start, name in _PACKED.items() if head.startswith(start)), None):
        raise DataError(f"{path}: is packed ({kind}). Unpack it, and give the file inside.")
    if head.startswith(b"PAR1"):
        return _parquet_rows(path)
    if (
        b"\0" in head
    ):  # no JSON has this byte in UTF-8, and UTF-16 has it beside every ASCII character
        raise DataError(
            f"{path}: is not UTF-8 (UTF-16, or no text at all). Save the file as UTF-8."
        )
    if head.startswith(b"["):
        return _json_rows(path)
    if head.startswith(b"{"):
        return _json_lines(path)
    if not head:
        raise DataError(
            f"{path}: is empty. Give one with tasks in it; one that was downloaded, get again."
        )
    raise DataError(
        f"{path}: expected a JSON list, JSON Lines or parquet file, but it starts with "
        f"{head[:20].decode('utf-8', 'replace')!r}. Give the benchmark's own file."
    )


def unique_paragraphs(documents: list[Document]) -> tuple[Document, ...]:
    """Drop repetitions of title and text, keeping the first; it is gold if any of them is."""
    kept: dict[tuple[str, str], Document] = {}
    for document in documents:
        key = (document.title, document.text)
        if key not in kept or (document.gold and not kept[key].gold):
            kept[key] = document
    return tuple(kept.values())


def _json_rows(path: Path) -> Iterator[Row]:
    text = _decode(path, path.read_bytes(), "the file")
    try:
        values = load_json(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}: {_broken_row(text, error)} Is the file truncated? Get it again."
        ) from error
    del text
    for number, value in enumerate(values, start=1):
        yield _row(path, number, value)


def _broken_row(text: str, error: json.JSONDecodeError) -> str:
    """Where a JSON list breaks: decode it row by row up to the first that fails."""
    decoder = json.JSONDecoder()
    position, rows = text.index("[") + 1, 0
    while True:
        while position < len(text) and (text[position].isspace() or text[position] == ","):
            position += 1
        if position == len(text):
            return f"the list ends after row {rows} (character {position}) without its closing bracket."
        try:
            _, position = decoder.raw_decode(text, position)
        except json.JSONDecodeError as row_error:
            where = f"{row_error.msg} at character {row_error.pos} (line {row_error.lineno})"
            return f"row {rows + 1}, from character {position}, is not JSON: {where}."
        rows += 1
        if text[position : position + 1] == "]":
            return f"there is more after the list of {rows} rows: {error.msg} at character {error.pos}."


def _json_lines(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            text = _decode(path, line, f"row {number}").strip()
            if not text:
                continue
            try:
                value = load_json(text)
            except json.JSONDecodeError as error:
                if number == 1 and (names := _one_object(path)) is not None:
                    raise DataError(
                        f"{path}: is one JSON object with the fields {', '.join(map(repr, names))}, expected a list of "
                        "rows or JSON Lines. Save the list of rows inside of it as a file of its own."
                    ) from error
                where = f"{error.msg} at character {error.pos} of the line"
                raise DataError(
                    f"{path}: row {number} is not JSON: {where}. Is the file truncated? Get it again."
                ) from error
            yield _row(path, number, value)


def _one_object(path: Path) -> list[str] | None:
    """The names of its fields, if a file is a single JSON object over several lines."""
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except ValueError:
        return None
    return list(value) if isinstance(value, dict) else None


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
            f"{path}: row {number + 1}: the parquet file is damaged or truncated ({error}). Get it again."
        ) from error


def import_pyarrow() -> tuple[Any, Any]:
    """The modules pyarrow and pyarrow.parquet, imported on first use: JSON files do without them."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(
            f"parquet files need pyarrow ({error}). Install it with: pip install 'atommem[data]'."
        ) from error
    return pyarrow, pyarrow.parquet


def load_json(text: str) -> Any:
    """As `json.loads`, without halves of surrogate pairs, which JSON can escape and no tokenizer or file takes."""
    value = json.loads(text)
    return _cleaned(value) if _SURROGATE.search(text) else value


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    if isinstance(value, dict):
        return {clean(key): _cleaned(item) for key, item in value.items()}
    return value


def _decode(path: Path, data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: {where} is not UTF-8: {error.reason} at byte {error.start}. Save the file as UTF-8."
        ) from error


def _row(path: Path, number: int, value: Any) -> Row:
    if not isinstance(value, dict):
        raise DataError(
            f"{path}: row {number} is {shown(value)}, expected an object with named fields. Give a list of such rows."
        )
    return Row(path, number, value)


def shown(value: Any) -> str:
    """A value and its type for an error message, cut to fit a line."""
    if value is None:
        return "null"
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"
