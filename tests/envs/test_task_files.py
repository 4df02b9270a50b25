"""Task files: saved tasks load equal, and a failed save leaves nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atommem.envs import task_files
from atommem.envs.task import Document, Question, Task
from atommem.envs.task_files import load_tasks, save_tasks
from atommem.errors import DataError
from tests.envs.benchmark_rows import write_json

DOCUMENT = Document("Orla", "A potter.\n", gold=True)
METADATA = {"type": "bridge", "documents": [0]}
TASKS = [
    Task(
        "a",
        (Question("Who?", ("Orla", "O\u2019Dea"), "q1", METADATA), Question("Yes?", ())),
        (DOCUMENT, Document("", "No title.")),
        None,
        "hotpotqa",
        {"split": "train"},
    ),
    Task("b", (Question("Where?", ("Port",)),), (DOCUMENT,)),
    Task("c", (Question("What?", ("x",)),), context="Document 1:\nready joined"),
]


@pytest.mark.parametrize("name", ["x.jsonl", "new/folder/x.parquet"])
def test_saved_tasks_load_equal(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_files, "_TASKS_PER_GROUP", 10)
    path = tmp_path / name
    tasks = [replace(task, id=f"{task.id}{number}") for number in range(9) for task in TASKS]
    assert save_tasks(iter(tasks), path) == 27
    assert load_tasks(path) == tasks
    assert [file.name for file in path.parent.iterdir() if file.is_file()] == [path.name]


def test_save_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    save_tasks(TASKS, path)

    def broken() -> Any:
        yield TASKS[0]
        raise DataError("no more")

    with pytest.raises(DataError, match="no more"):
        save_tasks(broken(), path)
    assert load_tasks(path) == TASKS
    assert list(tmp_path.iterdir()) == [path]


ROW: dict[str, Any] = {
    "id": "a",
    "questions": [{"text": "Who?"}],
    "documents": [{"title": "", "text": "A."}],
}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "has no tasks"),
        ([{"_id": "1"}], r"row 1: field 'questions' is missing; the row has '_id'.*data build"),
        ([ROW, ROW], "row 2: field 'id' is 'a', as in row 1"),
        ([ROW | {"context": "x"}], "'documents' and 'context': give one of them"),
    ],
)
def test_load_of_another_file_raises_with_row_and_field(
    tmp_path: Path, rows: list[Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        load_tasks(write_json(tmp_path / "x.json", rows))
