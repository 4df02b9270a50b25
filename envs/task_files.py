"""Task files (parquet or JSON Lines), benchmarks whose rows are ready tasks, and provenance."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

from atommem.envs.benchmarks import long_texts
from atommem.envs.benchmarks.formats import decoded
from atommem.envs.benchmarks.rows import Row, listed, read_rows
from atommem.envs.task import Document, Task
from atommem.errors import ConfigError, DataError, check_writable
from atommem.files import file_digest, replacing, write_json

_TASKS_PER_GROUP = 64
"""Tasks of a parquet row group, so that neither side holds much of a file in memory."""
_FORMATS: tuple[tuple[set[str], Callable[[Row], Iterable[Task]]], ...] = (
    ({"context", "prompt", "reward_model"}, long_texts.parse_memagent),
    ({"context", "input", "answers"}, long_texts.parse_memagent),
    ({"input", "outputs"}, long_texts.parse_ruler),
    ({"context_window_text", "question", "answer"}, long_texts.parse_oolong),
    ({"conversation", "qa"}, long_texts.parse_locomo),
    ({"question_id", "haystack_sessions"}, long_texts.parse_longmemeval),
    ({"chat", "probing_questions"}, long_texts.parse_beam),
)
"""The fields by which rows of a benchmark are recognised, and their reader."""


def load_tasks(path: str | Path) -> list[Task]:
    """Read a file of `save_tasks`, or of MemAgent, RULER, OOLONG, LoCoMo, LongMemEval or BEAM.

    DataError names the row and the field.
    """
    tasks = list(iter_tasks(read_rows(path)))
    if not tasks:
        raise DataError(f"{path}: has no tasks.")
    return tasks


def iter_tasks(found: Iterable[Row], broken: list[DataError] | None = None) -> Iterator[Task]:
    """Yield the tasks of rows, as `load_tasks` returns those of a file.

    The errors of broken rows are added to `broken`; without it the first one is raised. Equal
    documents of several tasks become one object: distractors recur, and texts fill the memory.
    """
    rows: dict[str, int] = {}
    documents: dict[Document, Document] = {}
    for row in found:
        parse = next((parse for fields, parse in _FORMATS if fields <= row.values.keys()), None)
        try:
            for task in (_parse(row, documents),) if parse is None else parse(row):
                first = rows.setdefault(task.id, row.number)
                if first != row.number:
                    raise row.error("id", f"is {task.id!r}, as in row {first}; ids must differ")
                yield task
        except DataError as error:
            if broken is None:
                raise
            broken.append(error)


def _parse(row: Row, documents: dict[Document, Document]) -> Task:
    if "questions" not in row.values:
        raise row.error(
            "questions",
            f"is missing; the row has {', '.join(map(repr, row.values))}. Make tasks of it with: "
            "atommem data build (a benchmark), or data convert --question COLUMN ... (a table)",
        )
    questions = listed(row.values["questions"])
    if any(isinstance(item, dict) and "answer" in item for item in questions):
        raise row.error("questions", "has 'answer' where 'answers', a list, is the name")
    for item in (row.values, *(item for item in questions if isinstance(item, dict))):
        item["metadata"] = decoded(item.get("metadata", {}))  # parquet holds it as JSON
    values = {**row.values, "questions": questions}
    if "documents" in values:
        found = listed(values["documents"])
        values["documents"] = [{"title": "", **o} if isinstance(o, dict) else o for o in found]
    task: Task = row.convert("", values, Task)
    if not task.questions or not all(question.text.strip() for question in task.questions):
        raise row.error("questions", "is empty, or one of them")
    if not all(answer.strip() for question in task.questions for answer in question.answers):
        raise row.error("answers", "contains an empty answer")
    if task.documents if (task.context or "").strip() else "documents" not in row.values:
        raise row.error("documents", "and 'context': give one of them")
    return replace(task, documents=tuple(documents.setdefault(one, one) for one in task.documents))


def save_tasks(tasks: Iterable[Task], path: str | Path) -> int:
    """Write tasks to a ``.parquet`` or ``.jsonl`` file, which appears when it is complete.

    In parquet, metadata of tasks and questions are JSON strings. Returns the number of tasks.
    """
    check_out(path := Path(path))
    save = _save_parquet if path.suffix == ".parquet" else _save_json_lines
    with replacing(path) as temporary:
        if count := save(tasks, temporary):
            return count
        raise DataError(f"{path}: would have no tasks. Give data with rows.")


def _save_json_lines(tasks: Iterable[Task], path: Path) -> int:
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for task in tasks:
            file.write(json.dumps(asdict(task), ensure_ascii=False) + "\n")
            count += 1
    return count


def _save_parquet(tasks: Iterable[Task], path: Path) -> int:
    import pyarrow as pa
    from pyarrow import parquet

    text = pa.string()
    question = pa.struct({"text": text, "answers": pa.list_(text), "id": text, "metadata": text})
    document = pa.struct({"title": text, "text": text, "gold": pa.bool_()})
    lists = {"questions": pa.list_(question), "documents": pa.list_(document)}
    schema = pa.schema({"id": text, "source": text, **lists, "context": text, "metadata": text})
    count, rows = 0, map(_parquet_row, tasks)
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        while group := list(islice(rows, _TASKS_PER_GROUP)):
            writer.write_table(pa.Table.from_pylist(group, schema))
            count += len(group)
    return count


def _parquet_row(task: Task) -> dict[str, Any]:
    row = asdict(task)
    for item in (row, *row["questions"]):
        item["metadata"] = json.dumps(item["metadata"], ensure_ascii=False)
    return row


def describe_file(path: str | Path) -> dict[str, Any]:
    """Return name (without folders), size in bytes and SHA-256 of a file."""
    path = Path(path)
    return {"name": path.name, "bytes": path.stat().st_size, "sha256": file_digest(path)}


def check_out(out: Path, inputs: Iterable[Path] = ()) -> None:
    """Raise ConfigError unless a task file can be written to `out` without replacing an input."""
    if out.suffix not in (".parquet", ".jsonl"):
        raise ConfigError(f"{str(out)[:200]}: the name must end in .parquet or .jsonl.")
    check_writable("out", out, folder=False, inputs=inputs)


def write_provenance(path: str | Path, values: Mapping[str, Any]) -> Path:
    """Write the origin of a data file beside it, as ``NAME.json``; return that path.

    The file's digest, the time and the package's version are added to `values`.
    """
    beside = Path(f"{path}.json")
    created = datetime.now(UTC).isoformat(timespec="seconds")
    made = {"output": describe_file(path), "created": created, "atommem": version("atommem")}
    write_json(beside, {**values, **made})
    return beside
