"""The readers on small invented rows: every layout gives the same rows, every fault its place."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atommem.envs.benchmarks.hotpotqa import read_aliases
from atommem.envs.benchmarks.registry import BENCHMARKS, get_benchmark, with_aliases
from atommem.envs.benchmarks.rows import QARow, read_rows
from atommem.envs.task import Document
from atommem.errors import ConfigError, DataError
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
    metadata={
        "type": "bridge",
        "level": "hard",
        "hops": 2,
        "supporting": [["Orla 0", 1], ["Bran 0", 0]],
    },
)


def objects(row: dict[str, Any]) -> dict[str, Any]:
    """The layout of some 2Wiki conversions: lists of objects."""
    return {
        **row,
        "supporting_facts": [
            {"title": title, "sent_id": index} for title, index in row["supporting_facts"]
        ],
        "context": [{"title": title, "content": sentences} for title, sentences in row["context"]],
    }


def strings(row: dict[str, Any]) -> dict[str, Any]:
    """The layout of other conversions: nested fields as JSON in a string."""
    return {**row, **{name: json.dumps(row[name]) for name in ("supporting_facts", "context")}}


@pytest.mark.parametrize("layout", [columns, objects, strings])
@pytest.mark.parametrize("write", [write_lines, write_parquet])
def test_hotpotqa_hugging_face(
    tmp_path: Path, layout: Callable[[dict[str, Any]], dict[str, Any]], write: Callable[..., Path]
) -> None:
    assert list(BENCHMARKS["hotpotqa"].read(write(tmp_path / "x", [layout(hotpot_row())]))) == [
        HOTPOT
    ]


def test_quirks_of_the_official_files(tmp_path: Path) -> None:
    context = hotpot_row()["context"]
    row = hotpot_row(
        context=[*context[1:3], context[2]],  # few paragraphs, one of them twice
        supporting_facts=[["Orla 0", 2], ["Bran 0", 0], ["Orla 0", 1]],  # an index one past the end
    )
    (read,) = BENCHMARKS["hotpotqa"].read(write_json(tmp_path / "x.json", [row]))
    assert [p.title for p in read.paragraphs] == ["Orla 0", "Bran 0"]
    assert all(p.gold for p in read.paragraphs)
    assert read.answerable
    assert read.metadata["supporting"] == [["Orla 0", None], ["Bran 0", 0], ["Orla 0", 1]]
    assert read.metadata["hops"] == 2


def test_2wiki_with_and_without_aliases(tmp_path: Path) -> None:
    given = [twowiki_row(), twowiki_row(1, answer_id=None, answer="yes"), twowiki_row(2)]
    twowiki = BENCHMARKS["2wikimultihopqa"]
    rows = list(twowiki.read(path := write_json(tmp_path / "x.json", given)))
    assert rows[0].paragraphs == HOTPOT.paragraphs  # the space between sentences is put back
    assert rows[0].source == "2wikimultihopqa"
    assert "level" not in rows[0].metadata
    assert [row.answers for row in rows] == [("Port 0",), ("yes",), ("Port 2",)]
    first = {"Q_id": "Q0", "aliases": ["Harbour", "Port 0"], "demonyms": ["Porter", ""]}
    aliases = write_lines(
        tmp_path / "id_aliases.json", [first, {"Q_id": "Q9", "aliases": ["Nine"], "demonyms": []}]
    )
    named = with_aliases(twowiki, aliases)
    more = [("Port 0", "Harbour", "Porter"), ("yes",), ("Port 2",)]
    assert [row.answers for row in named.read(path)] == more
    old = twowiki_row()
    del old["answer_id"]
    with pytest.raises(DataError, match=r"row 1: field 'answer_id' is missing.*give no aliases"):
        list(named.read(write_json(tmp_path / "old.json", [old])))
    with pytest.raises(DataError, match=r"row 1: field 'demonyms' is missing"):
        read_aliases(write_lines(tmp_path / "bad.json", [{"Q_id": "Q0", "aliases": []}]))
    with pytest.raises(DataError, match="has no rows"):
        read_aliases(write_json(tmp_path / "empty.json", []))


@pytest.mark.parametrize("write", [write_lines, write_json, write_parquet])
def test_musique(tmp_path: Path, write: Callable[..., Path]) -> None:
    twice = musique_row()  # a paragraph that stands twice is gold if either is
    twice["paragraphs"].append({**twice["paragraphs"][0], "idx": 4, "is_supporting": True})
    hidden = musique_row(answerable=False)
    hidden["paragraphs"] = hidden["paragraphs"][:3]
    rows = list(BENCHMARKS["musique"].read(write(tmp_path / "x", [musique_row(), hidden, twice])))
    assert rows[0] == QARow(
        id="2hop__0_1",
        question="Where does the brother of Orla 0 live?",
        answers=("Port 0", "Harbour 0"),
        paragraphs=(
            Document("Orla", "Orla is a potter. 0"),
            Document("Moss", "Moss grows. 0"),
            Document("Orla", "Her brother is Bran. 0", gold=True),  # by paragraph, not by title
            Document("Bran", "Port. 0", gold=True),
        ),
        source="musique",
        metadata={"type": "2hop", "hops": 2, "supporting": [["Orla", None], ["Bran", None]]},
    )
    assert [row.answerable for row in rows] == [True, False, True]
    assert rows[1].id == rows[0].id
    assert [paragraph.gold for paragraph in rows[2].paragraphs] == [True, False, True, True]


def test_truncated_file_raises_with_its_place(tmp_path: Path) -> None:
    text = json.dumps([hotpot_row(i) for i in range(3)])
    lines = write_lines(tmp_path / "lines", [musique_row(), musique_row(1)]).read_bytes()
    table = write_parquet(tmp_path / "table", [columns(hotpot_row())]).read_bytes()
    for content, message in (
        (text[:-40].encode(), "x: not JSON in UTF-8 .* truncated, download it again"),
        (lines[:-30], "x: row 2 is not JSON in UTF-8"),
        (table[:-20], "x: row 1: the parquet file is damaged"),
    ):
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(DataError, match=message):
            list(read_rows(tmp_path / "x"))


def test_without_pyarrow_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_parquet(tmp_path / "x.parquet", [columns(hotpot_row())])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"pip install 'atommem\[data\]'"):
        list(read_rows(path))


def test_find_official_files(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="benchmark is 'squad'; known are hotpotqa, 2wikimultihopqa, musique"
    ):
        get_benchmark("squad")
    hotpotqa = get_benchmark("hotpotqa")
    file = write_json(tmp_path / "any.json", [])
    assert hotpotqa.find("train", file) == [file]
    with pytest.raises(
        DataError, match=r"looked for hotpot_train_v1\.1\.json, .*Give the file itself"
    ):
        hotpotqa.find("train", tmp_path)
    (tmp_path / "hotpotqa" / "distractor").mkdir(parents=True)
    shards = [
        write_json(tmp_path / "hotpotqa" / "distractor" / f"train-0000{i}-of-00002.parquet", [])
        for i in (1, 0)
    ]
    assert hotpotqa.find("train", tmp_path) == shards[::-1]
    official = write_json(tmp_path / "hotpotqa" / "hotpot_train_v1.1.json", [])
    assert (
        hotpotqa.find("train", tmp_path)
        == hotpotqa.find("train", tmp_path / "hotpotqa")
        == [official]
    )
    with pytest.raises(DataError, match="no such file or folder"):
        hotpotqa.find("dev", tmp_path / "nowhere")
    with pytest.raises(
        DataError, match=r"is the train file by its name: give --split train, or rename it"
    ):
        hotpotqa.find("dev", official)
