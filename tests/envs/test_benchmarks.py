"""The readers of benchmarks with paragraphs and of the web, on invented rows in every layout."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atommem.envs.benchmarks.registry import BENCHMARKS, get_benchmark, with_aliases
from atommem.envs.benchmarks.rows import QARow, read_rows
from atommem.envs.benchmarks.web_questions import WEB_BENCHMARKS
from atommem.envs.task import Document
from atommem.errors import DataError
from tests.envs.benchmark_rows import (
    columns,
    hotpot_row,
    musique_row,
    twowiki_row,
    write_json,
    write_lines,
    write_parquet,
)

HOTPOT = QARow(
    id="id0",
    question="Where does the brother of Orla 0 live?",
    answers=("Port 0",),
    paragraphs=(
        Document("Moss 0", "Moss grows. It is green."),
        Document("Orla 0", "Orla is a potter. Her brother is Bran 0.", gold=True),
        Document("Bran 0", "Bran lives in Port 0.", gold=True),
        Document("Kiln 0", "A kiln is hot."),
    ),
    source="hotpotqa",
    metadata={"type": "bridge", "level": "hard", "hops": 2},
)


def objects(row: dict[str, Any]) -> dict[str, Any]:
    """The layout of some 2Wiki conversions: lists of objects, as JSON in a string."""
    facts = [{"title": title, "sent_id": index} for title, index in row["supporting_facts"]]
    context = [{"title": title, "content": sentences} for title, sentences in row["context"]]
    return {**row, "supporting_facts": json.dumps(facts), "context": context}


@pytest.mark.parametrize(
    ("layout", "write"),
    [(dict, write_json), (columns, write_parquet), (objects, write_lines)],
)
def test_hotpotqa_reads_every_layout(
    tmp_path: Path, layout: Callable[[dict[str, Any]], dict[str, Any]], write: Callable[..., Path]
) -> None:
    path = write(tmp_path / "x", [layout(hotpot_row())])
    assert list(BENCHMARKS["hotpotqa"].read(path)) == [HOTPOT]


def test_2wiki_adds_aliases_and_demonyms(tmp_path: Path) -> None:
    twowiki = BENCHMARKS["2wikimultihopqa"]
    path = write_json(tmp_path / "x.json", [twowiki_row(), twowiki_row(2)])
    first = next(iter(twowiki.read(path)))
    assert first.paragraphs == HOTPOT.paragraphs, "the space between sentences is restored"
    names = {"Q_id": "Q0", "aliases": ["Harbour", "Port 0"], "demonyms": ["Porter", ""]}
    named = with_aliases(twowiki, write_lines(tmp_path / "id_aliases.json", [names]))
    answers = [row.answers for row in named.read(path)]
    assert answers == [("Port 0", "Harbour", "Porter"), ("Port 2",)]


def test_musique_marks_gold_by_paragraph(tmp_path: Path) -> None:
    twice = musique_row()  # a repeated paragraph is gold if either copy is
    twice["paragraphs"].append({**twice["paragraphs"][0], "idx": 4, "is_supporting": True})
    path = write_lines(tmp_path / "x", [musique_row(), musique_row(answerable=False), twice])
    rows = list(BENCHMARKS["musique"].read(path))
    assert rows[0].answers == ("Port 0", "Harbour 0")
    assert rows[0].metadata == {"type": "2hop", "hops": 2}
    gold = [(paragraph.title, paragraph.gold) for paragraph in rows[0].paragraphs]
    assert gold == [("Orla", False), ("Moss", False), ("Orla", True), ("Bran", True)]
    assert [row.answerable for row in rows] == [True, False, True]
    assert [paragraph.gold for paragraph in rows[2].paragraphs] == [True, False, True, True]


def test_truncated_file_raises_with_its_row(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x", [musique_row(), musique_row(1)])
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match="x: row 2 is damaged"):
        list(read_rows(path))


def test_read_rows_replaces_lone_surrogates_and_ignores_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('[{"a\\ud800": ["\\ud83d\\ude00 \\udc00"]}]', encoding="utf-8-sig")
    (row,) = read_rows(path)
    assert row.values == {"a\ufffd": ["\U0001f600 \ufffd"]}


def test_find_prefers_the_official_file_and_needs_all_shards(tmp_path: Path) -> None:
    hotpotqa = get_benchmark("hotpotqa")
    with pytest.raises(DataError, match=r"looked for hotpot_train_v1\.1\.json, .*Give the file"):
        hotpotqa.find("train", tmp_path)
    folder = tmp_path / "hotpotqa" / "distractor"
    folder.mkdir(parents=True)
    first = write_json(folder / "train-00000-of-00002.parquet", [])
    with pytest.raises(DataError, match=r"has 1 shards such as train-00000.*expected 2"):
        hotpotqa.find("train", tmp_path)
    second = write_json(folder / "train-00001-of-00002.parquet", [])
    assert hotpotqa.find("train", tmp_path) == [first, second]
    official = write_json(tmp_path / "hotpotqa" / "hotpot_train_v1.1.json", [])
    assert hotpotqa.find("train", tmp_path) == [official]


WEB_ROWS = [
    (
        "gaia",
        {"task_id": "g1", "Question": "How many?", "Level": "2", "Final answer": 17},
        ("17",),
        {"level": 2, "file_name": "", "category": "level 2"},
    ),
    (
        "webwalkerqa",
        {
            "question": "Q?",
            "answer": "A",
            "root_url": "u",
            "info": {"Type": "one", "Language": "zh"},
        },
        ("A",),
        {"lang": "zh", "category": "zh one", "root_url": "u"},
    ),
    ("asearcher", {"question": "Who?", "answer": ["A"], "aug_answer": ["B"]}, ("A", "B"), {}),
    ("webdancer", {"question": "Who?", "answer": "A", "tag": "t"}, ("A",), {"category": "t"}),
    (
        "browsecomp_plus",
        {"query_id": "769", "query": "Who?", "answer": "A", "evidence_docs": [{"docid": "5"}]},
        ("A",),
        {"evidence": [["5"]]},
    ),
]


@pytest.mark.parametrize(("benchmark", "row", "answers", "metadata"), WEB_ROWS)
def test_web_question_has_answers_and_attributes(
    tmp_path: Path,
    benchmark: str,
    row: dict[str, Any],
    answers: tuple[str, ...],
    metadata: dict[str, Any],
) -> None:
    (found,) = WEB_BENCHMARKS[benchmark].read(write_lines(tmp_path / "x", [row]))
    assert (found.source, found.answers) == (benchmark, answers)
    assert found.metadata.items() >= metadata.items()


@pytest.mark.parametrize(
    ("benchmark", "row", "message"),
    [
        ("gaia", {"task_id": "g", "Question": "?", "Level": "4"}, "row 1: .* `Level`"),
        ("browsecomp_plus", {"query_id": "7", "query": "x" * 50}, "'query' is encrypted"),
    ],
)
def test_web_row_with_a_wrong_field_raises(
    tmp_path: Path, benchmark: str, row: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        list(WEB_BENCHMARKS[benchmark].read(write_lines(tmp_path / "x", [row])))
