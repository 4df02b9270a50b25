"""LongMemEval, MemoryAgentBench and BEAM in their published formats, with invented rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from atommem.envs.longdoc.fact_recall import gold_documents
from atommem.envs.scoring.answers import score_question
from atommem.envs.task import Task, describe_task
from atommem.envs.task_files import load_tasks, save_tasks
from tests.envs.benchmark_rows import write_json, write_lines, write_parquet


def longmemeval_row(number: int = 0, **changes: Any) -> dict[str, Any]:
    """A question about three sessions, which stand in another order than their dates."""
    row = {
        "question_id": f"lme{number}",
        "question_type": "single-session-user",
        "question": "Where did I buy the kiln?",
        "answer": "In Brent",
        "question_date": "2023/06/01 (Thu) 10:00",
        "haystack_session_ids": ["s2", "s1", "s3"],
        "haystack_dates": [
            "2023/05/20 (Sat) 02:21",
            "2023/05/01 (Mon) 10:00",
            "2023/05/30 (Tue) 11:15",
        ],
        "haystack_sessions": [
            [
                {"role": "user", "content": "I bought a kiln in Brent.", "has_answer": True},
                {"role": "assistant", "content": "How nice!", "has_answer": False},
            ],
            [
                {"role": "user", "content": "Tell me about clay."},
                {"role": "assistant", "content": "Clay is soil."},
            ],
            [{"role": "user", "content": "Bye."}],
        ],
        "answer_session_ids": ["s2"],
    }
    return {**row, **changes}


def memory_agent_bench_row(number: int = 0, **changes: Any) -> dict[str, Any]:
    """A text with twelve questions."""
    empty = ("question_types", "question_dates", "keypoints", "previous_events")
    row = {
        "context": f"Text {number}. The pots are blue.",
        "questions": [f"Question {i} of {number}?" for i in range(12)],
        "answers": [["blue", "Blue"] for _ in range(12)],
        "metadata": {
            "source": "ruler_qa1_197K",
            "qa_pair_ids": [f"ruler_{number}_no{i}" for i in range(12)],
            **dict.fromkeys(empty),
        },
    }
    return {**row, **changes}


def turns(first: int, *texts: str, date: str | None = None) -> list[dict[str, Any]]:
    """Turns of BEAM, of user and assistant in turn, as parquet has them (with every column)."""
    return [
        {
            "role": "assistant" if i % 2 else "user",
            "content": text + ("" if i % 2 else " ->-> 1,1"),
            "id": first + i,
            "index": None if i % 2 else "1,1",
            "question_type": None if i % 2 else "main_question",
            "time_anchor": None if i else date,
        }
        for i, text in enumerate(texts)
    ]


def probing() -> dict[str, Any]:
    """Probing questions of some abilities, with the gold answer under the name of each."""
    common = {"difficulty": "easy", "rubric": ["LLM response should state: Brent"]}
    abstention = {"question": "Who sold it?", "ideal_response": "The chat does not tell."}
    extraction = {"question": "Where is the kiln?", "answer": "In Brent."}
    update = {"question": "And now?", "answer": "In Lorne."}
    summary = {"question": "Sum up.", "ideal_summary": "A kiln moves."}
    return {
        "abstention": [abstention | common],
        "information_extraction": [extraction | common | {"source_chat_ids": [0, 3]}],
        "knowledge_update": [update | common | {"source_chat_ids": {"updated_info": [2]}}],
        "summarization": [summary | {"source_chat_ids": [[0], [2]]}],
    }


def beam_row(number: int = 0, **changes: Any) -> dict[str, Any]:
    """A conversation of two batches, with its questions in Python's notation, as in parquet."""
    first = turns(0, "The kiln is in Brent.", "I see.", date="March-15-2024")
    second = turns(2, "I moved it to Lorne.", "Noted.", date="April-01-2024")
    row = {"conversation_id": str(number), "chat": [first, second]}
    return {**row, "probing_questions": repr(probing()), **changes}


def load(tmp_path: Path, *rows: dict[str, Any]) -> list[Task]:
    """Return the tasks of a file; JSON, JSON Lines, parquet and our own format give the same."""
    listed = load_tasks(write_json(tmp_path / "list.json", list(rows)))
    assert load_tasks(write_lines(tmp_path / "lines.jsonl", list(rows))) == listed
    assert load_tasks(write_parquet(tmp_path / "x.parquet", list(rows))) == listed
    save_tasks(listed, tmp_path / "ours.parquet")
    assert load_tasks(tmp_path / "ours.parquet") == listed
    return listed


