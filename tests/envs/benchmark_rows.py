"""Small invented rows in the benchmarks' layouts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest


def real_data(*parts: str) -> Path:
    """Return a file of the benchmark samples, or skip the test where they are missing."""
    shared = Path(__file__).resolve().parents[3] / "shared" / "data"
    folder = Path(os.environ.get("ATOMMEM_DATA") or shared)
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


def twowiki_row(number: int = 0) -> dict[str, Any]:
    """A row of 2WikiMultihopQA's layout: sentences without spaces between them, and ids."""
    row = hotpot_row(number, answer_id=f"Q{number}", evidences=[], entity_ids="")
    del row["level"]
    row["context"] = [
        [title, [sentence.strip() for sentence in sentences]] for title, sentences in row["context"]
    ]
    return row


def musique_row(number: int = 0, **changes: Any) -> dict[str, Any]:
    """A row of MuSiQue's layout; two paragraphs share a title."""
    titles = ("Orla", "Moss", "Orla", "Bran")
    paragraphs = [
        {"idx": i, "title": title, "paragraph_text": f"Text {i}.", "is_supporting": i >= 2}
        for i, title in enumerate(titles)
    ]
    row = {
        "id": f"2hop__{number}_{number + 1}",
        "question": f"Where does the brother of Orla {number} live?",
        "answer": f"Port {number}",
        "answer_aliases": [f"Harbour {number}", f"Port {number}", " "],
        "answerable": True,
        "question_decomposition": [{"question": "Orla >> brother"}, {"question": "Where?"}],
        "paragraphs": paragraphs,
    }
    return {**row, **changes}


def turn(identifier: str, speaker: str, text: str, **more: Any) -> dict[str, Any]:
    return {"dia_id": identifier, "speaker": speaker, "text": text, **more}


def qa(category: int, question: str, answer: Any, *evidence: str) -> dict[str, Any]:
    name = "adversarial_answer" if category == 5 else "answer"
    return {"question": question, name: answer, "evidence": [*evidence], "category": category}


def locomo_row(**changes: Any) -> dict[str, Any]:
    """Two sessions, where session 10 follows session 2; session 3 has a date and no turns."""
    conversation = {
        "session_10_date_time": "9:00 am on 3 June, 2021",
        "session_10": [turn("D10:1", "Orla", "I sold the kiln.")],
        "session_2_date_time": "7:15 pm on 2 May, 2021",
        "session_2": [
            turn("D2:1", "Orla", "I made two bowls yesterday."),
            turn("D2:02", "Bran", "Nice!", blip_caption="a photo of a bowl"),
        ],
        "session_3_date_time": "1:00 pm on 4 May, 2021",
    }
    questions = [
        qa(1, "What did Orla make?", "bowls, a kiln", "D2:1; D10:1"),
        qa(2, "When?", 2021, "D:2:1"),
        qa(3, "Is she a potter?", "Likely yes; she has a kiln"),
        qa(4, "What did Orla sell?", "The kiln", "D10:1"),
        qa(5, "What did Bran sell?", "the kiln", "D10:1"),
    ]
    return {"sample_id": "conv-1", "conversation": conversation, "qa": questions, **changes}


def longmemeval_row(**changes: Any) -> dict[str, Any]:
    """A question about two sessions, which stand in another order than their dates."""
    kiln = {"role": "user", "content": "I bought a kiln in Brent.", "has_answer": True}
    row = {
        "question_id": "lme0",
        "question_type": "single-session-user",
        "question": "Where did I buy the kiln?",
        "answer": "In Brent",
        "question_date": "2023/06/01 (Thu) 10:00",
        "haystack_session_ids": ["s2", "s1"],
        "haystack_dates": ["2023/05/20 (Sat) 02:21", "2023/05/01 (Mon) 10:00"],
        "haystack_sessions": [
            [kiln, {"role": "assistant", "content": "How nice!", "has_answer": False}],
            [{"role": "user", "content": "Tell me about clay."}],
        ],
        "answer_session_ids": ["s2"],
    }
    return {**row, **changes}


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


def probing() -> dict[str, Any]:
    """Probing questions of some abilities, with the gold answer under the name of each."""
    rubric = ["LLM response should state: Brent"]
    abstention = {"question": "Who sold it?", "ideal_response": "The chat does not tell."}
    extraction = {"question": "Where is the kiln?", "answer": "In Brent.", "rubric": rubric}
    update = {"question": "And now?", "answer": "In Lorne."}
    summary = {"question": "Sum up.", "ideal_summary": "A kiln moves."}
    return {
        "abstention": [abstention],
        "information_extraction": [extraction | {"source_chat_ids": [0, 3]}],
        "knowledge_update": [update | {"source_chat_ids": {"updated_info": [2]}}],
        "summarization": [summary | {"source_chat_ids": [[0], [2]]}],
    }


def beam_row(**changes: Any) -> dict[str, Any]:
    """A conversation of two batches, with its questions in Python's notation, as in parquet."""
    first = beam_turns(0, "The kiln is in Brent.", "I see.", date="March-15-2024")
    second = beam_turns(2, "I moved it to Lorne.", "Noted.", date="April-01-2024")
    row = {"conversation_id": "0", "chat": [first, second]}
    return {**row, "probing_questions": repr(probing()), **changes}


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
