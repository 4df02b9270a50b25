"""Answers in the benchmarks' official prediction formats, scored again as their scripts do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atommem.cli import main
from atommem.envs.scoring.records import EpisodeRecord, QuestionRecord
from atommem.errors import ConfigError, DataError
from atommem.eval.reporting.evaluations import Evaluation
from atommem.eval.reporting.predictions import write_predictions
from tests.envs.benchmark_rows import write_lines
from tests.eval.toys import evaluated, make_task


def question(identifier: str, answer: str | None, category: str = "", **attributes: str) -> QuestionRecord:
    metrics = {"em": float(answer == "right")}
    return QuestionRecord(identifier, f"{identifier}?", answer, ("right",), category, metrics, attributes)


def record(source: str, task: str, *questions: QuestionRecord, sample: int = 0) -> EpisodeRecord:
    return EpisodeRecord(task, sample, source, "answered", None, 0.0, {}, questions, {}, 1.0)


def written(tmp_path: Path, *records: EpisodeRecord, gold: Path | None = None) -> str:
    (path,) = write_predictions([Evaluation(tmp_path, "ours", "x", records=records)], tmp_path / "out", gold)
    return path.read_text()


@pytest.mark.parametrize(("source", "more"), [("hotpotqa", {}), ("2wikimultihopqa", {"evidence": {}})])
def test_hotpotqa_and_2wiki(tmp_path: Path, source: str, more: dict[str, object]) -> None:
    again = record(source, "t0", question("a", "later"), sample=1)
    records = [again, record(source, "t0", question("a", "right"), question("b", None)), record(source, "t1")]
    assert json.loads(written(tmp_path, *records)) == {"answer": {"a": "right", "b": ""}, "sp": {}, **more}


def test_musique_in_the_order_of_the_gold_file(tmp_path: Path) -> None:
    records = [
        record("musique", "t0", question("b", "right")),
        record("musique", "t1", question("a", "It is not mentioned.", answerable="False")),
        record("musique", "t2", question("a", "x", answerable="True")),
    ]
    rows = [("a", True), ("c", True), ("b", True), ("a", False)]
    gold = write_lines(tmp_path / "gold.jsonl", [{"id": name, "answerable": flag} for name, flag in rows])
    lines = [json.loads(line) for line in written(tmp_path, *records, gold=gold).splitlines()]
    assert [(line["id"], line["predicted_answer"], line["predicted_answerable"]) for line in lines] == [
        ("a", "x", True),
        ("c", "", True),
        ("b", "right", True),
        ("a", "It is not mentioned.", False),
    ]
    assert {tuple(line) for line in lines} == {
        ("id", "predicted_answer", "predicted_support_idxs", "predicted_answerable")
    }
    assert len(written(tmp_path, *records).splitlines()) == 3


def test_locomo_by_conversation(tmp_path: Path) -> None:
    records = [
        record("locomo", "t1", question("c-1-010", "right", "temporal"), question("c-1-002", "(a)", "adversarial")),
        record("locomo", "t2", question("c-2-000", None, "multi_hop")),
    ]
    option = record(
        "locomo", "t3", QuestionRecord("c-2-001", "?", "(b)", ("not mentioned",), "adversarial", {"em": 1.0})
    )
    first, second = json.loads(written(tmp_path, *records, option))
    assert first["sample_id"] == "c-1"
    assert [(item["category"], item["atommem_prediction"]) for item in first["qa"]] == [(5, "(a)"), (2, "right")]
    assert [item["atommem_prediction"] for item in second["qa"]] == ["", "not mentioned"]


def test_longmemeval(tmp_path: Path) -> None:
    lines = written(tmp_path, record("longmemeval", "t0", question("lme0", "right"))).splitlines()
    assert [json.loads(line) for line in lines] == [{"question_id": "lme0", "hypothesis": "right"}]


@pytest.mark.parametrize("source", ["hotpotqa", "musique", "locomo", "longmemeval"])
def test_an_answer_that_no_file_takes_is_written_all_the_same(tmp_path: Path, source: str) -> None:
    assert "half of a" in written(tmp_path, record(source, "t0", question("c-0", "half of a \ud83d", "temporal")))


def test_what_has_no_format_or_no_ids(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the tasks are of synthetic: official formats are known of hotpotqa"):
        written(tmp_path, record("synthetic", "t0", question("a", "x")))
    with pytest.raises(DataError, match="task 't0' has a question without an id"):
        written(tmp_path, record("hotpotqa", "t0", question("", "x")))
    gold = write_lines(tmp_path / "gold.jsonl", [{"name": "a"}])
    with pytest.raises(DataError, match=r"gold\.jsonl: row 1: field 'id' is missing"):
        written(tmp_path, record("musique", "t0", question("a", "x")), gold=gold)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--deltas"], "give it with --reference"),
        (["--gold", "gold.jsonl"], "give --export predictions"),
        (["--paper", "table9"], "paper is 'table9': give one of table1"),
    ],
)
async def test_what_would_do_nothing_is_refused_before_anything_is_written(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await evaluated([make_task("t0")], tmp_path / "ours")
    assert main(["report", str(tmp_path / "ours"), "--out", str(tmp_path / "report"), *flags]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "report").exists()


async def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await evaluated([make_task("t0", questions=2)], tmp_path / "ours")
    out = tmp_path / "report"
    assert main(["report", str(tmp_path / "ours"), "--out", str(out), "--export", "predictions", "inspect"]) == 0
    path = out / "predictions" / "ours-hotpotqa-seed0.json"
    assert str(path) in capsys.readouterr().out
    assert json.loads(path.read_text()) == {"answer": {"q0": "t0-0", "q1": "t0-1"}, "sp": {}}
