"""Small invented rows in the layouts of LongMemEval, MemoryAgentBench and BEAM."""

from __future__ import annotations

from typing import Any


def longmemeval_row(number: int = 0, **changes: Any) -> dict[str, Any]:
    """A question about three sessions, which stand in another order than their dates."""
    row = {
        "question_id": f"lme{number}",
        "question_type": "single-session-user",
        "question": "Where did I buy the kiln?",
        "answer": "In Brent",
        "question_date": "2023/06/01 (Thu) 10:00",
        "haystack_session_ids": ["s2", "s1", "s3"],
        "haystack_dates": ["2023/05/20 (Sat) 02:21", "2023/05/01 (Mon) 10:00", "2023/05/30 (Tue) 11:15"],
        "haystack_sessions": [
            [
                {"role": "user", "content": "I bought a kiln in Brent.", "has_answer": True},
                {"role": "assistant", "content": "How nice!", "has_answer": False},
            ],
            [{"role": "user", "content": "Tell me about clay."}, {"role": "assistant", "content": "Clay is soil."}],
            [{"role": "user", "content": "Bye."}],
        ],
        "answer_session_ids": ["s2"],
    }
    return {**row, **changes}


def memory_agent_bench_row(number: int = 0, **changes: Any) -> dict[str, Any]:
    """A text with twelve questions."""
    row = {
        "context": f"Text {number}. The pots are blue.",
        "questions": [f"Question {i} of {number}?" for i in range(12)],
        "answers": [["blue", "Blue"] for _ in range(12)],
        "metadata": {
            "source": "ruler_qa1_197K",
            "qa_pair_ids": [f"ruler_{number}_no{i}" for i in range(12)],
            **dict.fromkeys(("question_types", "question_dates", "keypoints", "previous_events", "haystack_sessions")),
        },
    }
    return {**row, **changes}


def turns(first: int, *texts: str, date: str | None = None) -> list[dict[str, Any]]:
    """Turns of BEAM, of user and assistant in turn, as parquet has them (with every column)."""
    found = []
    for i, text in enumerate(texts):
        user = i % 2 == 0
        found.append(
            {
                "role": "user" if user else "assistant",
                "content": text + (" ->-> 1,1" if user else ""),
                "id": first + i,
                "index": "1,1" if user else None,
                "question_type": "main_question" if user else None,
                "time_anchor": date if i == 0 else None,
            }
        )
    return found


def probing(**more: Any) -> dict[str, Any]:
    """Probing questions of some abilities, with what each calls its gold answer."""
    common = {"difficulty": "easy", "rubric": ["LLM response should state: Brent"]}
    return {
        "abstention": [{"question": "Who sold it?", "ideal_response": "The chat does not tell.", **common}],
        "information_extraction": [
            {"question": "Where is the kiln?", "answer": "In Brent.", "source_chat_ids": [0, 3], **common}
        ],
        "knowledge_update": [
            {"question": "And now?", "answer": "In Lorne.", "source_chat_ids": {"updated_info": [2]}, **common}
        ],
        "summarization": [{"question": "Sum up.", "ideal_summary": "A kiln moves.", "source_chat_ids": [[0], [2]]}],
        **more,
    }


def beam_row(number: int = 0, **changes: Any) -> dict[str, Any]:
    """A conversation of two batches, with its questions in Python's notation, as in the parquet files."""
    row = {
        "conversation_id": str(number),
        "chat": [
            turns(0, "The kiln is in Brent.", "I see.", date="March-15-2024"),
            turns(2, "I moved it to Lorne.", "Noted.", date="April-01-2024"),
        ],
        "probing_questions": repr(probing()),
    }
    return {**row, **changes}
