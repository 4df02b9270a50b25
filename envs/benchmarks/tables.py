"""Tables of questions: a column each for the question, its answers and the text to read.

Rows come from files, from folders of `Dataset.save_to_disk`, and from data sets of the hub.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atommem.envs.benchmarks.formats import decoded
from atommem.envs.benchmarks.rows import Row, Text, listed, read_rows, without_nulls
from atommem.envs.task import Document, Question, Task
from atommem.errors import ConfigError, DataError, suggest_path

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
        task = _parse(row, columns)
        if task is None:
            left_out.append(row.number)
            continue
        first = numbers.setdefault(task.id, row.number)
        if first != row.number:
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
