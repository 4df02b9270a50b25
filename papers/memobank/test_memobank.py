"""MemoBankRL on cases made up, and Memento's bank where it is there (its vectors need a model)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from atommem.errors import DataError
from papers.amac.test_amac import drawn
from papers.experience import Experience
from papers.inputs import load_published
from papers.memobank.cases import read_cases, read_questions
from papers.memobank.experiment import Stream, contamination, controls, table_3
from papers.memobank.filling import HERE, top_positives
from papers.report import Report
from tests.envs.benchmark_rows import real_data, write_lines

PAPER = load_published("memobank")
SMALL = {**PAPER, "capacity": 20, "sample": 10, "min_positives": 4, "questions": 10}
PLAN = '{"plan": [{"description": "look"}]}'


def stream(labels: list[bool]) -> Stream:
    cases = [
        Experience(f"what is number {i}?", PLAN, float(label)) for i, label in enumerate(labels)
    ]
    return Stream(cases, drawn(0, len(labels), 16), drawn(1, 30, 16), drawn(2, 20, 16))


def test_a_full_bank_keeps_three_quarters_and_the_oldest_of_equals() -> None:
    one = stream([i % 2 == 0 for i in range(20)])
    (bank, *_) = one.filled(SMALL)
    assert bank.kept == sorted([*range(0, 20, 2), 1, 3, 5, 7, 9])
    assert (bank.prunings, bank.pruned) == (1, 5)
    (newest, *_) = one.filled(SMALL, "memobank(least_positive=4, newest_first=true)")
    assert newest.kept == sorted([*range(0, 20, 2), 19, 17, 15, 13, 11])


def test_duplicates_and_broken_failures_stay_out() -> None:
    one = stream([True] * 5)
    one.vectors[3] = one.vectors[1]
    (bank, *_) = one.filled(SMALL)
    assert (bank.kept, bank.duplicates, bank.invalid) == ([0, 1, 2, 4], 1, 0)
    broken = [replace(case, execution="{", outcome=0.0) for case in one.cases]
    (bank, *_) = replace(one, cases=broken).filled(SMALL)
    assert (bank.kept, bank.invalid) == ([], 5)


def test_labels_decide_alone_and_mean_nothing() -> None:
    """Random labels gain as much on random vectors."""
    one = stream((np.random.default_rng(3).random(200) < 0.5).tolist())
    method, by_label = (
        one.filled(SMALL)[0],
        one.filled(SMALL, f"{HERE}:ByLabel(least_positive=4)")[0],
    )
    assert method.kept == by_label.kept
    before = top_positives(one.questions, one.vectors, one.positive, range(200), 3)
    assert top_positives(one.questions, one.vectors, one.positive, method.kept, 3) > before + 20
    assert sum(one.shuffled(0).positive) == sum(one.positive)


def test_the_tables_are_made_of_rows_made_up(tmp_path: Path) -> None:
    labels = [{"plan": PLAN, "case_label": label} for label in ("positive", "negative")] * 30
    rows = [{"case": f"what is number {i}?", **label} for i, label in enumerate(labels)]
    write_lines(tmp_path / "memory.jsonl", rows)
    asked = [
        {"question": f"what is number {i}?", "ground_truth": "a<|answer_split|>b"}
        for i in range(50, 80)
    ]
    write_lines(tmp_path / "deepresearcher.jsonl", asked)
    read, questions = read_cases(tmp_path), read_questions(tmp_path)
    assert questions[0] == ("what is number 50?", ("a", "b"))
    report = Report("memobank", "")
    contamination(report, SMALL, read, questions, [text for text, _ in questions[:10]], 20)
    assert ["cases that are questions of the test's file", 10] in report.tables[0].rows
    one = replace(stream([True] * 60), cases=read)
    method = one.filled(SMALL)
    table_3(report, SMALL, one, method)
    controls(report, SMALL, one, method)
    assert {check.name: check.holds for check in report.checks}[
        "'sort by label' keeps the same cases"
    ]
    assert not report.holds
    assert "labels shuffled" in report.markdown()
    write_lines(tmp_path / "memory.jsonl", [{**rows[0], "case_label": "maybe"}])
    with pytest.raises(DataError, match="case_label"):
        read_cases(tmp_path)


def test_mementos_files_are_what_the_paper_counts() -> None:
    data = real_data()
    if not (data / "memento").is_dir():
        pytest.skip("needs Memento's files beside the benchmark samples")
    read, questions = read_cases(data), read_questions(data)
    report = Report("memobank", "")
    first = [text for text, _ in questions[:100]]
    contamination(report, PAPER, read, questions, first, 100)
    assert report.holds
    assert any(row[1] == "43; 46" for row in report.tables[0].rows)
