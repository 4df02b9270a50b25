"""MemoBankRL: by hand, on invented data, on Memento's files, and answers of a scripted model."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atommem.errors import DataError
from papers import asking
from papers.experience import Experience
from papers.experiment import Journal, Report
from papers.inputs import load_published
from papers.memobank.__main__ import add_flags
from papers.memobank.answers import answer_tables, is_right
from papers.memobank.cases import (
    HERE,
    Stream,
    contamination,
    controls,
    read_cases,
    read_questions,
    statistics,
    table_3,
)
from papers.test_papers import ChatServer, unit_vectors
from tests.envs.benchmark_rows import real_data

PAPER = load_published("memobank")
SMALL = {**PAPER, "capacity": 20, "sample": 10, "min_positives": 4, "questions": 10, "window": 30}
PLAN = '{"plan": [{"description": "look"}]}'
PARTS = [
    *(f"Table {n}" for n in range(1, 5)),
    *("Figure 1", "equation 1", "algorithm 1", "algorithm 2", "algorithm 3"),
    *("rolling window of 500", "statistics (get_stats)", "logging", "all-MiniLM-L6-v2"),
    *("JSONL of query, plan, label", "test scripts", "100 DeepResearcher questions, three runs"),
    *("GPT-4o-mini, temperature 0", "substring match", "SearxNG", "capacity 800"),
    *("online soft Q-learning", "adaptive threshold, 3,000 cases, full agent"),
]
"""Every table, figure, equation, algorithm and setting of the paper."""


def answer(prompt: str) -> str:
    """Know number 7's answer, and others' where a case of theirs is shown."""
    question = prompt.split("Question: ")[-1].partition("\n")[0]
    knows = question == "what is number 7?" or prompt.count(question) > 1
    return "It is THE TRUTH." if knows else "?"


async def search(query: str) -> str:
    """Search the web.

    Args:
        query: Words to look for.
    """
    return f"found {query}" if query == "what is number 8?" else "nothing"


def test_answers_with_and_without_cases(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = ChatServer(answer)
    monkeypatch.setattr(asking, "open_policy", lambda config: model)
    parser = argparse.ArgumentParser()
    add_flags(parser)
    data, chat = (
        ["--data", str(tmp_path)],
        ["--policy", "http://m", "--api", "chat", "--model", "m"],
    )
    stream = make_stream([True] * 12)
    questions = [(f"what is number {i}?", ("the truth", "")) for i in range(6, 10)]
    kept, vectors = list(range(8)), stream.vectors[6:10]
    asked = stream, kept, questions, vectors
    found = {}
    for flags in ([], chat, [*chat, "--search", f"{__name__}:search"]):
        report = Report("memobank", "")
        arguments = parser.parse_args([*data, *flags])
        answer_tables(report, arguments, Journal(), SMALL, *asked)
        found[len(flags)] = [[row[2] for row in table.rows] for table in report.tables]
    assert found[0] == [["not at hand"] * 3, ["not at hand"] * 2]
    assert found[6] == [[25.0, 100.0, 50.0], ["not at hand"] * 2]
    assert found[8] == [[25.0, 100.0, 50.0], [50.0, 100.0]]
    assert "Results of a web search" in model.prompts[-1]
    assert "Outcome: positive" in model.prompts[-1]
    assert not is_right("anything", ("", " "))


def make_stream(labels: list[bool]) -> Stream:
    cases = [
        Experience(f"what is number {i}?", PLAN, float(label)) for i, label in enumerate(labels)
    ]
    vectors = unit_vectors(0, len(labels), 16), unit_vectors(1, 30, 16), unit_vectors(2, 20, 16)
    return Stream(cases, *vectors)


def test_full_bank_keeps_three_quarters_and_the_oldest_of_equals() -> None:
    stream = make_stream([i % 2 == 0 for i in range(20)])
    (bank, *_) = stream.fill(SMALL)
    assert bank.kept == sorted([*range(0, 20, 2), 1, 3, 5, 7, 9])
    assert (bank.prunings, bank.pruned) == (1, 5)
    (newest, *_) = stream.fill(SMALL, "memobank(least_positive=4, newest_first=true)")
    assert newest.kept == sorted([*range(0, 20, 2), 19, 17, 15, 13, 11])


def test_duplicates_and_broken_failures_are_refused() -> None:
    stream = make_stream([True] * 5)
    stream.vectors[3] = stream.vectors[1]
    (bank, *_) = stream.fill(SMALL)
    assert (bank.kept, bank.duplicates, bank.invalid) == ([0, 1, 2, 4], 1, 0)
    broken = [replace(case, execution="{", outcome=0.0) for case in stream.cases]
    (bank, *_) = replace(stream, cases=broken).fill(SMALL)
    assert (bank.kept, bank.invalid) == ([], 5)


@pytest.mark.slow
def test_random_labels_on_random_vectors_raise_the_measure_too() -> None:
    stream = make_stream((np.random.default_rng(3).random(200) < 0.5).tolist())
    method, by_label = (
        stream.fill(SMALL)[0],
        stream.fill(SMALL, f"{HERE}:ByLabel(least_positive=4)")[0],
    )
    assert method.kept == by_label.kept
    before = stream.top_positives(stream.questions, range(200), 3)
    assert stream.top_positives(stream.questions, method.kept, 3) > before + 20
    assert sum(stream.shuffled(0).positive) == sum(stream.positive)


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.slow
def test_tables_are_made_from_files(tmp_path: Path) -> None:
    labels = [{"plan": PLAN, "case_label": label} for label in ("positive", "negative")] * 30
    rows = [{"case": f"what is number {i}?", **label} for i, label in enumerate(labels)]
    write_lines(tmp_path / "memory.jsonl", rows)
    truth = {"ground_truth": "a<|answer_split|>b"}
    asked = [{"question": f"what is number {i}?", **truth} for i in range(50, 80)]
    write_lines(tmp_path / "deepresearcher.jsonl", asked)
    cases, questions = read_cases(tmp_path), read_questions(tmp_path)
    assert questions[0] == ("what is number 50?", ("a", "b"))
    report = Report("memobank", "")
    contamination(report, SMALL, cases, questions, [text for text, _ in questions[:10]], 20)
    assert ["cases that are questions of the test's file", 10] in report.tables[0].rows
    stream = replace(make_stream([True] * 60), cases=cases)
    method = stream.fill(SMALL)
    table_3(report, SMALL, stream, method)
    statistics(report, SMALL, stream, method)
    row = dict(zip(report.tables[-1].columns, report.tables[-1].rows[0], strict=True))
    assert (row["cases"], row["window"]) == (len(method[0].kept), 30), "the last of 59"
    assert row["mean utility"] == pytest.approx(0.3 * row["positive"] / row["cases"])
    controls(report, SMALL, stream, method)
    holds = {check.name: check.holds for check in report.checks}
    assert holds["'sort by label' keeps the same cases"]
    assert not report.holds
    write_lines(tmp_path / "memory.jsonl", [{**rows[0], "case_label": "maybe"}])
    with pytest.raises(DataError, match="row 1: needs case, plan and case_label"):
        read_cases(tmp_path)


@pytest.mark.slow
def test_mementos_files_have_the_papers_counts() -> None:
    data = real_data()
    if not (data / "memento").is_dir():
        pytest.skip("needs Memento's files beside the benchmark samples")
    cases, questions = read_cases(data), read_questions(data)
    report = Report("memobank", "")
    contamination(report, PAPER, cases, questions, [text for text, _ in questions[:100]], 100)
    assert report.holds
    assert any(row[1] == "43; 46" for row in report.tables[0].rows)
