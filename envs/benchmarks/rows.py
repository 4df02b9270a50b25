"""Files of benchmarks and their rows: JSON, JSON Lines or parquet; errors name row and field."""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from atommem.config import check_choice
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
    path, number = Path(path), 0
    try:
        for number, value in enumerate(_values(path), start=1):
            if value is None:  # a blank line
                continue
            if not isinstance(value, dict):
                raise DataError(f"{path}: row {number} is {value!r:.60}, expected an object.")
            yield Row(path, number, value)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror or error}){suggest_path(path)}. "
            "Check the name and its permissions."
        ) from error
    except (ValueError, RecursionError) as error:  # of JSON, UTF-8 and Arrow
        raise DataError(
            f"{path}: row {number + 1} is damaged or not in UTF-8 ({error}). If the file is "
            "truncated, download it again."
        ) from error


def _values(path: Path) -> Iterator[Any]:
    with path.open("rb") as file:
        head = file.read(4096).removeprefix(BOM_UTF8).lstrip()
    if head.startswith(b"PAR1"):
        _, parquet = import_pyarrow()
        with parquet.ParquetFile(path) as table:
            for batch in table.iter_batches(batch_size=128):
                yield from batch.to_pylist()
    elif head.startswith(b"["):
        try:
            values = load_json(path.read_text(encoding="utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{path}: is not JSON in UTF-8 ({error}). If it is truncated, download it again."
            ) from error
        yield from values
    elif head.startswith(b"{"):
        with path.open("rb") as lines:
            for line in lines:
                text = line.decode("utf-8-sig").strip()
                yield load_json(text) if text else None
    else:
        raise DataError(
            f"{path}: starts with {head[:20].decode('utf-8', 'replace')!r}, expected a JSON list, "
            "JSON Lines (UTF-8) or parquet file. Give the benchmark's own file, unpacked."
        )


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


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark: how its files are found and read.

    Attributes:
        parse: Makes one of its questions of a row.
        files: Split -> file name patterns, the official name first, then those of Hugging Face
            downloads. The first pattern that matches counts, with all of its files (shards).
    """

    name: str
    parse: Callable[[Row], QARow]
    files: Mapping[str, tuple[str, ...]]

    def read(self, path: str | Path) -> Iterator[QARow]:
        """Yield the questions of a file; DataError if it is damaged or has another layout."""
        return map(self.parse, read_rows(path))

    def find(self, split: str, path: str | Path) -> list[Path]:
        """Return `path` if it is a file, else the files of `split` in its folder `name` or in it.

        Raises:
            ConfigError: There is no such split.
            DataError: There is no such file, a shard is missing, or the file is named for another
                split.
        """
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
