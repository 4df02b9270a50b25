"""Answers in the benchmarks' official prediction formats, scored again as their scripts do; and logs of inspect_ai."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atommem.cli import main
from atommem.envs.scoring.records import EpisodeRecord, QuestionRecord, summarize
from atommem.errors import ConfigError, DataError
from atommem.eval.reporting.evaluations import Evaluation, read_evaluation
from atommem.eval.reporting.inspect_export import inspect_log
from atommem.eval.reporting.predictions import write_predictions
from tests.envs.benchmark_rows import write_lines
from tests.eval.toys import evaluated, make_task

pytestmark = pytest.mark.usefixtures("undrawn")


def question(
    identifier: str, answer: str | None, category: str = "", **attributes: str
) -> QuestionRecord:
    metrics = {"em": float(answer == "right")}
    return QuestionRecord(
        identifier, f"{identifier}?", answer, ("right",), category, metrics, attributes
    )


def record(source: str, task: str, *questions: QuestionRecord, sample: int = 0) -> EpisodeRecord:
    return EpisodeRecord(task, sample, source, "answered", None, 0.0, {}, questions, {}, 1.0)


def written(tmp_path: Path, *records: EpisodeRecord, gold: Path | None = None) -> str:
    (path,) = write_predictions(
        [Evaluation(tmp_path, "ours", "x", records=records)], tmp_path / "out", gold
    )
    return path.read_text()


ANSWERS = {"a": "right", "b": "", "c": "half of a \ufffd"}
"""Half of a surrogate pair can be written to no file."""


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("hotpotqa", [{"answer": ANSWERS, "sp": {}}]),
        ("2wikimultihopqa", [{"answer": ANSWERS, "sp": {}, "evidence": {}}]),
        (
            "longmemeval",
            [{"question_id": name, "hypothesis": answer} for name, answer in ANSWERS.items()],
        ),
    ],
)
def test_by_question(tmp_path: Path, source: str, wanted: list[Any]) -> None:
    again = record(source, "t0", question("a", "later"), sample=1)
    first = record(
        source, "t0", question("a", "right"), question("b", None), question("c", "half of a \ud83d")
    )
    lines = written(tmp_path, again, first, record(source, "t1")).splitlines()
    assert [json.loads(line) for line in lines] == wanted


def test_musique_in_the_order_of_the_gold_file(tmp_path: Path) -> None:
    records = [
        record("musique", "t0", question("b", "right")),
        record("musique", "t1", question("a", "It is not mentioned.", answerable="False")),
        record("musique", "t2", question("a", "x", answerable="True")),
    ]
    rows = [("a", True), ("c", True), ("b", True), ("a", False)]
    gold = write_lines(
        tmp_path / "gold.jsonl", [{"id": name, "answerable": flag} for name, flag in rows]
    )
    lines = [json.loads(line) for line in written(tmp_path, *records, gold=gold).splitlines()]
    wanted = [
        ("a", "x", True),
        ("c", "", True),
        ("b", "right", True),
        ("a", "It is not mentioned.", False),
    ]
    names = ("id", "predicted_answer", "predicted_support_idxs", "predicted_answerable")
    assert lines == [
        dict(zip(names, (name, answer, [], flag), strict=True)) for name, answer, flag in wanted
    ]
    assert len(written(tmp_path, *records).splitlines()) == 3


def test_locomo_by_conversation(tmp_path: Path) -> None:
    option = replace(question("c-2-001", "(b)", "adversarial"), metrics={"em": 1.0})
    one = (question("c-1-010", "right", "temporal"), question("c-1-002", "(a)", "adversarial"))
    other = (question("c-2-000", None, "multi_hop"), option)
    first, second = json.loads(
        written(tmp_path, record("locomo", "t1", *one), record("locomo", "t2", *other))
    )
    assert first["sample_id"] == "c-1"
    assert [(item["category"], item["atommem_prediction"]) for item in first["qa"]] == [
        (5, "(a)"),
        (2, "right"),
    ]
    assert [item["atommem_prediction"] for item in second["qa"]] == ["", "not mentioned"]


def test_what_has_no_format_or_no_ids(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"the tasks are of synthetic\. Official formats exist for hotpotqa"
    ):
        written(tmp_path, record("synthetic", "t0", question("a", "x")))
    with pytest.raises(DataError, match="task 't0' has a question without an id"):
        written(tmp_path, record("hotpotqa", "t0", question("", "x")))
    gold = write_lines(tmp_path / "gold.jsonl", [{"name": "a"}])
    with pytest.raises(DataError, match=r"gold\.jsonl: row 1: field 'id' is missing"):
        written(tmp_path, record("musique", "t0", question("a", "x")), gold=gold)


async def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await evaluated([make_task("t0", questions=2)], tmp_path / "ours")
    out = tmp_path / "report"
    call = ["report", str(tmp_path / "ours"), "--out", str(out)]
    for flags, message in (
        (["--deltas"], "--deltas needs --reference"),
        (["--gold", "gold.jsonl"], "Add --export predictions"),
        (["--paper", "table9"], "paper=table9: unknown (did you mean table6?). Give one of table1"),
    ):
        assert main([*call, *flags]) == 2
        assert message in capsys.readouterr().err
        assert not out.exists()
    assert main([*call, "--export", "predictions", "inspect"]) == 0
    path = out / "predictions" / "ours-hotpotqa-seed0.json"
    assert str(path) in capsys.readouterr().out
    assert json.loads(path.read_text()) == {"answer": {"q0": "t0-0", "q1": "t0-1"}, "sp": {}}


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    await evaluated(
        [make_task(f"t{number}") for number in range(4)],
        tmp_path / "ours",
        wrong=["t1"],
        gone=["t2"],
    )
    return tmp_path


def exported(folder: Path) -> dict[str, Any]:
    assert (
        main(
            [
                "report",
                f"AtomMem={folder / 'ours'}",
                "--out",
                str(folder / "out"),
                "--export",
                "inspect",
            ]
        )
        == 0
    )
    (path,) = (folder / "out" / "inspect").iterdir()
    found: dict[str, Any] = json.loads(path.read_text())
    assert path.name.startswith(found["eval"]["created"][:10]), (
        "Inspect knows logs by a name that begins with a time"
    )
    return found


def test_a_log_has_every_episode_and_our_own_scores(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = exported(folder)
    ours = read_evaluation(folder / "ours")
    assert (log["version"], log["status"], log["eval"]["task"]) == (
        2,
        "success",
        "AtomMem on hotpotqa",
    )
    em = next(score for score in log["results"]["scores"] if score["name"] == "em")
    mean = summarize(ours.records)["metrics"]["em"]
    names = {"mean": "mean", "ci_low": "low", "ci_high": "high", "questions": "n"}
    assert {name: item["value"] for name, item in em["metrics"].items()} == {
        name: mean[part] for name, part in names.items()
    }
    assert [sample["id"] for sample in log["samples"]] == ["t0", "t1", "t2", "t3"]
    right, wrong, failed, _ = log["samples"]
    assert (right["scores"]["em"]["value"], wrong["scores"]["em"]["value"]) == (1.0, 0.0)
    assert failed["scores"] == {}
    assert failed["error"]["message"], "an outage is no wrong answer there either"
    assert [right["messages"][place]["role"] for place in (0, -1)] == ["user", "assistant"]
    assert "final_answer" in right["messages"][-1]["content"]
    assert "inspect view --log-dir" in capsys.readouterr().out
    # Nor are episodes scored that overflowed.
    ended = (
        replace(r, stop_reason="context_overflow") if r.task_id == "t3" else r for r in ours.records
    )
    log = inspect_log(replace(ours, records=tuple(ended)))
    assert {score["scored_samples"] for score in log["results"]["scores"]} == {2}
    assert [bool(sample["scores"]) for sample in log["samples"]] == [True, True, False, False]


def test_its_own_reader_takes_them(folder: Path) -> None:
    inspect = pytest.importorskip(
        "inspect_ai.log", reason="needs inspect_ai, which brings some sixty packages with it"
    )
    log = exported(folder)
    (read,) = map(inspect.read_eval_log, inspect.list_eval_logs(str(folder / "out" / "inspect")))
    assert (read.status, read.eval.task, read.eval.model) == (
        "success",
        "AtomMem on hotpotqa",
        log["eval"]["model"],
    )
    em = next(score for score in log["results"]["scores"] if score["name"] == "em")["metrics"][
        "mean"
    ]["value"]
    assert {score.name: score.metrics["mean"].value for score in read.results.scores}["em"] == em
    assert [
        (sample.id, sample.epoch, len(sample.messages), sample.error is not None)
        for sample in read.samples
    ] == [
        (sample["id"], 1, len(sample["messages"]), "error" in sample) for sample in log["samples"]
    ]
