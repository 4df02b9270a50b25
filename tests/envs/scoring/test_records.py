"""Records: scores of the environment, summaries, and breakdowns by attributes of tasks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atommem.cli import main
from atommem.environment import (
    Environment,
    QuestionDescription,
    Score,
    TaskDescription,
    find_environment,
)
from atommem.envs.scoring.breakdowns import breakdowns
from atommem.envs.scoring.records import (
    EpisodeRecord,
    QuestionRecord,
    main_metric,
    metric_names,
    record_of,
    summarize,
)
from atommem.envs.task import Document, Question, Task, describe_task
from atommem.episode import Episode, StopReason
from atommem.errors import DataError
from atommem.eval.runner import evaluate
from tests.eval.toys import make_runner, make_task

TASK = TaskDescription(
    "t", "web", (QuestionDescription("Where?", ("Port",), "q0"), QuestionDescription("Who?"))
)


def episode(reward: float | None = 0.5, **more: Any) -> Episode:
    stop = StopReason.FAILED if reward is None else StopReason.ANSWERED
    return Episode("t", 0, reward=reward, stop_reason=stop, **more)


def test_description_of_a_task_has_golds_category_and_evidence_positions() -> None:
    metadata = {"category": "temporal", "supporting": [("A", 0)]}
    question = Question("Where?", ("Port", "Harbour"), "q", metadata)
    found = describe_task(Task("t", (question, Question("Who?", ("Orla",))), source="locomo"))
    first = QuestionDescription("Where?", ("Port", "Harbour"), "q", "temporal")
    assert found == TaskDescription("t", "locomo", (first, QuestionDescription("Who?", ("Orla",))))
    documents = tuple(Document(str(number), "text") for number in range(10))
    attributes = {"type": "bridge", "hops": 2, "supporting": [], "documents": [0, 9]}
    (described,) = describe_task(
        Task("t", (Question("?", ("x",), "q", attributes),), documents)
    ).questions
    places = {"first evidence": "0-20%", "last evidence": "80-100%"}
    assert described.attributes == {"type": "bridge", "hops": "2", **places}


def test_record_has_the_scores_of_the_environment() -> None:
    """The record does not score again: it has 0 where the environment gave a gold answer 0."""
    metrics = ({"em": 0.0, "style": 0.25}, {"em": 1.0})
    scored = episode(answers=("Port", None), question_metrics=metrics)
    record = record_of(TASK, scored, ({"fact_kept": 1.0}, {}))
    first, second = record.questions
    assert first.metrics == {"em": 0.0, "style": 0.25, "fact_kept": 1.0}
    assert second.metrics == {"em": 1.0}
    assert (first.right, second.right) == (False, True)
    assert (first.answer, second.answer) == ("Port", None)
    assert (record.source, record.right, record.scores("em")) == ("web", False, [0.0, 1.0])
    assert EpisodeRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


def test_record_of_an_episode_scored_as_a_whole_has_reward_as_main_metric() -> None:
    record = record_of(TASK, episode(0.5, metrics={"success": 1.0, "calls": 7.0}))
    assert (record.scores("reward"), record.scores("em")) == ([0.5], [])
    assert metric_names([record]) == ["reward", "success"], "calls are counts"
    summary = summarize([record, record_of(TaskDescription("u"), episode(1.0))])
    assert (summary["metric"], summary["metrics"]["reward"]["mean"]) == ("reward", 0.75)
    assert summary["means"]["calls"] == 7.0
    assert not record.right


def test_unscored_episode_is_in_no_mean() -> None:
    unknown = record_of(TASK, replace(episode(0.5, answers=("Port", "x")), reward=None))
    assert (unknown.right, unknown.failed, unknown.reward) == (None, False, None)
    scored = record_of(TaskDescription("u"), episode(0.5, metrics={"em": 0.5}))
    summary = summarize([unknown, scored])
    assert (summary["metric"], summary["metrics"]["em"]["mean"]) == ("em", 0.5)
    assert (summary["means"]["reward"], summary["means"]["reward_std"]) == (0.5, 0.0)


def test_failed_episode_has_no_score() -> None:
    failed = record_of(TASK, episode(None, error="gone"))
    assert (failed.questions, failed.scores("reward"), failed.scores("em")) == ((), [], [])
    assert (summarize([failed])["metrics"], main_metric([failed])) == ({}, "em")


@pytest.mark.parametrize("scored", [{"answers": ("x",)}, {"question_metrics": ({"em": 1.0},)}])
def test_record_of_another_number_of_questions_raises(scored: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="'t' has 2 questions"):
        record_of(TASK, episode(**scored))


class OnlyRewards:
    """The long document's environment with a reward and a count as its only scores."""

    def __init__(self, inner: Environment) -> None:
        self._inner = inner
        self.reset, self.step = inner.reset, inner.step

    async def score(self) -> Score:
        score = await self._inner.score()
        return Score(0.5 + 0.5 * score.reward, score.answers, {"calls": 3.0})


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
async def test_environment_without_exact_match_is_evaluated_compared_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    longdoc = find_environment("longdoc")
    make = longdoc.__call__
    monkeypatch.setattr(longdoc, "__call__", lambda self: OnlyRewards(make(self)))
    monkeypatch.setattr(longdoc, "diagnose", lambda self, task, episode: ())
    names = [f"t{number}" for number in range(8)]
    tasks = [make_task(name) for name in names]
    for folder, wrong in (("a", names[:6]), ("b", names[:1])):
        runner, policy = make_runner()
        policy.wrong = set(wrong)
        await evaluate(tasks, runner, tmp_path / folder, progress=False)
    folders = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert main(["compare", *folders, "--json", str(tmp_path / "c.json")]) == 0
    found = json.loads((tmp_path / "c.json").read_text())
    assert (found["metric"], found["wins"], found["losses"]) == ("reward", 5, 0)
    out = tmp_path / "report"
    assert main(["report", *folders, "--out", str(out)]) == 0
    results = json.loads((out / "results.json").read_text())
    means = [(line["metric"], line["mean"]) for line in results["scores"]]
    assert means == [("reward", pytest.approx(5 / 8)), ("reward", pytest.approx(7.5 / 8))]
    assert "|  | Reward | n | episodes |" in (out / "tables.md").read_text()


