"""Small invented rows in the benchmarks' layouts, and where the samples of the real ones lie."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).resolve().parents[2]


def real_data(*parts: str) -> Path:
    """A file of the benchmark samples; the test is skipped where they are not."""
    folder = Path(os.environ.get("ATOMMEM_DATA") or _ROOT.parent / "shared" / "data")
    if (folder / "hotpotqa").is_dir():
        return folder.joinpath(*parts)
    pytest.skip(
        "needs the benchmark samples: set ATOMMEM_DATA to their folder, or put them in ../shared/data"
    )


def hotpot_row(number: int = 0, **changes: Any) -> dict[str, Any]:
    """A row of HotpotQA's official layout: two supporting paragraphs and two others, all the row's own."""
    row = {
        "_id": f"id{number}",
        "question": f"Where does the brother of Orla {number} live?",
        "answer": f"Port {number}",
        "type": "bridge",
        "level": "hard",
        "supporting_facts": [[f"Orla {number}", 1], [f"Bran {number}", 0]],
        "context": [
            [f"Moss {number}", ["Moss grows.", " It is green."]],
            [f"Orla {number}", ["Orla is a potter.", f" Her brother is Bran {number}."]],
            [f"Bran {number}", [f"Bran lives in Port {number}."]],
            [f"Kiln {number}", ["A kiln is hot.", ""]],
        ],
    }
    return {**row, **changes}


def columns(row: dict[str, Any]) -> dict[str, Any]:
    """The Hugging Face layout of a HotpotQA row."""
    row = dict(row)
    row["id"] = row.pop("_id")
    row["supporting_facts"] = {
        "title": [title for title, _ in row["supporting_facts"]],
        "sent_id": [index for _, index in row["supporting_facts"]],
    }
    row["context"] = {
        "title": [title for title, _ in row["context"]],
        "sentences": [sentences for _, sentences in row["context"]],
    }
    return row


def twowiki_row(number: int = 0, **changes: Any) -> dict[str, Any]:
    """A row of 2WikiMultihopQA's layout: sentences without the space between them, and ids."""
    row = hotpot_row(number)
    del row["level"]
    row["context"] = [
        [title, [sentence.strip() for sentence in sentences]] for title, sentences in row["context"]
    ]
    row |= {
        "type": "compositional",
        "evidences": [],
        "evidences_id": [],
        "entity_ids": "",
        "answer_id": f"Q{number}",
    }
    return {**row, **changes}


def musique_row(number: int = 0, **changes: Any) -> dict[str, Any]:
    """A row of MuSiQue's layout; two paragraphs share a title."""
    texts = [
        ("Orla", "Orla is a potter."),
        ("Moss", "Moss grows."),
        ("Orla", "Her brother is Bran."),
        ("Bran", "Port."),
    ]
    row = {
        "id": f"2hop__{number}_{number + 1}",
        "question": f"Where does the brother of Orla {number} live?",
        "answer": f"Port {number}",
        "answer_aliases": [f"Harbour {number}", f"Port {number}", " "],
        "answerable": True,
        "question_decomposition": [
            {"id": 1, "question": "Orla >> brother", "answer": "Bran", "paragraph_support_idx": 2},
            {
                "id": 2,
                "question": "Where does #1 live?",
                "answer": f"Port {number}",
                "paragraph_support_idx": 3,
            },
        ],
        "paragraphs": [
            {
                "idx": i,
                "title": title,
                "paragraph_text": f"{text} {number}",
                "is_supporting": i >= 2,
            }
            for i, (title, text) in enumerate(texts)
        ],
    }
    return {**row, **changes}


def write_json(path: Path, rows: list[Any]) -> Path:
    """Write a JSON list."""
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def write_lines(path: Path, rows: list[Any]) -> Path:
    """Write JSON Lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write parquet, with the schema that Arrow infers."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path