def test_longmemeval_sessions_are_in_the_order_of_their_dates(tmp_path: Path) -> None:
    (task,) = load(tmp_path, longmemeval_row())
    (question,) = task.questions
    assert (task.id, task.source, question.id) == ("longmemeval-lme0-000", "longmemeval", "lme0")
    assert [document.text for document in task.documents] == [
        "user: Tell me about clay.",
        "assistant: Clay is soil.",
        "user: I bought a kiln in Brent.",
        "assistant: How nice!",
        "user: Bye.",
    ]
    assert task.documents[0].title.startswith("2023/05/01")
    (gold,) = gold_documents(task, question)
    assert gold.text == "user: I bought a kiln in Brent."
    assert question.text.startswith("Where did I buy the kiln? (Asked on 2023/06/01 (Thu) 10:00.)")


def test_longmemeval_without_marked_turns_takes_the_sessions_of_the_answer(tmp_path: Path) -> None:
    session = [{"role": "user", "content": "x"}, {"role": "assistant", "content": ""}]
    row = longmemeval_row(haystack_sessions=[session] * 3, answer=3)
    (task,) = load_tasks(write_json(tmp_path / "x.json", [row]))
    assert task.questions[0].answers == ("3",)
    assert task.questions[0].metadata["documents"] == [2, 3]


def test_longmemeval_without_an_answer_expects_abstention(tmp_path: Path) -> None:
    row = longmemeval_row(1, question_id="lme1_abs", answer="You did not say.")
    (task,) = load_tasks(write_json(tmp_path / "x.json", [row]))
    (question,) = task.questions
    assert question.metadata["type"] == "abstention"
    assert score_question(question, "That is not mentioned.", task.source)["em"] == 1.0
    assert score_question(question, "In Brent", task.source)["em"] == 0.0


def test_memory_agent_bench_has_ten_questions_a_task(tmp_path: Path) -> None:
    first, second = load(tmp_path, memory_agent_bench_row())
    name = "memoryagentbench-ruler_qa1_197K.0"
    assert (first.id, second.id) == (f"{name}-000", f"{name}-001")
    assert (len(first.questions), len(second.questions)) == (10, 2)
    assert first.context == second.context == "Text 0. The pots are blue."
    assert describe_task(first).group == describe_task(second).group
    assert (first.questions[3].id, first.questions[3].answers) == ("ruler_0_no3", ("blue", "Blue"))
    assert describe_task(first).questions[0].attributes == {"subset": "ruler_qa1_197K"}


@pytest.mark.parametrize(
    ("part", "end"),
    [
        ("icl_nlu_8296shot_balance", "(Answer with the number of the label alone.)"),
        ("factconsolidation_mh_6k", "the one with the higher number is right.)"),
        ("ruler_qa2_421K", "Question 0 of 0?"),
    ],
)
def test_memory_agent_bench_question_has_the_form_of_an_answer(
    tmp_path: Path, part: str, end: str
) -> None:
    row = memory_agent_bench_row()
    row["metadata"] |= {"source": part, "question_types": ["t"] * 12}
    task, _ = load_tasks(write_json(tmp_path / "x.json", [row]))
    assert task.questions[0].text.endswith(end)
    assert task.questions[0].metadata["type"] == "t"


def test_beam_has_turns_as_documents_and_abilities_as_questions(tmp_path: Path) -> None:
    (task,) = load(tmp_path, beam_row())
    assert [(document.title, document.text) for document in task.documents] == [
        ("March-15-2024", "user: The kiln is in Brent."),
        ("March-15-2024", "assistant: I see."),
        ("April-01-2024", "user: I moved it to Lorne."),
        ("April-01-2024", "assistant: Noted."),
    ]
    assert [(one.id, one.answers[-1], one.metadata["documents"]) for one in task.questions] == [
        ("0-abstention-0", "The chat does not tell.", []),
        ("0-information_extraction-0", "In Brent.", [0, 3]),
        ("0-knowledge_update-0", "In Lorne.", [2]),
        ("0-summarization-0", "A kiln moves.", [0, 2]),
    ]
    assert score_question(task.questions[0], "not mentioned", "beam")["em"] == 1.0
    assert task.questions[1].metadata["rubric"] == ["LLM response should state: Brent"]


def test_beam_reads_nested_batches_and_plans(tmp_path: Path) -> None:
    """Ids begin anew in each plan, or count on."""
    (plain,) = load_tasks(write_json(tmp_path / "a.json", [beam_row()]))
    first, second = beam_row()["chat"]
    batches = [
        {"batch_number": 1, "turns": [[turn] for turn in batch]} for batch in (first, second)
    ]
    row = beam_row(chat=batches, probing_questions=json.dumps(probing()))
    assert load_tasks(write_json(tmp_path / "b.json", [row])) == [plain]
    anew = turns(0, "I moved it to Lorne.", "Noted.", date="April-01-2024")
    for later in (second, anew):
        plans = [{"plan-1": [first], "plan-2": None}, {"plan-1": None, "plan-2": [later]}]
        row = beam_row(chat=plans, probing_questions=probing())
        assert load_tasks(write_json(tmp_path / "c.json", [row])) == [plain]
