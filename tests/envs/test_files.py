"""Task files: what is saved is loaded; every fault of a file is named with its row and field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atommem.envs import task_files
from atommem.envs.task import Document, Question, Task
from atommem.envs.task_files import iter_tasks, load_tasks, save_tasks
from atommem.errors import ConfigError, DataError
from tests.envs.benchmark_rows import write_json

TASKS = [
    Task(
        id="a",
        questions=(
            Question(
                "Who?", ("Orla", "O\u2019Dea"), "q1", {"type": "bridge", "hops": 2, "supporting": [["Orla", None]]}
            ),
            Question("Yes?", ("yes",)),
        ),
        documents=(Document("Orla", "A potter.\n", gold=True), Document("", "No title.")),
        source="hotpotqa",
        metadata={"split": "train"},
    ),
    Task(id="b", questions=(Question("Where?", ("Port",)),), documents=(Document("Orla", "A potter.\n", gold=True),)),
    Task(id="c", questions=(Question("What?", ("x",)),), context="Document 1:\nready joined"),
]


def row(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "id": "a",
        "questions": [{"text": "Who?", "answers": ["Orla"]}],
        "documents": [{"title": "Orla", "text": "A potter."}],
    }
    return {**values, **changes}


@pytest.mark.parametrize("name", ["x.parquet", "x.jsonl", "new/folder/x.parquet"])
def test_round_trip(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    assert save_tasks(iter(TASKS), path) == 3
    assert load_tasks(path) == TASKS
    assert [file.name for file in path.parent.iterdir() if file.is_file()] == [path.name]  # nothing left over


def test_many_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(task_files, "_DOCUMENTS_PER_GROUP", 10)
    tasks = [
        Task(str(i), (Question("Who?", ("Orla",)),), tuple(Document(f"{i}.{j}", "x") for j in range(i % 4 + 1)))
        for i in range(20)
    ]
    assert save_tasks(tasks, tmp_path / "x.parquet") == 20
    assert load_tasks(tmp_path / "x.parquet") == tasks
    assert parquet.ParquetFile(tmp_path / "x.parquet").num_row_groups > 3


def test_a_failure_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    save_tasks(TASKS, path)

    def broken() -> Any:
        yield TASKS[0]
        raise DataError("no more")

    with pytest.raises(DataError, match="no more"):
        save_tasks(broken(), path)
    assert load_tasks(path) == TASKS
    assert list(tmp_path.iterdir()) == [path]


def test_where_it_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"x\.csv: the name must end in \.parquet or \.jsonl"):
        save_tasks(TASKS, tmp_path / "x.csv")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file is a file: give another path"):
        save_tasks(TASKS, tmp_path / "file" / "x.jsonl")


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_questions_without_gold_answers(tmp_path: Path, suffix: str) -> None:
    for answers in ({}, {"answers": None}, {"answers": []}):
        (task,) = load_tasks(write_json(tmp_path / "x.json", [row(questions=[{"text": "Who?", **answers}])]))
        assert task.questions == (Question("Who?", ()),)
    save_tasks([task], tmp_path / f"y{suffix}")
    assert load_tasks(tmp_path / f"y{suffix}") == [task]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"questions": [{"text": "Who?", "answers": ["x"], "metadata": "{"}]},
            r"field 'questions\[0\].metadata' is not JSON",
        ),
        ({"documents": [{"text": "x", "gold": 1}]}, r"field 'documents\[0\]' must have strings"),
        ({"context": "x"}, "field 'documents' and 'context': give one of them, not both"),
        ({"documents": None, "context": " "}, "field 'context' is empty"),
        ({"source": 3}, r"field 'source' is 3 \(int\), expected a string"),
    ],
)
def test_faults(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write_json(tmp_path / "x.json", [row(id="first"), row(**changes)])
    tasks = iter_tasks(path)
    assert next(tasks).id == "first"
    with pytest.raises(DataError, match=rf"x\.json: row 2: {message}"):
        next(tasks)


def test_files_without_tasks(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no tasks"):
        load_tasks(write_json(tmp_path / "x.json", []))
    with pytest.raises(DataError, match=r"row 1: has the fields '_id', 'question'; .* atommem data build"):
        load_tasks(write_json(tmp_path / "x.json", [{"_id": "1", "question": "Who?"}]))
