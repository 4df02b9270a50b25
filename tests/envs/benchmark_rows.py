"""Small invented rows in the benchmarks' layouts, and the location of the real samples."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).resolve().parents[2]


def real_data(*parts: str) -> Path:
    """Return a file of the benchmark samples, or skip the test where they are missing."""
    folder = Path(os.environ.get("ATOMMEM_DATA") or _ROOT.parent / "shared" / "data")
    if (folder / "hotpotqa").is_dir():
        return folder.joinpath(*parts)
    pytest.skip("needs the benchmark samples: set ATOMMEM_DATA, or put them in ../shared/data")


def hotpot_row(number: int = 0, **changes: Any) -> dict[str, Any]:
    """A row of HotpotQA's official layout: two supporting paragraphs and two others."""
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
    """Return the Hugging Face layout of a HotpotQA row."""
    row = dict(row)
    row["id"] = row.pop("_id")
    titles, indices = zip(*row["supporting_facts"], strict=True)
    row["supporting_facts"] = {"title": [*titles], "sent_id": [*indices]}
    titles, sentences = zip(*row["context"], strict=True)
    row["context"] = {"title": [*titles], "sentences": [*sentences]}
    return row


def twowiki_row(number: int = 0, **changes: Any) -> dict[str, Any]:
    """A row of 2WikiMultihopQA's layout: sentences without spaces between them, and ids."""
    row = hotpot_row(number)
    del row["level"]
    row["context"] = [
        [title, [sentence.strip() for sentence in sentences]] for title, sentences in row["context"]
    ]
    row |= {"type": "compositional", "evidences": [], "evidences_id": [], "entity_ids": ""}
    return {**row, "answer_id": f"Q{number}", **changes}


def musique_row(number: int = 0, **changes: Any) -> dict[str, Any]:
    """A row of MuSiQue's layout; two paragraphs share a title."""
    texts = [
        ("Orla", "Orla is a potter."),
        ("Moss", "Moss grows."),
        ("Orla", "Her brother is Bran."),
        ("Bran", "Port."),
    ]
    paragraphs = [
        {"idx": i, "title": title, "paragraph_text": f"{text} {number}", "is_supporting": i >= 2}
        for i, (title, text) in enumerate(texts)
    ]
    answer = f"Port {number}"
    hops = [("Orla >> brother", "Bran"), ("Where does #1 live?", answer)]
    row = {
        "id": f"2hop__{number}_{number + 1}",
        "question": f"Where does the brother of Orla {number} live?",
        "answer": answer,
        "answer_aliases": [f"Harbour {number}", answer, " "],
        "answerable": True,
        "question_decomposition": [
            {"id": i, "question": question, "answer": found, "paragraph_support_idx": i + 1}
            for i, (question, found) in enumerate(hops, 1)
        ],
        "paragraphs": paragraphs,
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
