"""MemoBankRL: its three algorithms by hand, and Memento's bank where it is there (its vectors need a model)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from atommem.errors import DataError
from atommem.eval.reproduce.memobank.bank import Bank, fill, keep_best, top_positives, utility
from atommem.eval.reproduce.memobank.cases import Case, is_valid_negative, read_cases, read_questions
from atommem.eval.reproduce.memobank.experiment import Stream, contamination, controls, table_3
from atommem.eval.reproduce.sheet import Sheet
from atommem.eval.reproduce.user_files import published_tables

ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT.parent / "shared" / "data"
PAPER = published_tables("memobank")
SMALL = {**PAPER, "capacity": 20, "sample": 10, "min_positives": 4, "questions": 10}


def vectors(n: int, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).normal(size=(n, 16)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("query", "plan", "valid"),
    [
        ("a question?", {"plan": [{"description": "search"}]}, True),
        ("a question?", {"plan": [{"id": 1}, {"description": "search"}]}, True),
        ("question", {"plan": [{"description": "search"}]}, False),
        ("a question?", {"plan": []}, False),
        ("a question?", {"plan": [{"id": 1}]}, False),
        ("a question?", {"steps": []}, False),
        ("a question?", [], False),
    ],
)
def test_negatives_are_valid_by_form(query: str, plan: object, valid: bool) -> None:
    assert is_valid_negative(Case(query, json.dumps(plan), False)) is valid
    assert not is_valid_negative(Case(query, "{", False))


def test_utility_is_the_papers_equation() -> None:
    found = utility(np.array([0.0, 1.0, 10.0]), np.array([0, 2, 16]), np.array([1.0, 0.0, 0.0]), PAPER)
    assert found.tolist() == pytest.approx([0.3, 0.7 * np.exp(-0.04) / 2, 7 * np.exp(-0.32) / 16])


def test_a_full_bank_keeps_three_quarters_and_the_oldest_of_equals() -> None:
    positive = [i % 2 == 0 for i in range(20)]
    bank = fill(vectors(20), positive, SMALL, seed=0)
    assert bank.kept == sorted([*range(0, 20, 2), 1, 3, 5, 7, 9])
    newest = fill(vectors(20), positive, SMALL, seed=0, newest_wins=True)
    assert newest.kept == sorted([*range(0, 20, 2), 19, 17, 15, 13, 11])
    assert (bank.prunings, bank.pruned) == (1, 5)


def test_so_many_positives_come_back_that_there_are_enough() -> None:
    kept = np.arange(20)
    rewards = np.array([0.0] * 15 + [1.0] * 5)
    left = keep_best(kept, -kept.astype(float), rewards, SMALL, newest_wins=False, restore=True)
    assert left.tolist() == list(range(19)), "15 by score, then four positives again"


def test_duplicates_stay_out() -> None:
    given = vectors(5)
    given[3] = given[1]
    assert fill(given, [True] * 5, SMALL, seed=0).kept == [0, 1, 2, 4]


def test_labels_decide_alone_and_mean_nothing() -> None:
    """The statement of the reproduction, on vectors at random: labels without meaning 'gain' as much."""
    rng = np.random.default_rng(3)
    positive = (rng.random(200) < 0.5).tolist()
    given, asked = vectors(200), vectors(30, seed=9)
    method, by_label = (fill(given, positive, SMALL, 0, pruning) for pruning in ("utility", "label"))
    assert method.kept == by_label.kept
    before = top_positives(asked, given, positive, range(200), 3)
    assert top_positives(asked, given, positive, method.kept, 3) > before + 20


def test_the_tables_are_made_of_rows_made_up(tmp_path: Path) -> None:
    lines = [
        {"case": f"what is number {i}?", "plan": '{"plan": [{"description": "look"}]}', "case_label": label}
        for i, label in enumerate(["positive", "negative"] * 30)
    ]
    (tmp_path / "memory.jsonl").write_text("\n".join(map(json.dumps, lines)))
    asked = [{"question": f"what is number {i}?", "ground_truth": "a<|answer_split|>b"} for i in range(50, 80)]
    (tmp_path / "deepresearcher.jsonl").write_text("\n".join(map(json.dumps, asked)))
    cases, questions = read_cases(tmp_path), read_questions(tmp_path)
    assert questions[0] == ("what is number 50?", ("a", "b"))
    sheet = Sheet("memobank", "")
    contamination(sheet, SMALL, cases, questions, [text for text, _ in questions[:10]], 20)
    assert ["cases that are questions of the test's file", 10] in sheet.tables[0].rows
    stream = Stream(cases, vectors(60), vectors(10, 1), vectors(20, 2))
    method = [fill(stream.vectors, stream.positive, SMALL, seed) for seed in range(3)]
    table_3(sheet, SMALL, stream, method)
    controls(sheet, SMALL, stream, method)
    assert {check.name: check.holds for check in sheet.checks}["'sort by label' keeps the same cases"]
    assert not sheet.holds
    assert "labels shuffled" in sheet.markdown()


def test_damaged_rows_are_named(tmp_path: Path) -> None:
    (tmp_path / "memory.jsonl").write_text('{"case": "q", "plan": "{}", "case_label": "maybe"}\n')
    with pytest.raises(DataError, match="case_label"):
        read_cases(tmp_path)


def test_mementos_files_are_what_the_paper_counts() -> None:
    if not (DATA / "memento").is_dir():
        pytest.skip("needs Memento's files in ../shared/data")
    cases, questions = read_cases(DATA), read_questions(DATA)
    sheet = Sheet("memobank", "")
    first = [text for text, _ in questions[:100]]
    contamination(sheet, PAPER, cases, questions, first, 100)
    assert sheet.holds
    assert any(row[1] == "43; 46" for row in sheet.tables[0].rows)


def test_a_bank_without_a_limit_forgets_nothing() -> None:
    assert fill(vectors(40), [True] * 40, SMALL, 0, "none").kept == list(range(40))
    assert Bank().kept == []
