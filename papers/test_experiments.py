"""MemoBankRL, streams and credit: by hand, on invented data, and on Memento's files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atommem.embedding.embedder import HashingEmbedder
from atommem.episode import Observation, Piece
from atommem.errors import DataError
from atommem.memory.log import Operation
from papers.credit import compression_reward, state_advantages
from papers.experience import Bank, Experience
from papers.experiment import Report
from papers.inputs import load_published
from papers.memobank import (
    HERE,
    Stream,
    contamination,
    controls,
    read_cases,
    read_questions,
    table_3,
)
from papers.streams import SIMILARITIES
from papers.test_papers import unit_vectors
from tests.envs.benchmark_rows import real_data
from tests.train.toys import make_episode, make_step

PAPER = load_published("memobank")
SMALL = {**PAPER, "capacity": 20, "sample": 10, "min_positives": 4, "questions": 10}
PLAN = '{"plan": [{"description": "look"}]}'


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


async def compare(similarity: Any, query: Any, *records: Any) -> list[float]:
    """Return the similarity of each record, in their order."""
    bank = Bank(HashingEmbedder(16))
    asked, *texts = (
        value if isinstance(value, str) else json.dumps(value) for value in (query, *records)
    )
    await bank.fill(Experience(text, "", 1.0) for text in texts)
    found = await bank.retrieve(asked, 9, similarity)
    return [score for _, score in sorted(found, key=lambda pair: pair[0].id)]


async def test_similarities_by_hand_and_unfitting_inputs() -> None:
    change, keys = SIMILARITIES["relative"], SIMILARITIES["keys"]
    flow = {"rate": 2.0, "by": "tcp"}
    found = await compare(change, flow, {**flow, "rate": 4.0}, {**flow, "by": "udp"})
    assert found == pytest.approx([1 - 0.5 / 2, 0.5]), "the mean over features"
    assert await compare(change, {"rate": 0.0}, {"rate": 0.0}, {"rate": -1.0}) == [1.0, 0.0]
    here = {"ego": [0.0], "goal": [0.0, 0.0], "history": [0.0]}  # the goal weighs most
    found = await compare(keys, here, {**here, "ego": [1.0]}, {**here, "goal": [0.0, 0.5]})
    assert found == pytest.approx([np.exp(-1), np.exp(-2.5)], abs=1e-5)
    with pytest.raises(DataError, match="do not have the same fields"):
        await compare(change, {"rate": 1.0}, {"flow": 1.0})
    with pytest.raises(DataError, match="JSON objects"):
        await compare(keys, "another", "a text")


def test_state_advantages_compare_steps_at_the_same_prompt() -> None:
    shared, left, right, alone = [1, 2], [1, 2, 3], [1, 2, 4], [12]
    paths = [(shared, left), (shared, left), (shared, right), (shared, alone), (shared, right)]
    rewards = [1.0, 0.0, 1.0, 0.5, None]
    episodes = [
        replace(make_episode("t", i, reward, []), steps=[make_step(prompt, [5]) for prompt in path])
        for i, (path, reward) in enumerate(zip(paths, rewards, strict=True))
    ]
    mean = 2.5 / 4
    assert state_advantages(episodes) == [
        [1 - mean, 0.5],
        [-mean, -0.5],
        [1 - mean, 0.0],  # the other one that reached it failed
        [0.5 - mean, 0.0],
        [0.0, 0.0],
    ]


def test_compression_reward_is_larger_for_a_smaller_store() -> None:
    step = replace(
        make_step([1], [2]),
        observation=Observation("reading", stream=(Piece("chunk", {"text": "x" * 40, "part": 1}),)),
        operations=(
            Operation(0, "create", entry_id=1, after="y" * 10),
            Operation(0, "create", entry_id=2, after="z" * 6),
            Operation(0, "delete", entry_id=2, before="z" * 6),
        ),
    )
    episode = replace(make_episode("t", 0, 0.5, []), steps=[step])
    assert compression_reward(episode, 0.2) == pytest.approx(0.5 + 0.2 * 0.75)
    assert compression_reward(make_episode("t", 0, None, []), 0.2) is None
