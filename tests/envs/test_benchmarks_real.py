"""The readers on every row of the real samples, against the raw rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from atommem.envs.benchmarks.registry import get_benchmark
from atommem.envs.task import Document
from tests.envs.benchmark_rows import real_data

HOTPOT_LAYOUT = [
    ("hotpotqa", "hotpot_dev_distractor_v1.json", 149),
    ("hotpotqa", "hotpot_train_v1.1.json", 50),
    ("2wikimultihopqa", "dev.json", 82),
    ("2wikimultihopqa", "train.json", 250),
]
MUSIQUE = [
    ("musique", "musique_ans_v1.0_dev.jsonl", 100, 100),
    ("musique", "musique_ans_v1.0_train.jsonl", 50, 50),
    ("musique", "musique_full_v1.0_train.jsonl", 10, 5),
]


def raw_rows(path: Path) -> list[dict[str, Any]]:
    text = path.read_text(encoding="utf-8")
    return json.loads(text) if path.suffix == ".json" else [json.loads(line) for line in text.splitlines()]


def squeeze(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize(("benchmark", "name", "count"), HOTPOT_LAYOUT)
def test_hotpotqa_and_2wiki(benchmark: str, name: str, count: int) -> None:
    path = real_data(benchmark, name)
    rows = list(get_benchmark(benchmark).read(path))
    raw = raw_rows(path)
    assert len(rows) == len(raw) == count
    for row, fields in zip(rows, raw, strict=True):
        assert (row.id, row.question, row.answers) == (fields["_id"], fields["question"].strip(), (fields["answer"],))
        assert row.answerable
        assert row.metadata["type"] == fields["type"]
        assert {p.title for p in row.paragraphs if p.gold} == {title for title, _ in fields["supporting_facts"]}
        assert len(set(row.paragraphs)) == len(row.paragraphs)
        # The same words in the same order, whatever stands between sentences.
        raw_texts = dict.fromkeys((title, squeeze("".join(sentences))) for title, sentences in fields["context"])
        assert [(p.title, squeeze(p.text)) for p in row.paragraphs] == list(raw_texts)
        for (title, index), pair in zip(fields["supporting_facts"], row.metadata["supporting"], strict=True):
            sentences = next(s for t, s in fields["context"] if t == title)
            assert pair == [title, index if index < len(sentences) else None]


@pytest.mark.parametrize(("benchmark", "name", "count", "answerable"), MUSIQUE)
def test_musique(benchmark: str, name: str, count: int, answerable: int) -> None:
    path = real_data(benchmark, name)
    rows = list(get_benchmark(benchmark).read(path))
    raw = raw_rows(path)
    assert len(rows) == len(raw) == count
    assert sum(row.answerable for row in rows) == answerable
    for row, fields in zip(rows, raw, strict=True):
        assert row.id == fields["id"]
        assert row.answers[0] == fields["answer"]
        assert set(row.answers) == {fields["answer"], *fields["answer_aliases"]}
        gold = {
            Document(p["title"], p["paragraph_text"].strip(), gold=True)
            for p in fields["paragraphs"]
            if p["is_supporting"]
        }
        assert {p for p in row.paragraphs if p.gold} == gold
        assert len(row.paragraphs) == len({(p["title"], p["paragraph_text"].strip()) for p in fields["paragraphs"]})
        assert row.metadata["hops"] == len(fields["question_decomposition"]) == int(row.id[0])
