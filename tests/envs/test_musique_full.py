"""MuSiQue-Full: tasks in pairs, and its official scores by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atommem.envs.scoring.records import EpisodeRecord, QuestionRecord, summarize
from atommem.envs.scoring.sufficiency import group_scores
from atommem.envs.task import Question, Task, describe_task
from atommem.envs.task_files import load_tasks
from tests.envs.benchmark_rows import musique_row, write_lines
from tests.fakes import WordTokenizer, command, longdoc

main = command("data")


def pair(number: int) -> list[dict[str, Any]]:
    """A question with all of its evidence, and the same one without its first supporting paragraph."""
    row = musique_row(number)
    missing = next(item for item in row["paragraphs"] if item["is_supporting"])
    return [row, {**row, "answerable": False, "paragraphs": [item for item in row["paragraphs"] if item != missing]}]


def build(path: Path, *more: Any) -> int:
    common = ["build", "--benchmark", "musique", "--split", "dev", "--input", path, "--seed", 3, "--unanswerable"]
    return main([*map(str, [*common, *more])])


def test_tasks_come_in_pairs_and_none_holds_what_its_question_lacks(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "musique_full_v1.0_dev.jsonl", [row for number in range(9) for row in pair(number)])
    for distractors in ("own", "pool"):
        out = tmp_path / f"{distractors}.jsonl"
        arguments = ("--distractors", distractors, "--docs", 6, "--n", 8, "--out", out)
        assert build(path, *arguments) == 0
        tasks = load_tasks(out)
        for first, second in zip(tasks[::2], tasks[1::2], strict=True):
            (asked,), (again,) = first.questions, second.questions
            assert (asked.id, asked.text) == (again.id, again.text)
            assert {asked.metadata["answerable"], again.metadata["answerable"]} == {True, False}
            assert describe_task(first).group == describe_task(second).group == asked.id
            assert 'answer "not mentioned"' in asked.text
            evidence = {document.text for task in (first, second) for document in task.documents if document.gold}
            refused = next(task for task in (first, second) if not task.questions[0].metadata["answerable"])
            held = {document.text for document in refused.documents if not document.gold}
            assert not held & evidence, "the missing paragraph would answer it"


async def test_scores_of_a_question_that_cannot_be_answered() -> None:
    environments = longdoc(WordTokenizer())
    for answerable, answer, expected in (
        (True, "Port", {"em": 1.0, "f1": 1.0, "sub_em": 1.0, "sufficiency": 1.0}),
        (True, "not mentioned", {"em": 0.0, "f1": 0.0, "sub_em": 0.0, "sufficiency": 0.0}),
        (True, None, {"em": 0.0, "f1": 0.0, "sub_em": 0.0, "sufficiency": 1.0}),
        (False, "It is not mentioned.", {"sufficiency": 1.0}),
        (False, "Port", {"sufficiency": 0.0}),
    ):
        question = Question("?", ("Port",), "q", {"answerable": answerable})
        score = await environments.score(Task("t", (question,), context="x", source="musique"), [answer])
        assert dict(score.question_metrics[0]) == expected
        assert score.reward == expected.get("em"), "what cannot be answered is no part of exact match"


def record(identifier: str, task: str, metrics: dict[str, float]) -> EpisodeRecord:
    question = QuestionRecord(identifier, "?", "x", ("y",), "", metrics)
    return EpisodeRecord(task, 0, "musique", "answered", None, None, {}, (question,), {}, 1.0, group=identifier)


def test_the_grouped_score_by_hand() -> None:
    right, half = ({"em": em, "f1": f1, "sufficiency": 1.0} for em, f1 in ((1.0, 1.0), (0.0, 0.5)))
    records = [
        *(record("a", "a1", half), record("a", "a2", {"sufficiency": 1.0})),
        *(record("b", "b1", right), record("b", "b2", {"sufficiency": 0.0})),  # answered what cannot be: nothing
        *(record("c", "c1", right), record("c", "c2", {"sufficiency": 1.0})),
        record("d", "d1", right),  # its other half failed: in no score
    ]
    found = group_scores((item.id, item.metrics) for one in records for item in one.questions)
    assert (found["group_answer_sufficiency_f1"]["mean"], found["group_answer_sufficiency_f1"]["n"]) == (0.5, 3)
    assert found["group_answer_sufficiency_em"]["mean"] == pytest.approx(1 / 3)
    summary = summarize(records)
    assert summary["metrics"]["group_answer_sufficiency_f1"] == found["group_answer_sufficiency_f1"]
    assert (summary["metrics"]["f1"]["n"], summary["metrics"]["f1"]["mean"]) == (4, 3.5 / 4), "answerable ones alone"
    assert summary["metrics"]["sufficiency"]["n"] == 7
    assert group_scores([("a", {"em": 1.0, "f1": 1.0})]) == {}
