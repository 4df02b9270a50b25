"""What a report ranks, tests and shows: units found in the data, bounds, prompts that do not fit, one test."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from atommem.envs.synthetic.world import WorldConfig
from atommem.eval.console_report import report_table
from atommem.eval.eval_config import parse_arguments
from atommem.eval.reporting.evaluations import Evaluation
from atommem.eval.reporting.inspection import Fate
from atommem.eval.reporting.page import PageData
from atommem.eval.reporting.results import best_rows, make_cells
from atommem.eval.reporting.templates import markdown_tables
from atommem.eval.suites.cells import Cell
from atommem.eval.suites.outcome import main_table
from atommem.eval.suites.suite import Column, Row, SyntheticData
from tests.eval.test_report_files import complete_sums, made, results_of

CONFIGS = parse_arguments(["--policy", "p", "--data", "d", "--out", "o"])


def test_bounds_are_in_no_test_and_never_bold() -> None:
    oracle = made("oracle", [{"em": 1.0}] * 20)
    best = made("ours", [{"em": float(n < 15)} for n in range(20)])
    other = made("rag", [{"em": 0.0}] * 20)
    low = made("no_memory", [{"em": 0.0}] * 20)
    results = results_of(oracle, low, best, other, reference="ours")
    pairs = {(item["first"], item["second"]) for item in results["comparisons"]}
    assert pairs == {("rag", "ours")}
    assert best_rows(results, "em") == {("toy", None): "ours"}
    assert "| oracle | 100.0 [" in markdown_tables(results)
    # By whatever name its row goes: the method stands in run.json.
    named = replace(oracle, method="gold", manifest={**oracle.manifest, "method": {"name": "oracle"}})
    assert make_cells([named])[0].bound


def test_prompts_that_do_not_fit_are_no_score(capsys: pytest.CaptureFixture[str]) -> None:
    def overflowing(row: str, count: int) -> Evaluation:
        whole = made(row, [{"em": 0.0 if n < count else 1.0} for n in range(16)])
        records = (replace(r, stop_reason="context_overflow") if r.reward == 0 else r for r in whole.records)
        return replace(whole, records=tuple(records))

    ours = made("ours", [{"em": float(n < 4)} for n in range(16)])
    results = results_of(ours, overflowing("mem0", 16), overflowing("some", 2))
    _, none, some = results["cells"]
    assert (none["overflow"], none["metrics"], some["overflow"]) == (16, {}, 2)
    assert none["metric"] == "em", "what has no score does not say that another one is the main one"
    assert (some["metrics"]["em"]["mean"], some["metrics"]["em"]["n"]) == (1.0, 14)
    assert results["comparisons"] == []
    assert best_rows(results, "em") == {}
    text = markdown_tables(results)
    assert "| mem0 | overflow **16 of 16 episodes overflow** |" in text
    assert "| some | overflow, 100.0 in those that fit **2 of 16 episodes overflow** |" in text
    assert text.count("| mem0 | 16 **16 of 16 episodes overflow** |") == 1, "nor are its costs a task's"
    assert "| mem0 | overflow **16 of 16 episodes overflow** | 0 |" in markdown_tables(
        results_of(overflowing("mem0", 16))
    )
    Console(width=200).print(main_table(results))
    assert "16 of 16 episodes overflow" in capsys.readouterr().out
    cells = [str(cell) for column in report_table({"all": none}).columns for cell in column.cells]
    assert "no score" in cells
    assert "  prompt did not fit (not scored)" in cells


def test_a_prompt_that_does_not_fit_does_not_rename_the_score_of_those_that_do() -> None:
    (record,) = made("ours", [{"em": 1.0}]).records
    for scored, name in ((record, "em"), (replace(record, questions=()), "reward")):
        cell = Cell(Row("ours"), Column("x", SyntheticData(WorldConfig(), 2, 0)), 0, CONFIGS)
        for item in (scored, replace(scored, task_id="t1", stop_reason="context_overflow")):
            cell.take(item)
        assert (cell.metric, cell.done, cell.score) == (name, 2, 1.0)


def test_where_answers_are_lost_says_nothing_of_prompts_that_do_not_fit() -> None:
    whole = made("ours", [{"em": 0.0, "fact_entered": 0.0, "fact_kept": 0.0, "fact_retrieved": 0.0} for _ in range(4)])
    records = (replace(r, stop_reason="context_overflow") if r.task_id == "t1" else r for r in whole.records)
    cells = make_cells([complete_sums(replace(whole, records=tuple(records)))])
    PageData(cells)
    assert cells[0].inspection is not None
    assert cells[0].inspection.fates == {Fate.NEVER_ENTERED: 3}


def test_the_unit_is_found_in_the_records() -> None:
    """Questions that come again are one unit; so are the tasks of one conversation."""
    evaluation = made("a", [{"em": float(n % 2)} for n in range(20)])
    assert results_of(evaluation)["cells"][0]["metrics"]["em"]["unit"] == "group"
    talks = replace(
        evaluation, records=tuple(replace(r, group=f"talk {int(r.task_id[1:]) % 2}") for r in evaluation.records)
    )
    (cell,) = results_of(talks)["cells"]
    lines = dict(
        zip(*([str(value) for value in column.cells] for column in report_table({"all": cell}).columns), strict=True)
    )
    assert lines["independent units / questions"] == "2 / 20", "20 tasks, of two conversations"
    again = tuple(
        replace(record, questions=(replace(record.questions[0], id=f"q{number % 5}"),))
        for number, record in enumerate(evaluation.records)
    )
    found = results_of(replace(evaluation, records=again))["cells"][0]["metrics"]["em"]
    assert (found["unit"], found["clusters"], found["n"]) == ("question", 5, 20)
    talks = tuple(replace(record, group=f"talk {number % 2}") for number, record in enumerate(evaluation.records))
    found = results_of(replace(evaluation, records=talks))["cells"][0]["metrics"]["em"]
    assert (found["unit"], found["clusters"]) == ("group", 2)