def record(task: str, *questions: tuple[float, dict[str, str]]) -> EpisodeRecord:
    asked = tuple(
        QuestionRecord(
            f"{task}{number}", "?", "x", ("y",), "", {"em": score, "f1": score}, attributes
        )
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
    rows = breakdowns(RECORDS, ["em"])
    assert [(row["by"], row["value"], row["mean"], row["n"]) for row in rows] == [
        ("type", "bridge", 0.5, 2),
        ("type", "comparison", 0.5, 2),
        ("hops", "2", 0.5, 2),
        ("hops", "3", 1.0, 1),
        ("hops", "10", 0.0, 1),
        ("questions", "1", 0.5, 2),
        ("questions", "2", 0.5, 2),
    ]
    assert all(row["low"] <= row["mean"] <= row["high"] for row in rows)
    lost = [
        replace(RECORDS[0], stop_reason="context_overflow"),
        replace(RECORDS[0], stop_reason="failed", questions=()),
    ]
    rows = breakdowns([*RECORDS[1:], *lost], ["em"])
    assert {(row["by"], row["value"]): row["n"] for row in rows}["type", "bridge"] == 1


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
async def test_evaluation_and_report_have_breakdowns(tmp_path: Path) -> None:
    runner, policy = make_runner()
    policy.wrong = {"t0", "t1"}
    tasks = []
    for number in range(6):
        task = make_task(f"t{number}")
        kind = {"type": "bridge" if number < 3 else "comparison"}
        tasks.append(replace(task, questions=(replace(task.questions[0], metadata=kind),)))
    result = await evaluate(tasks, runner, tmp_path / "a", progress=False)
    found = json.loads((tmp_path / "a" / "summary.json").read_text())["breakdowns"]
    assert found == breakdowns(result.records)
    means = {row["value"]: row["mean"] for row in found if row["metric"] == "em"}
    assert means == {"bridge": pytest.approx(1 / 3), "comparison": 1.0}
    assert main(["report", str(tmp_path / "a"), "--out", str(tmp_path / "report")]) == 0
    lines = json.loads((tmp_path / "report" / "results.json").read_text())["breakdowns"]
    assert lines == [{"row": "a", "column": "hotpotqa", **line} for line in found]
    text = (tmp_path / "report" / "tables.md").read_text()
    assert "|  | bridge (n 3) | comparison (n 3) |" in text
