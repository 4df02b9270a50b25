"""The web's benchmarks: rows, invalid rows, and their tasks."""

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
    "gaia": {"task_id": "g1", "Question": "How many?", "Level": "2", "Final answer": "17"},
    "webwalkerqa": {
        "question": "谁？",  # noqa: RUF001
        "answer": "北京",
        "root_url": "https://a.example/",
        "info": {"Type": "single_source", "Difficulty_Level": "easy", "Language": "zh"},
    },
    "asearcher": {"question": "Who?", "answer": ["Ann"], "aug_answer": ["Anna", "Ann"], "qid": 7},
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
    flags = ["--environment", "web", "--benchmark", benchmark, "--split", split]
    out = str(path.with_name("tasks.jsonl"))
    return main(["build", *flags, "--input", str(path), "--out", out, *arguments])


def build(path: Path, *arguments: str, **more: str) -> list[Task]:
    assert call(path, *arguments, **more) == 0
    return load_tasks(path.with_name("tasks.jsonl"))


def test_rows_of_every_benchmark_have_answers_and_categories(tmp_path: Path) -> None:
    rows = {
        name: next(WEB_BENCHMARKS[name].read(write(tmp_path / name, row)))
        for name, row in ROWS.items()
    }
    assert rows["gaia"].metadata == {"level": 2, "file_name": "", "category": "level 2"}
    walker = rows["webwalkerqa"].metadata
    assert (walker["lang"], walker["category"]) == ("zh", "zh single_source")
    assert (rows["asearcher"].id, rows["asearcher"].answers) == ("7", ("Ann", "Anna"))
    assert rows["webdancer"].metadata == {"category": "e2hqa"}
    plus = rows["browsecomp_plus"]
    assert (plus.id, plus.metadata) == ("769", {"evidence": [["5", "u"]]})
    assert all(not row.paragraphs and row.source == name for name, row in rows.items())


def test_gaia_answers_may_be_numbers_or_hidden(tmp_path: Path) -> None:
    changes = ({"Final answer": 17}, {"Final answer": "?"})
    path = write(tmp_path / "x", *(ROWS["gaia"] | change for change in changes))
    assert [row.answers for row in WEB_BENCHMARKS["gaia"].read(path)] == [("17",), ()]


@pytest.mark.parametrize(
    ("benchmark", "changes", "message"),
    [
        ("gaia", {"Level": "4"}, "row 2: field 'Level' is '4', expected 1, 2 or 3"),
        ("webwalkerqa", {"info": [1]}, "row 2: field 'info' is"),
        ("asearcher", {"answer": []}, "row 2: field 'answer' is empty"),
        ("browsecomp_plus", {"query": "QmFzZTY0" * 12}, "'query' is enciphered. Decipher the file"),
    ],
)
def test_row_with_a_wrong_field_raises_with_its_place(
    benchmark: str, changes: Row, message: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "x.jsonl", ROWS[benchmark], ROWS[benchmark] | changes)
    with pytest.raises(DataError, match=message):
        list(WEB_BENCHMARKS[benchmark].read(path))


def gaia(number: int, level: int = 1, file: str = "") -> Row:
    named = {"task_id": f"g{number}", "Question": f"How many {number}?"}
    return ROWS["gaia"] | named | {"Level": level, "file_name": file}


def test_build_selects_questions_by_field_or_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "metadata.jsonl", gaia(1), gaia(2, 2), gaia(3, 3, "a.xlsx"))
    tasks = build(path)
    assert [task.id for task in tasks] == [f"gaia-validation-g{number}" for number in (1, 2, 3)]
    assert tasks[1].questions[0].answers == ("17",)
    assert "1 need a file that no tool here opens" in capsys.readouterr().out
    (second,) = build(path, "--where", "file_name=", "--where", "level=2")
    assert second.id == "gaia-validation-g2"
    listed = ({"task_id": "g3", "Question": "?"}, {"id": "x", "question": "how many 1"})
    only = write(tmp_path / "only.jsonl", *listed)
    assert [task.id[-2:] for task in build(path, "--only", str(only))] == ["g1", "g3"]


def test_build_groups_and_samples_questions(tmp_path: Path) -> None:
    path = write(tmp_path / "metadata.jsonl", *(gaia(number) for number in range(7)))
    tasks = build(path, "--questions", "3")
    assert [len(task.questions) for task in tasks] == [3, 3]
    assert len({question.id for task in tasks for question in task.questions}) == 6
    sample = build(path, "--n", "2")
    assert len(sample) == 2
    assert sample == build(path, "--n", "2")


def test_build_with_start_page_begins_at_the_root(tmp_path: Path) -> None:
    path = write(tmp_path / "main.jsonl", ROWS["webwalkerqa"])
    (task,) = build(path, "--start_page", benchmark="webwalkerqa", split="test")
    assert task.metadata["start"] == "https://a.example/"
    (task,) = build(path, benchmark="webwalkerqa", split="test")
    assert "start" not in task.metadata


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--where", "color=red"), "a question of gaia has level, file_name, category"),
        (("--where", "level=9"), "none of 2 questions is left"),
        (("--out", "{path}"), "would overwrite"),
        (("--input", "{twice}"), "row 2: id 'g1' is also at"),
    ],
)
def test_build_with_an_invalid_option_is_refused(
    tmp_path: Path, arguments: tuple[str, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "metadata.jsonl", gaia(1), gaia(2))
    twice = write(tmp_path / "twice.jsonl", gaia(1), gaia(1))
    assert call(path, *(argument.format(path=path, twice=twice) for argument in arguments)) == 2
    assert message in capsys.readouterr().err
