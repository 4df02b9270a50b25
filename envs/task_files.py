"""Task files: written as parquet or JSON Lines, read from these and from benchmarks whose rows are ready tasks."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path
from typing import Any

from atommem.envs.benchmarks.beam import is_beam, parse_beam
from atommem.envs.benchmarks.locomo import is_locomo, parse_locomo
from atommem.envs.benchmarks.longmemeval import is_longmemeval, parse_longmemeval
from atommem.envs.benchmarks.memagent import is_memagent, parse_memagent
from atommem.envs.benchmarks.memory_agent_bench import (
    is_memory_agent_bench,
    parse_memory_agent_bench,
)
from atommem.envs.benchmarks.rows import Row, import_pyarrow, read_rows
from atommem.envs.task import Document, Question, Task
from atommem.errors import ConfigError, DataError, check_writable, remedy

# Documents in a row group: some 10 MB of text, so that neither side ever holds much of a file in memory.
_DOCUMENTS_PER_GROUP = 20_000
_FORMATS: tuple[
    tuple[Callable[[Mapping[str, Any]], bool], Callable[[Row], Iterable[Task]]], ...
] = (
    (is_memagent, lambda row: (parse_memagent(row),)),
    (is_locomo, parse_locomo),
    (is_longmemeval, parse_longmemeval),
    (is_memory_agent_bench, parse_memory_agent_bench),
    (is_beam, parse_beam),
)
"""How a row is known by its fields, and the tasks that it makes."""


def save_tasks(tasks: Iterable[Task], path: str | Path) -> int:
    """Write `tasks` to a ``.parquet`` or ``.jsonl`` file, as they come; the file appears when it is complete.

    In parquet, the metadata of a task and of a question stands as a JSON string.

    Returns:
        The number of tasks.

    Raises:
        ConfigError: The name ends in neither.
        DataError: The file cannot be written.
    """
    path = check_name(path)
    with replacing(path) as temporary:
        return (_save_parquet if path.suffix == ".parquet" else _save_json_lines)(tasks, temporary)


def check_name(path: str | Path) -> Path:
    """`path`, if it has a name that `save_tasks` can write.

    Raises:
        ConfigError: It ends neither in .parquet nor in .jsonl, or cannot be written.
    """
    path = Path(path)
    if path.suffix not in (".parquet", ".jsonl"):
        raise ConfigError(f"{str(path)[:200]}: the name must end in .parquet or .jsonl.")
    check_writable("out", path, folder=False)
    return path


def load_tasks(path: str | Path) -> list[Task]:
    """Read a file of `save_tasks`, or one of MemAgent, LoCoMo, LongMemEval, MemoryAgentBench or BEAM.

    Which of them it is, the fields of its rows say.

    Raises:
        DataError: The file is none of these, is damaged, or has no task; the message names the row and the field.
    """
    tasks = list(iter_tasks(path))
    if not tasks:
        raise DataError(f"{path}: has no tasks.")
    return tasks


def iter_tasks(path: str | Path) -> Iterator[Task]:
    """As `load_tasks`, one task at a time.

    Equal documents of several tasks become one object: distractors recur, and texts make up most of the memory.
    """
    rows: dict[str, int] = {}
    documents: dict[Document, Document] = {}
    for row in read_rows(path):
        parse = next((parse for known, parse in _FORMATS if known(row.values)), None)
        if parse is not None:
            tasks = parse(row)
        elif "questions" in row.values:
            tasks = (_parse(row, documents),)
        else:
            raise DataError(
                f"{row.path}: row {row.number}: has the fields {', '.join(map(repr, row.values))}; a task has "
                "'questions', and 'documents' or 'context'. Make tasks of a benchmark's file with: atommem data build."
            )
        for task in tasks:
            if task.id in rows:
                raise row.error("id", f"is {task.id!r}, as in row {rows[task.id]}; ids must differ")
            rows[task.id] = row.number
            yield task


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path` that replaces it at the end, or is removed if anything is raised.

    Raises:
        DataError: The folder or the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be written: {error.strerror or error}; {remedy(error)}."
        ) from error


def write_text(path: str | Path, text: str) -> None:
    """Write `text` to a file: the whole of it, or none.

    Raises:
        DataError: It cannot be written.
    """
    with replacing(Path(path)) as draft:
        draft.write_text(text, encoding="utf-8")


def write_json(path: str | Path, content: Any) -> None:
    """Write `content` as JSON: the whole file, or none.

    Raises:
        DataError: It cannot be written.
    """
    write_text(path, json.dumps(content, indent=2) + "\n")


def _save_json_lines(tasks: Iterable[Task], path: Path) -> int:
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for task in tasks:
            file.write(_dumps(asdict(task)) + "\n")
            count += 1
    return count


def _save_parquet(tasks: Iterable[Task], path: Path) -> int:
    pyarrow, parquet = import_pyarrow()
    count = 0
    group: list[Task] = []
    with parquet.ParquetWriter(path, _schema(pyarrow), compression="zstd") as writer:
        size = 0
        for task in tasks:
            group.append(task)
            # A context stands for about as many documents as its length says (500 characters each).
            size += len(task.documents) + len(task.context or "") // 500 + 1
            if size >= _DOCUMENTS_PER_GROUP:
                writer.write_table(_table(pyarrow, group))
                count, size = count + len(group), 0
                group.clear()
        if group:
            writer.write_table(_table(pyarrow, group))
            count += len(group)
    return count


def _schema(pa: Any) -> Any:
    text = pa.string()
    question = pa.struct(
        [("text", text), ("answers", pa.list_(text)), ("id", text), ("metadata", text)]
    )
    document = pa.struct([("title", text), ("text", text), ("gold", pa.bool_())])
    return pa.schema(
        [
            ("id", text),
            ("source", text),
            ("questions", pa.list_(question)),
            ("documents", pa.list_(document)),
            ("context", text),
            ("metadata", text),
        ]
    )


def _table(pa: Any, tasks: list[Task]) -> Any:
    """The Arrow table of `tasks`. Documents go in by column: far faster than row by row."""
    schema = _schema(pa)
    documents = [document for task in tasks for document in task.documents]
    columns = pa.StructArray.from_arrays(
        [
            pa.array([document.title for document in documents], pa.string()),
            pa.array([document.text for document in documents], pa.string()),
            pa.array([document.gold for document in documents], pa.bool_()),
        ],
        fields=list(schema.field("documents").type.value_type),
    )
    offsets = pa.array(accumulate((len(task.documents) for task in tasks), initial=0), pa.int32())
    questions = [
        [{**asdict(q), "metadata": _dumps(q.metadata)} for q in task.questions] for task in tasks
    ]
    return pa.table(
        [
            pa.array([task.id for task in tasks], pa.string()),
            pa.array([task.source for task in tasks], pa.string()),
            pa.array(questions, schema.field("questions").type),
            pa.ListArray.from_arrays(offsets, columns),
            pa.array([task.context for task in tasks], pa.string()),
            pa.array([_dumps(task.metadata) for task in tasks], pa.string()),
        ],
        schema=schema,
    )


def _dumps(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False)


def _parse(row: Row, documents: dict[Document, Document]) -> Task:
    """Turn a row of our own layout into a task; `documents` interns equal documents."""
    if not row.list_of("questions"):
        raise row.error("questions", "is empty")
    context = row.values.get("context")
    found = row.check_list("documents", row.values.get("documents") or [])
    if context is not None and found:
        raise row.error("documents", "and 'context': give one of them, not both")
    if (
        context is None and row.values.get("documents") is None
    ):  # an empty list is said on purpose: a task for tools
        raise row.error("documents", "and 'context': give one of them")
    parsed = [_document(row, i, item) for i, item in enumerate(found)]
    return Task(
        id=row.text("id"),
        questions=tuple(map(_question, row.objects("questions"))),
        documents=tuple(documents.setdefault(document, document) for document in parsed),
        context=None if context is None else row.text("context"),
        source=row.optional_text("source"),
        metadata=_metadata(row),
    )


def _question(item: Row) -> Question:
    given = item.values.get("answers") or []  # not known: the question can be asked, and not scored
    answers = item.check_texts("answers", given)
    if given and not answers:
        raise item.error("answers", "is empty")
    return Question(item.text("text"), tuple(answers), item.optional_text("id"), _metadata(item))


def _document(row: Row, index: int, item: Any) -> Document:
    if isinstance(item, dict):
        title, text, gold = item.get("title", ""), item.get("text"), item.get("gold", False)
        if isinstance(title, str) and isinstance(text, str) and isinstance(gold, bool):
            return Document(title, text, gold)
    problem = "must be an object with strings for 'title' and 'text' and true or false for 'gold'"
    raise row.error(f"documents[{index}]", problem)


def _metadata(row: Row) -> dict[str, Any]:
    """Metadata as an object; parquet holds it as a JSON string."""
    given = row.values.get("metadata") is not None
    return row.check_object("metadata", row.decoded("metadata")).values if given else {}
