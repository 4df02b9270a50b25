"""Predictions in the benchmarks' official formats, and logs of inspect_ai."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atommem.cli import main
from atommem.envs.scoring.records import EpisodeRecord, QuestionRecord, summarize
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


ANSWERS = {"a": "right", "b": ""}


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
    first = record(source, "t0", question("a", "right"), question("b", None))
    lines = written(tmp_path, again, first, record(source, "t1")).splitlines()
    assert [json.loads(line) for line in lines] == wanted


def test_predictions_of_musique_have_the_order_of_the_gold_file(tmp_path: Path) -> None:
    records = [
        record("musique", "t1", question("a", "It is not mentioned.", answerable="False")),
        record("musique", "t2", question("a", "x", answerable="True")),
    ]
    rows = [{"id": "a", "answerable": True}, {"id": "c", "answerable": True}]
    rows.append({"id": "a", "answerable": False})
    gold = write_lines(tmp_path / "gold.jsonl", rows)
    lines = [json.loads(line) for line in written(tmp_path, *records, gold=gold).splitlines()]
    unsupported = {"predicted_support_idxs": []}
    assert lines == [
        {"id": name, "predicted_answer": answer, "predicted_answerable": flag, **unsupported}
        for name, answer, flag in (
            ("a", "x", True),
            ("c", "", True),
            ("a", "It is not mentioned.", False),
        )
    ]


def test_predictions_of_locomo_are_grouped_by_conversation(tmp_path: Path) -> None:
    one = record("locomo", "t1", question("c-1-010", "right", "temporal"))
    chosen = replace(question("c-2-001", "(b)", "adversarial"), metrics={"em": 1.0})
    other = record("locomo", "t2", question("c-2-000", None, "multi_hop"), chosen)
    first, second = json.loads(written(tmp_path, one, other))
    (item,) = first["qa"]
    assert (first["sample_id"], item["category"], item["atommem_prediction"]) == ("c-1", 2, "right")
    assert [item["atommem_prediction"] for item in second["qa"]] == ["", "not mentioned"]


@pytest.mark.slow
async def test_inspect_log_has_every_episode_and_our_own_scores(tmp_path: Path) -> None:
    tasks = [make_task(f"t{number}") for number in range(4)]
    await evaluated(tasks, tmp_path / "ours", wrong=["t1"], gone=["t2"])
    out = tmp_path / "out"
    command = ["report", f"AtomMem={tmp_path / 'ours'}", "--out", str(out)]
    assert main([*command, "--export", "inspect", "predictions"]) == 0
    (predictions,) = (out / "predictions").iterdir()
    assert json.loads(predictions.read_text())["answer"]["q0"] == "t0-0"
    (path,) = (out / "inspect").iterdir()
    log = json.loads(path.read_text())
    assert path.name.startswith(log["eval"]["created"][:10]), "Inspect finds logs by such names"
    ours = read_evaluation(tmp_path / "ours")
    mean = summarize(ours.records)["metrics"]["em"]
    em = next(score for score in log["results"]["scores"] if score["name"] == "em")["metrics"]
    found = [em[name]["value"] for name in ("mean", "ci_low", "ci_high")]
    assert found == [mean[name] for name in ("mean", "low", "high")]
    right, wrong, failed, _ = log["samples"]
    assert (right["scores"]["em"]["value"], wrong["scores"]["em"]["value"]) == (1.0, 0.0)
    assert failed["scores"] == {}
    assert "final_answer" in right["messages"][-1]["content"]
    overflow = [replace(item, stop_reason="context_overflow") for item in ours.records[3:]]
    log = inspect_log(replace(ours, records=(*ours.records[:3], *overflow)))
    assert {score["scored_samples"] for score in log["results"]["scores"]} == {2}
