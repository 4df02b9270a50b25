"""Predictions in the benchmarks' official formats, and logs of inspect_ai."""

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
from atommem.eval.reporting.exports import inspect_log, write_predictions
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
def test_predictions_by_question_use_the_first_sample(
    tmp_path: Path, source: str, wanted: list[Any]
) -> None:
    again = record(source, "t0", question("a", "later"), sample=1)
    first = record(
        source, "t0", question("a", "right"), question("b", None), question("c", "half of a \ud83d")
    )
    lines = written(tmp_path, again, first, record(source, "t1")).splitlines()
    assert [json.loads(line) for line in lines] == wanted


def test_predictions_of_musique_have_the_order_of_the_gold_file(tmp_path: Path) -> None:
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


def test_predictions_of_locomo_are_grouped_by_conversation(tmp_path: Path) -> None:
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


def test_predictions_without_a_format_or_ids_raise(tmp_path: Path) -> None:
    message = r"the tasks are of synthetic\. Official formats exist for hotpotqa"
    with pytest.raises(ConfigError, match=message):
        written(tmp_path, record("synthetic", "t0", question("a", "x")))
    with pytest.raises(DataError, match="task 't0' has a question without an id"):
        written(tmp_path, record("hotpotqa", "t0", question("", "x")))


async def test_report_command_exports_predictions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await evaluated([make_task("t0", questions=2)], tmp_path / "ours")
    out = tmp_path / "report"
    command = ["report", str(tmp_path / "ours"), "--out", str(out)]
    assert main([*command, "--paper", "table9"]) == 2
    assert "paper=table9: unknown (did you mean" in capsys.readouterr().err
    assert not out.exists()
    assert main([*command, "--export", "predictions"]) == 0
    path = out / "predictions" / "ours-hotpotqa-hotpotqa-seed0.json"
    assert str(path) in capsys.readouterr().out
    assert json.loads(path.read_text()) == {"answer": {"q0": "t0-0", "q1": "t0-1"}, "sp": {}}


async def test_inspect_log_has_every_episode_and_our_own_scores(tmp_path: Path) -> None:
    tasks = [make_task(f"t{number}") for number in range(4)]
    await evaluated(tasks, tmp_path / "ours", wrong=["t1"], gone=["t2"])
    out = tmp_path / "out"
    command = ["report", f"AtomMem={tmp_path / 'ours'}", "--out", str(out), "--export", "inspect"]
    assert main(command) == 0
    (path,) = (out / "inspect").iterdir()
    log = json.loads(path.read_text())
    assert path.name.startswith(log["eval"]["created"][:10]), "Inspect finds logs by such names"
    assert (log["version"], log["status"]) == (2, "success")
    assert log["eval"]["task"] == "AtomMem on hotpotqa"
    ours = read_evaluation(tmp_path / "ours")
    mean = summarize(ours.records)["metrics"]["em"]
    em = next(score for score in log["results"]["scores"] if score["name"] == "em")["metrics"]
    assert em["mean"]["value"] == mean["mean"]
    assert (em["ci_low"]["value"], em["ci_high"]["value"]) == (mean["low"], mean["high"])
    assert [sample["id"] for sample in log["samples"]] == ["t0", "t1", "t2", "t3"]
    right, wrong, failed, _ = log["samples"]
    assert (right["scores"]["em"]["value"], wrong["scores"]["em"]["value"]) == (1.0, 0.0)
    assert failed["scores"] == {}
    assert failed["error"]["message"]
    assert [right["messages"][place]["role"] for place in (0, -1)] == ["user", "assistant"]
    assert "final_answer" in right["messages"][-1]["content"]
    overflow = [replace(item, stop_reason="context_overflow") for item in ours.records[3:]]
    log = inspect_log(replace(ours, records=(*ours.records[:3], *overflow)))
    assert {score["scored_samples"] for score in log["results"]["scores"]} == {2}
    assert [bool(sample["scores"]) for sample in log["samples"]] == [True, True, False, False]
