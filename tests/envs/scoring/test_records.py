"""Records take their scores from the environment, whatever scores it has, and are broken down by what tasks say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atommem.cli import main
from atommem.description import QuestionDescription, TaskDescription
from atommem.environment import Environment, Score, find_environment
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
from atommem.episode import Episode
from atommem.errors import DataError
from atommem.eval.runner import evaluate
from atommem.eval.summary import breakdown_table, summary_table
from atommem.observation import StopReason
from tests.eval.toys import make_runner, make_task

TASK = TaskDescription(
    "t", "web", (QuestionDescription("Where?", ("Port",), "q0"), QuestionDescription("Who?"))
)


def episode(reward: float | None = 0.5, **more: Any) -> Episode:
    stop = StopReason.FAILED if reward is None else StopReason.ANSWERED
    return Episode("t", 0, reward=reward, stop_reason=stop, **more)


def test_a_description_says_what_scores_and_traces_need() -> None:
    question = Question(
        "Where?", ("Port", "Harbour"), "q", {"category": "temporal", "supporting": [("A", 0)]}
    )
    found = describe_task(Task("t", (question, Question("Who?", ("Orla",))), source="locomo"))
    first = QuestionDescription("Where?", ("Port", "Harbour"), "q", "temporal")
    assert found == TaskDescription("t", "locomo", (first, QuestionDescription("Who?", ("Orla",))))
    assert json.loads(json.dumps(found.to_json()))["questions"][0] == {
        **{
            "text": "Where?",
            "golds": ["Port", "Harbour"],
            "id": "q",
            "category": "temporal",
            "attributes": {},
        }
    }
    documents = tuple(Document(str(number), "text") for number in range(10))
    attributes = {"type": "bridge", "hops": 2, "supporting": [], "documents": [0, 9]}
    questions = (
        Question("?", ("x",), "q", attributes),
        Question("?", ("x",), "r", {"documents": [5]}),
    )
    assert [
        question.attributes for question in describe_task(Task("t", questions, documents)).questions
    ] == [
        {"type": "bridge", "hops": "2", "first evidence": "0-20%", "last evidence": "80-100%"},
        {"first evidence": "40-60%", "last evidence": "40-60%"},
    ]


def test_scores_are_the_environments_also_where_they_are_wrong() -> None:
    """The answer is gold, and the environment says 0: the record says what the environment said."""
    scored = episode(
        answers=("Port", None), question_metrics=({"em": 0.0, "style": 0.25}, {"em": 1.0})
    )
    record = record_of(TASK, scored, ({"fact_kept": 1.0}, {}))
    assert [question.metrics for question in record.questions] == [
        {"em": 0.0, "style": 0.25, "fact_kept": 1.0},
        {"em": 1.0},
    ]
    assert [question.right for question in record.questions] == [False, True]
    assert [question.answer for question in record.questions] == ["Port", None]
    assert (record.source, record.right, record.scores("em")) == ("web", False, [0.0, 1.0])
    assert EpisodeRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


def test_an_environment_that_scores_whole_episodes_only() -> None:
    record = record_of(TASK, episode(0.5, metrics={"success": 1.0, "calls": 7.0}))
    assert [question.answer for question in record.questions] == [None, None]
    assert (record.scores("reward"), record.scores("success"), record.scores("em")) == (
        [0.5],
        [1.0],
        [],
    )
    assert main_metric([record]) == "reward"
    assert metric_names([record]) == ["reward", "success"], "calls are counted: no proportion"
    summary = summarize([record, record_of(TaskDescription("u"), episode(1.0))])
    assert (summary["metric"], summary["metrics"]["reward"]["mean"]) == ("reward", 0.75)
    assert summary["means"]["calls"] == 7.0
    assert not record.right
    assert record_of(TaskDescription("u"), episode(1.0)).right


def test_an_episode_that_nothing_scores_is_neither_right_nor_wrong_nor_failed_and_a_failed_one_has_no_score() -> (
    None
):
    unknown = record_of(TASK, replace(episode(0.5, answers=("Port", "x")), reward=None))
    assert (unknown.right, unknown.failed, unknown.reward) == (None, False, None)
    assert [question.right for question in unknown.questions] == [None, None]
    summary = summarize([unknown])
    assert (summary["failed"], summary["metrics"]) == (0, {})
    assert "reward" not in summary["means"]
    summary = summarize(
        [unknown, record_of(TaskDescription("u"), episode(0.5, metrics={"em": 0.5}))]
    )
    assert (summary["metric"], summary["metrics"]["em"]["mean"]) == ("em", 0.5)
    assert (summary["means"]["reward"], summary["means"]["reward_std"]) == (0.5, 0.0)
    failed = record_of(TASK, episode(None, error="gone"))
    assert (failed.questions, failed.scores("reward"), failed.scores("em")) == ((), [], [])
    assert (summarize([failed])["metrics"], main_metric([failed])) == ({}, "em")


@pytest.mark.parametrize(
    "scored",
    [{"answers": ("x",)}, {"question_metrics": ({"em": 1.0},)}, {"answers": ("a", "b", "c")}],
)
def test_a_score_of_other_questions_is_an_error(scored: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="'t' has 2 questions"):
        record_of(TASK, episode(**scored))


class OnlyRewards:
    """The long document's environment without exact match: its reward is all that it says, and once a count."""

    def __init__(self, inner: Environment) -> None:
        self._inner = inner
        self.reset, self.step = inner.reset, inner.step

    async def score(self) -> Score:
        score = await self._inner.score()
        return Score(0.5 + 0.5 * score.reward, score.answers, {"calls": 3.0})


