"""Small invented rows in the benchmarks' layouts."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml


def real_data(*parts: str) -> Path:
    shared = Path(__file__).resolve().parents[3] / "shared" / "data"
    folder = Path(os.environ.get("ATOMMEM_DATA") or shared)
    if (folder / "hotpotqa").is_dir():
        return folder.joinpath(*parts)
    pytest.skip("needs the benchmark samples: set ATOMMEM_DATA, or put them in ../shared/data")


ROWS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def sample(name: str, number: int = 0, **changes: Any) -> dict[str, Any]:
    text = json.dumps(ROWS[name]).replace("<n>", str(number)).replace("<m>", str(number + 1))
    return {**json.loads(text), **changes}


def columns(row: dict[str, Any]) -> dict[str, Any]:
    """Return the Hugging Face layout of a HotpotQA row."""
    row = dict(row)
    row["id"] = row.pop("_id")
    titles, indices = zip(*row["supporting_facts"], strict=True)
    row["supporting_facts"] = {"title": [*titles], "sent_id": [*indices]}
    titles, sentences = zip(*row["context"], strict=True)
    row["context"] = {"title": [*titles], "sentences": [*sentences]}
    return row


def twowiki_row(number: int = 0) -> dict[str, Any]:
    row = sample("hotpot", number, answer_id=f"Q{number}", evidences=[], entity_ids="")
    del row["level"]
    row["context"] = [
        [title, [sentence.strip() for sentence in sentences]] for title, sentences in row["context"]
    ]
    return row


def turn(identifier: str, speaker: str, text: str, **more: Any) -> dict[str, Any]:
    return {"dia_id": identifier, "speaker": speaker, "text": text, **more}


def qa(category: int, question: str, answer: Any, *evidence: str) -> dict[str, Any]:
    name = "adversarial_answer" if category == 5 else "answer"
    return {"question": question, name: answer, "evidence": [*evidence], "category": category}


def beam_turns(first: int, *texts: str, date: str) -> list[dict[str, Any]]:
    """Turns of BEAM, of user and assistant in turn, as parquet has them."""
    return [
        {
            "role": "assistant" if i % 2 else "user",
            "content": text + ("" if i % 2 else " ->-> 1,1"),
            "id": first + i,
            "time_anchor": None if i else date,
        }
        for i, text in enumerate(texts)
    ]


def beam_row(**changes: Any) -> dict[str, Any]:
    """A conversation of two batches, with its questions in Python's notation, as in parquet."""
    first = beam_turns(0, "The kiln is in Brent.", "I see.", date="March-15-2024")
    second = beam_turns(2, "I moved it to Lorne.", "Noted.", date="April-01-2024")
    row = {"conversation_id": "0", "chat": [first, second]}
    return {**row, "probing_questions": repr(sample("probing")), **changes}


def write_json(path: Path, rows: list[Any]) -> Path:
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def write_lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path
