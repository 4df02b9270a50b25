"""Records: scores of the environment, summaries, and breakdowns by attributes of tasks."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from atommem.environment import (
    QuestionDescription,
    TaskDescription,
)
from atommem.envs.scoring.paired import compare
from atommem.envs.scoring.records import (
    EpisodeRecord,
    QuestionRecord,
    breakdowns,
    metric_names,
    record_of,
    summarize,
)
from atommem.envs.task import Question, Task, describe_task
from atommem.episode import Episode, StopReason

TASK = TaskDescription(
    "t", "web", (QuestionDescription("Where?", ("Port",), "q0"), QuestionDescription("Who?"))
)


def episode(reward: float | None = 0.5, **more: Any) -> Episode:
    stop = StopReason.FAILED if reward is None else StopReason.ANSWERED
    return Episode("t", 0, reward=reward, stop_reason=stop, **more)


def test_description_of_a_task_has_golds_category_and_attributes() -> None:
    question = Question("Where?", ("Port", "Harbour"), "q", {"category": "c", "hops": 2, "x": 1})
    (described,) = describe_task(Task("t", (question,))).questions
    assert (described.golds, described.category) == (("Port", "Harbour"), "c")
    assert described.attributes == {"hops": "2"}


def test_record_has_the_scores_of_the_environment() -> None:
    """The record does not score again: it has 0 where the environment gave a gold answer 0."""
    metrics = ({"em": 0.0, "style": 0.25}, {"em": 1.0})
    scored = episode(answers=("Port", None), question_metrics=metrics)
    record = record_of(TASK, scored, ({"fact_kept": 1.0}, {}))
    first, second = record.questions
    assert first.metrics == {"em": 0.0, "style": 0.25, "fact_kept": 1.0}
    assert second.metrics == {"em": 1.0}
    assert (first.answer, second.answer) == ("Port", None)
    assert (record.source, record.scores("em")) == ("web", [0.0, 1.0])
    assert EpisodeRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


def test_unscored_episode_is_in_no_mean() -> None:
    unknown = record_of(TASK, replace(episode(0.5), reward=None))
    record = record_of(TASK, episode(0.5, metrics={"success": 1.0, "calls": 7.0}))
    summary = summarize([unknown, record, record_of(TaskDescription("u"), episode(1.0))])
    assert (summary["metric"], summary["metrics"]["reward"]["mean"]) == ("reward", 0.75)
    assert summary["means"]["calls"] == 7.0
    assert metric_names([record]) == ["reward", "success"], "calls are counts"


def record(task: str, *questions: tuple[float, dict[str, str]]) -> EpisodeRecord:
    asked = tuple(
        QuestionRecord(f"{task}{number}", "?", "x", ("y",), "", {"em": score}, attributes)
        for number, (score, attributes) in enumerate(questions)
    )
    return EpisodeRecord(task, 0, "hotpotqa", "answered", None, 0.0, {}, asked, {}, 1.0)


RECORDS = [
    record("a", (1.0, {"type": "bridge", "hops": "2", "level": "hard"})),
    record(
        "b",
        (0.0, {"type": "bridge", "hops": "10", "level": "hard"}),
        (1.0, {"type": "comparison", "hops": "3"}),
    ),
    record("c", (0.0, {"type": "comparison", "hops": "2", "level": "hard"})),
]


def test_breakdowns_are_means_over_questions_by_attribute() -> None:
    """Numbers sort by size; an attribute with one value (level) has no row."""
    rows = breakdowns(RECORDS)
    assert [(row["by"], row["value"], row["mean"], row["n"]) for row in rows] == [
        ("type", "bridge", 0.5, 2),
        ("type", "comparison", 0.5, 2),
        ("hops", "2", 0.5, 2),
        ("hops", "3", 1.0, 1),
        ("hops", "10", 0.0, 1),
        ("questions", "1", 0.5, 2),
        ("questions", "2", 0.5, 2),
    ]
    failed = replace(RECORDS[0], stop_reason="failed", questions=())
    rows = breakdowns([*RECORDS[1:], failed])
    assert {(row["by"], row["value"]): row["n"] for row in rows}["type", "bridge"] == 1


def test_compare_pairs_questions_and_counts_tasks() -> None:
    better = [RECORDS[0], record("b", (1.0, {}), (1.0, {})), record("d", (1.0, {}))]
    found = compare(RECORDS, better)
    assert (found.wins, found.losses, found.ties, found.left_out) == (1, 0, 1, 2)
    assert found.changes == {"a": 0.0, "b": 0.5}
    assert found.difference is not None
    assert found.difference.difference == pytest.approx(1 / 3)
