"""Scores by what benchmarks say of a question, as tidy rows, on the terminal and in a report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from atommem.cli import main
from atommem.envs.scoring.breakdowns import breakdowns
from atommem.envs.scoring.records import EpisodeRecord, QuestionRecord
from atommem.envs.task import Document, Question, Task, describe_task
from atommem.eval.console_report import breakdown_table
from atommem.eval.runner import evaluate
from tests.eval.toys import make_runner, make_task


def record(task: str, *questions: tuple[float, dict[str, str]]) -> EpisodeRecord:
    asked = tuple(
        QuestionRecord(f"{task}{number}", "?", "x", ("y",), "", {"em": score, "f1": score}, attributes)
        for number, (score, attributes) in enumerate(questions)
    )
    return EpisodeRecord(task, 0, "hotpotqa", "answered", None, 0.0, {}, asked, {}, 1.0)


RECORDS = [
    record("a", (1.0, {"type": "bridge", "hops": "2", "level": "hard"})),
    record("b", (0.0, {"type": "bridge", "hops": "10", "level": "hard"}), (1.0, {"type": "comparison", "hops": "3"})),
    record("c", (0.0, {"type": "comparison", "hops": "2", "level": "hard"})),
]


def test_rows_are_tidy_and_means_are_over_questions() -> None:
    rows = breakdowns(RECORDS, ["em"])
    assert [(row["by"], row["value"], row["mean"], row["n"]) for row in rows] == [
        ("type", "bridge", 0.5, 2),
        ("type", "comparison", 0.5, 2),
        ("hops", "2", 0.5, 2),
        ("hops", "3", 1.0, 1),
        ("hops", "10", 0.0, 1),
        ("questions", "1", 0.5, 2),
        ("questions", "2", 0.5, 2),
    ], "an attribute with one value says nothing (level); numbers sort by size; the number of questions is the task's"
    assert {row["metric"] for row in breakdowns(RECORDS)} == {"em", "f1"}
    assert all(row["low"] <= row["mean"] <= row["high"] for row in rows)
    lost = [
        replace(RECORDS[0], stop_reason="context_overflow"),
        replace(RECORDS[0], stop_reason="failed", questions=()),
    ]
    rows = breakdowns([*RECORDS[1:], *lost], ["em"])
    assert {(row["by"], row["value"]): row["n"] for row in rows}["type", "bridge"] == 1, "those are in no row"


def test_where_the_evidence_lies_is_told_in_fifths() -> None:
    documents = tuple(Document(str(number), "text") for number in range(10))
    questions = (
        Question("?", ("x",), "q", {"type": "bridge", "hops": 2, "supporting": [], "documents": [0, 9]}),
        Question("?", ("x",), "r", {"documents": [5]}),
        Question("?", ("x",), "s"),
    )
    assert [question.attributes for question in describe_task(Task("t", questions, documents)).questions] == [
        {"type": "bridge", "hops": "2", "first evidence": "0-20%", "last evidence": "80-100%"},
        {"first evidence": "40-60%", "last evidence": "40-60%"},
        {},
    ]


@pytest.mark.usefixtures("undrawn")
async def test_an_evaluation_writes_them_and_its_report_shows_them(tmp_path: Path) -> None:
    runner, policy = make_runner()
    policy.wrong = {"t0", "t1"}
    kinds = [{"type": "bridge" if number < 3 else "comparison"} for number in range(6)]
    tasks = [make_task(f"t{number}") for number in range(6)]
    tasks = [
        replace(task, questions=tuple(replace(item, metadata=kind) for item in task.questions))
        for task, kind in zip(tasks, kinds, strict=True)
    ]
    result = await evaluate(tasks, runner, tmp_path / "a", progress=False)
    found = json.loads((tmp_path / "a" / "summary.json").read_text())["breakdowns"]
    assert found == breakdowns(result.records)
    means = {row["value"]: row["mean"] for row in found if row["metric"] == "em"}
    assert means == {"bridge": pytest.approx(1 / 3), "comparison": 1.0}
    table = breakdown_table(breakdowns(result.records, ["em"]))
    cells = [list(column.cells) for column in table.columns]
    assert cells[:2] == [["type", "  bridge", "  comparison"], ["", "3", "3"]]
    assert main(["report", str(tmp_path / "a"), "--out", str(tmp_path / "report")]) == 0
    assert json.loads((tmp_path / "report" / "results.json").read_text())["cells"][0]["breakdowns"] == found
    text = (tmp_path / "report" / "tables.md").read_text()
    assert "|  | bridge (n 3) | comparison (n 3) |" in text
    assert "## EM by type" in text