@pytest.mark.usefixtures("undrawn")
async def test_an_environment_without_exact_match_is_evaluated_compared_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make = find_environment("longdoc").__call__
    monkeypatch.setattr(
        find_environment("longdoc"), "__call__", lambda self: OnlyRewards(make(self))
    )
    monkeypatch.setattr(find_environment("longdoc"), "diagnose", lambda self, task, episode: ())
    names = [f"t{number}" for number in range(8)]
    for folder, wrong in (("a", names[:6]), ("b", names[:1])):
        runner, policy = make_runner()
        policy.wrong = set(wrong)
        result = await evaluate(
            [make_task(name) for name in names], runner, tmp_path / folder, progress=False
        )
    assert result.mean("reward") == pytest.approx((7 + 0.5) / 8)
    cells = [
        str(cell) for column in summary_table(result.summary()).columns for cell in column.cells
    ]
    assert "Reward [95% interval]" in cells
    assert "EM [95% interval]" not in cells
    folders = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert main(["compare", *folders, "--json", str(tmp_path / "c.json")]) == 0
    found = json.loads((tmp_path / "c.json").read_text())
    assert (found["metric"], found["wins"], found["losses"]) == ("reward", 5, 0)
    assert "Reward on the 8 tasks" in capsys.readouterr().out
    out = tmp_path / "report"
    assert main(["report", *folders, "--out", str(out)]) == 0
    results = json.loads((out / "results.json").read_text())
    means = [(line["metric"], line["mean"]) for line in results["scores"]]
    assert means == [("reward", pytest.approx(5 / 8)), ("reward", pytest.approx(7.5 / 8))]
    assert [item["metric"] for item in results["comparisons"]] == ["reward"]
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
    ], (
        "an attribute with one value says nothing (level); numbers sort by size; the number of questions is the task's"
    )
    assert {row["metric"] for row in breakdowns(RECORDS)} == {"em", "f1"}
    assert all(row["low"] <= row["mean"] <= row["high"] for row in rows)
    lost = [
        replace(RECORDS[0], stop_reason="context_overflow"),
        replace(RECORDS[0], stop_reason="failed", questions=()),
    ]
    rows = breakdowns([*RECORDS[1:], *lost], ["em"])
    assert {(row["by"], row["value"]): row["n"] for row in rows}["type", "bridge"] == 1, (
        "those are in no row"
    )


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
    lines = json.loads((tmp_path / "report" / "results.json").read_text())["breakdowns"]
    assert lines == [{"row": "a", "column": "hotpotqa", **line} for line in found]
    text = (tmp_path / "report" / "tables.md").read_text()
    assert "|  | bridge (n 3) | comparison (n 3) |" in text
    assert "## EM by type" in text
