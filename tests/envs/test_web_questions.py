"""The web's benchmarks: rows, hostile rows, and the tasks that are made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atommem.envs.benchmarks.web_questions import WEB_BENCHMARKS
from atommem.envs.task import Task
from atommem.envs.task_files import load_tasks
from atommem.errors import DataError
from tests.envs.benchmark_rows import write_lines
from tests.fakes import command

main = command("data")

Row = dict[str, Any]
ROWS: dict[str, Row] = {
    "gaia": {
        "task_id": "g1",
        "Question": "How many?",
        "Level": "2",
        "Final answer": "17",
        "file_name": "",
    },
    "webwalkerqa": {
        "question": "谁？",  # noqa: RUF001
        "answer": "北京",
        "root_url": "https://a.example/",
        "info": {
            "Type": "single_source",
            "Difficulty_Level": "easy",
            "Language": "zh",
            "golden_path": ["root"],
        },
    },
    "asearcher": {
        "question": "Who?",
        "answer": ["Ann", "Anne"],
        "aug_answer": ["Anna", "Ann"],
        "qid": 7,
    },
    "webdancer": {"question": "Who?", "answer": "Ann", "tag": "e2hqa"},
    "browsecomp_plus": {
        "query_id": "769",
        "query": "Who was it?",
        "answer": "Ann",
        "evidence_docs": [{"docid": "5", "text": "x", "url": "u"}],
    },
}


def write(path: Path, *rows: Row) -> Path:
    return write_lines(path, list(rows))


def call(path: Path, *arguments: str, benchmark: str = "gaia", split: str = "validation") -> int:
    given = [
        "build",
        "--environment",
        "web",
        "--benchmark",
        benchmark,
        "--split",
        split,
        "--input",
        str(path),
    ]
    return main([*given, "--out", str(path.with_name("tasks.jsonl")), *arguments])


def build(path: Path, *arguments: str, **more: str) -> list[Task]:
    assert call(path, *arguments, **more) == 0
    return load_tasks(path.with_name("tasks.jsonl"))


def test_rows_by_hand(tmp_path: Path) -> None:
    rows = {
        name: next(WEB_BENCHMARKS[name].read(write(tmp_path / name, row)))
        for name, row in ROWS.items()
    }
    assert rows["gaia"].metadata == {"level": 2, "file_name": "", "category": "level 2"}
    walker = {
        "lang": "zh",
        "type": "single_source",
        "difficulty": "easy",
        "category": "zh single_source",
    }
    assert walker.items() <= rows["webwalkerqa"].metadata.items()
    assert (rows["asearcher"].id, rows["asearcher"].answers) == ("7", ("Ann", "Anne", "Anna"))
    assert rows["webdancer"].metadata == {"category": "e2hqa"}
    assert (rows["browsecomp_plus"].id, rows["browsecomp_plus"].metadata) == (
        "769",
        {"evidence": [["5", "u"]]},
    )
    assert all(not row.paragraphs and row.source == name for name, row in rows.items())
    # Numbers are answers, and secret ones are none.
    path = write(
        tmp_path / "x", ROWS["gaia"] | {"Final answer": 17}, ROWS["gaia"] | {"Final answer": "?"}
    )
    assert [row.answers for row in WEB_BENCHMARKS["gaia"].read(path)] == [("17",), ()]


@pytest.mark.parametrize(
    ("benchmark", "changes", "message"),
    [
        ("gaia", {"Level": "4"}, "row 2: field 'Level' is '4', expected 1, 2 or 3"),
        ("gaia", {"Final answer": None}, "row 2: field 'Final answer' is null"),
        ("webwalkerqa", {"info": [1]}, "row 2: field 'info' is"),
        ("asearcher", {"answer": []}, "row 2: field 'answer' is empty"),
        ("asearcher", {"answer": [{"x": 1}]}, r"row 2: field 'answer\[0\]' is"),
        ("webdancer", {"answer": True}, "row 2: field 'answer' is True"),
        (
            "browsecomp_plus",
            {"query": "QmFzZTY0" * 12},
            "row 2: field 'query' is enciphered. Decipher the file",
        ),
        (
            "browsecomp_plus",
            {"evidence_docs": "["},
            "row 2: field 'evidence_docs' is a string but not JSON",
        ),
    ],
)
def test_hostile_rows(benchmark: str, changes: Row, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", ROWS[benchmark], ROWS[benchmark] | changes)
    with pytest.raises(DataError, match=message):
        list(WEB_BENCHMARKS[benchmark].read(path))


def gaia(number: int, level: int = 1, file: str = "") -> Row:
    named = {"task_id": f"g{number}", "Question": f"How many {number}?"}
    return ROWS["gaia"] | named | {"Level": level, "file_name": file}


def test_tasks_of_questions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "metadata.jsonl", gaia(1), gaia(2, 2), gaia(3, 3, "a.xlsx"))
    tasks = build(path)
    assert [task.id for task in tasks] == [
        "gaia-validation-g1",
        "gaia-validation-g2",
        "gaia-validation-g3",
    ]
    assert tasks[1].questions[0].answers == ("17",)
    assert not tasks[0].documents
    assert "1 need a file that no tool here opens" in capsys.readouterr().out
    assert [
        task.id[-2:] for task in build(path, "--where", "file_name=", "--where", "level=2")
    ] == ["g2"]
    only = write(
        tmp_path / "only.jsonl",
        {"task_id": "g3", "Question": "?"},
        {"id": "x", "question": "how many 1"},
    )
    assert [task.id[-2:] for task in build(path, "--only", str(only))] == ["g1", "g3"]
    assert main(["show", str(tmp_path / "tasks.jsonl")]) == 0
    assert "How many 3?" in capsys.readouterr().out


def test_several_questions_a_task_a_sample_and_a_root_page_that_is_the_first(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "metadata.jsonl", *(gaia(number) for number in range(7)))
    tasks = build(path, "--questions", "3")
    asked = [question.id for task in tasks for question in task.questions]
    assert [len(task.questions) for task in tasks] == [3, 3]
    assert len(set(asked)) == 6
    assert [task.id for task in build(path, "--n", "2")] == [
        task.id for task in build(path, "--n", "2")
    ]
    assert len(build(path, "--n", "2")) == 2
    path = write(tmp_path / "main.jsonl", ROWS["webwalkerqa"])
    (with_it,) = build(path, "--start_page", benchmark="webwalkerqa", split="test")
    (without,) = build(path, benchmark="webwalkerqa", split="test")
    assert (with_it.metadata["start"], without.metadata.get("start")) == (
        "https://a.example/",
        None,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--where", "color=red"),
            "where=color: a question of gaia has level, file_name, category",
        ),
        (("--where", "level=9"), "none of 2 questions is left"),
        (("--questions", "5"), "questions=5: there are only 2"),
        (("--out", "{path}"), "would overwrite"),
        (("--input", "{twice}"), "row 2: id 'g1' is also at"),
    ],
)
def test_what_cannot_be_built(
    tmp_path: Path, arguments: tuple[str, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "metadata.jsonl", gaia(1), gaia(2))
    twice = write(tmp_path / "twice.jsonl", gaia(1), gaia(1))
    assert call(path, *(argument.format(path=path, twice=twice) for argument in arguments)) == 2
    assert message in capsys.readouterr().err
