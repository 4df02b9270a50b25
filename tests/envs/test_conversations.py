"""LongMemEval, MemoryAgentBench and BEAM in their published formats, with invented rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from atommem.envs.benchmarks.rows import import_pyarrow
from atommem.envs.longdoc.fact_recall import gold_documents
from atommem.envs.scoring.answers import score_question
from atommem.envs.task import Task, describe_task
from atommem.envs.task_files import load_tasks, save_tasks
from tests.envs.benchmark_rows import write_json, write_lines


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
    row = {
        "context": f"Text {number}. The pots are blue.",
        "questions": [f"Question {i} of {number}?" for i in range(12)],
        "answers": [["blue", "Blue"] for _ in range(12)],
        "metadata": {
            "source": "ruler_qa1_197K",
            "qa_pair_ids": [f"ruler_{number}_no{i}" for i in range(12)],
            **dict.fromkeys(
                (
                    "question_types",
                    "question_dates",
                    "keypoints",
                    "previous_events",
                    "haystack_sessions",
                )
            ),
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


def probing(**more: Any) -> dict[str, Any]:
    """Probing questions of some abilities, with what each calls its gold answer."""
    common = {"difficulty": "easy", "rubric": ["LLM response should state: Brent"]}
    return {
        "abstention": [
            {"question": "Who sold it?", "ideal_response": "The chat does not tell.", **common}
        ],
        "information_extraction": [
            {
                "question": "Where is the kiln?",
                "answer": "In Brent.",
                "source_chat_ids": [0, 3],
                **common,
            }
        ],
        "knowledge_update": [
            {
                "question": "And now?",
                "answer": "In Lorne.",
                "source_chat_ids": {"updated_info": [2]},
                **common,
            }
        ],
        "summarization": [
            {"question": "Sum up.", "ideal_summary": "A kiln moves.", "source_chat_ids": [[0], [2]]}
        ],
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


def load(tmp_path: Path, *rows: dict[str, Any]) -> list[Task]:
    """The tasks of a file: the same from a JSON list, JSON Lines and parquet, and after a way through ours."""
    pyarrow, parquet = import_pyarrow()
    listed = load_tasks(write_json(tmp_path / "list.json", list(rows)))
    assert load_tasks(write_lines(tmp_path / "lines.jsonl", list(rows))) == listed
    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), tmp_path / "x.parquet")
    assert load_tasks(tmp_path / "x.parquet") == listed
    save_tasks(listed, tmp_path / "ours.parquet")
    assert load_tasks(tmp_path / "ours.parquet") == listed
    return listed


def test_longmemeval_is_read_in_the_order_of_its_dates(tmp_path: Path) -> None:
    (task,) = load(tmp_path, longmemeval_row())
    (question,) = task.questions
    assert (task.id, task.source, question.id) == ("longmemeval-lme0-000", "longmemeval", "lme0")
    assert [(document.title[:10], document.text) for document in task.documents] == [
        ("2023/05/01", "user: Tell me about clay."),
        ("2023/05/01", "assistant: Clay is soil."),
        ("2023/05/20", "user: I bought a kiln in Brent."),
        ("2023/05/20", "assistant: How nice!"),
        ("2023/05/30", "user: Bye."),
    ]
    assert [document.text for document in gold_documents(task, question)] == [
        "user: I bought a kiln in Brent."
    ]
    assert question.text.startswith("Where did I buy the kiln? (Asked on 2023/06/01 (Thu) 10:00.)")
    at = {"first evidence": "40-60%", "last evidence": "40-60%"}
    assert describe_task(task).questions[0].attributes == {"type": "single-session-user", **at}


def test_longmemeval_without_marked_turns_and_without_an_answer(tmp_path: Path) -> None:
    plain = [
        [{"role": "user", "content": "x"}, {"role": "assistant", "content": ""}] for _ in range(3)
    ]
    absent = longmemeval_row(1, question_id="lme1_abs", answer="You did not say.")
    rows = [longmemeval_row(haystack_sessions=plain, answer=3), absent]
    first, second = load_tasks(write_json(tmp_path / "x.json", rows))
    assert first.questions[0].answers == ("3",), "counts are numbers in the file"
    assert first.questions[0].metadata["documents"] == [2, 3], (
        "all turns of the sessions that hold the answer"
    )
    assert second.questions[0].metadata["type"] == "abstention"
    assert score_question(second.questions[0], "That is not mentioned.", second.source)["em"] == 1.0
    assert score_question(second.questions[0], "In Brent", second.source) == {
        "em": 0.0,
        "f1": 0.0,
        "sub_em": 0.0,
    }


def test_memory_agent_bench_asks_ten_questions_a_task(tmp_path: Path) -> None:
    load(tmp_path, memory_agent_bench_row())
    rows = [
        memory_agent_bench_row(),
        memory_agent_bench_row(1, questions=["Q?"], answers=["blue", "navy"]),
    ]
    first, second, third = load_tasks(write_json(tmp_path / "x.json", rows))
    assert [task.id for task in (first, second)] == [
        f"memoryagentbench-ruler_qa1_197K.0-{i:03d}" for i in range(2)
    ]
    assert [len(task.questions) for task in (first, second, third)] == [10, 2, 1]
    assert first.context == second.context == "Text 0. The pots are blue."
    assert describe_task(first).group == describe_task(second).group != describe_task(third).group
    assert (first.questions[3].id, first.questions[3].answers) == ("ruler_0_no3", ("blue", "Blue"))
    assert third.questions[0].answers == ("blue", "navy"), (
        "of one question, the answers may stand in the list itself"
    )
    assert describe_task(first).questions[0].attributes == {"subset": "ruler_qa1_197K"}


def test_memory_agent_bench_says_the_form_of_an_answer(tmp_path: Path) -> None:
    for part, end in (
        ("icl_nlu_8296shot_balance", "(Answer with the number of the label alone.)"),
        ("factconsolidation_mh_6k", "the one with the higher number is right.)"),
        ("ruler_qa2_421K", "Question 0 of 0?"),
    ):
        row = memory_agent_bench_row()
        row["metadata"] |= {"source": part, "question_types": ["t"] * 12}
        (question, *_), _ = (task.questions for task in load(tmp_path, row))
        assert question.text.endswith(end)
        assert question.metadata["type"] == "t"


def test_beam(tmp_path: Path) -> None:
    (task,) = load(tmp_path, beam_row())
    assert task.id == "beam-0-000"
    assert [(document.title, document.text) for document in task.documents] == [
        ("March-15-2024", "user: The kiln is in Brent."),
        ("March-15-2024", "assistant: I see."),
        ("April-01-2024", "user: I moved it to Lorne."),
        ("April-01-2024", "assistant: Noted."),
    ]
    assert [
        (question.id, question.answers[-1], question.metadata["documents"])
        for question in task.questions
    ] == [
        ("0-abstention-0", "The chat does not tell.", []),
        ("0-information_extraction-0", "In Brent.", [0, 3]),
        ("0-knowledge_update-0", "In Lorne.", [2]),
        ("0-summarization-0", "A kiln moves.", [0, 2]),
    ]
    assert score_question(task.questions[0], "not mentioned", "beam")["em"] == 1.0
    assert task.questions[1].metadata["rubric"] == ["LLM response should state: Brent"]
    assert describe_task(task).questions[1].attributes["level"] == "easy"


def test_beam_in_its_other_layouts(tmp_path: Path) -> None:
    """As the repository's files nest it, and at 10M: plans, whose ids begin anew or count on."""
    (plain,) = load_tasks(write_json(tmp_path / "a.json", [beam_row()]))
    batches = [
        {"batch_number": 1, "time_anchor": None, "turns": [[turn] for turn in batch]}
        for batch in beam_row()["chat"]
    ]
    row = beam_row(chat=batches, probing_questions=json.dumps(probing()))
    assert load_tasks(write_json(tmp_path / "b.json", [row])) == [plain]
    for second in (0, 2):
        plans = [
            {
                "plan-1": [turns(0, "The kiln is in Brent.", "I see.", date="March-15-2024")],
                "plan-2": None,
            },
            {
                "plan-1": None,
                "plan-2": [turns(second, "I moved it to Lorne.", "Noted.", date="April-01-2024")],
            },
        ]
        row = beam_row(chat=plans, probing_questions=probing())
        assert load_tasks(write_json(tmp_path / "c.json", [row])) == [plain]
