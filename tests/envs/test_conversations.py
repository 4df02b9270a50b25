"""LoCoMo, LongMemEval, BEAM and MemAgent in their published formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from atommem.envs.benchmarks.locomo import read_locomo
from atommem.envs.longdoc.recall import gold_documents
from atommem.envs.scoring.metrics import hint, score_question
from atommem.envs.task import Question, Task
from atommem.envs.task_files import load_tasks, save_tasks
from atommem.errors import DataError
from tests.envs.benchmark_rows import (
    beam_row,
    beam_turns,
    locomo_row,
    longmemeval_row,
    probing,
    write_json,
    write_lines,
    write_parquet,
)


def load(tmp_path: Path, *rows: dict[str, Any]) -> list[Task]:
    """Return the tasks of a file; JSON, JSON Lines, parquet and our own format give the same."""
    listed = load_tasks(write_json(tmp_path / "list.json", list(rows)))
    assert load_tasks(write_lines(tmp_path / "lines.jsonl", list(rows))) == listed
    assert load_tasks(write_parquet(tmp_path / "x.parquet", list(rows))) == listed
    save_tasks(listed, tmp_path / "ours.parquet")
    assert load_tasks(tmp_path / "ours.parquet") == listed
    return listed


def test_locomo_turns_are_documents_with_dates(tmp_path: Path) -> None:
    (task,) = load_tasks(write_json(tmp_path / "locomo10.json", [locomo_row()]))
    assert [(document.title, document.text, document.gold) for document in task.documents] == [
        ("7:15 pm on 2 May, 2021", "Orla: I made two bowls yesterday.", True),
        ("7:15 pm on 2 May, 2021", "Bran: Nice! [shares an image: a photo of a bowl]", False),
        ("9:00 am on 3 June, 2021", "Orla: I sold the kiln.", True),
    ]
    assert [(question.metadata["category"], *question.answers) for question in task.questions] == [
        ("multi_hop", "bowls, a kiln"),
        ("temporal", "2021"),
        ("open_domain", "Likely yes"),
        ("single_hop", "The kiln"),
        ("adversarial", "not mentioned"),
    ]
    assert [len(gold_documents(task, question)) for question in task.questions] == [2, 1, 0, 1, 1]
    assert all(question.text.endswith(hint("conversation")) for question in task.questions)


def test_locomo_official_wording_gives_dates_and_options(tmp_path: Path) -> None:
    rows = [locomo_row(sample_id=f"c{number}") for number in range(20)]
    orders = set()
    for task in read_locomo(write_json(tmp_path / "x.json", rows), 5, official=True):
        assert task.questions[1].text.startswith("When? (Tell the approximate date")
        question = task.questions[4]
        options = question.metadata["options"]
        assert question.text.endswith(f"(a) {options['a']} (b) {options['b']}")
        right, wrong = sorted("ab", key=lambda letter: options[letter] == "the kiln")
        for answer, score in ((right, 1), (f"({right})", 1), (f" ({wrong.upper()}) ", 0)):
            assert score_question(question, answer, "locomo")["em"] == score
        orders.add(right)
    assert orders == {"a", "b"}


def test_longmemeval_sessions_are_in_the_order_of_their_dates(tmp_path: Path) -> None:
    unanswerable = longmemeval_row(question_id="lme1_abs", answer="You did not say.")
    task, other = load(tmp_path, longmemeval_row(), unanswerable)
    (question,) = task.questions
    assert [document.text for document in task.documents] == [
        "user: Tell me about clay.",
        "user: I bought a kiln in Brent.",
        "assistant: How nice!",
    ]
    assert gold_documents(task, question) == [task.documents[1]]
    assert question.text.startswith("Where did I buy the kiln? (Asked on 2023/06/01 (Thu) 10:00.)")
    assert score_question(other.questions[0], "not mentioned", "longmemeval")["em"] == 1.0


def test_beam_has_turns_as_documents_and_abilities_as_questions(tmp_path: Path) -> None:
    (task,) = load(tmp_path, beam_row())
    second = task.documents[2]
    assert (len(task.documents), second.title) == (4, "April-01-2024")
    assert second.text == "user: I moved it to Lorne."
    assert [(one.answers[-1], one.metadata["documents"]) for one in task.questions] == [
        ("The chat does not tell.", []),
        ("In Brent.", [0, 3]),
        ("In Lorne.", [2]),
        ("A kiln moves.", [0, 2]),
    ]
    assert score_question(task.questions[0], "not mentioned", "beam")["em"] == 1.0
    assert task.questions[1].metadata["rubric"] == ["LLM response should state: Brent"]


def test_beam_reads_nested_batches_and_plans(tmp_path: Path) -> None:
    """Ids begin anew in each plan, or count on."""
    (plain,) = load_tasks(write_json(tmp_path / "a.json", [beam_row()]))
    first, second = beam_row()["chat"]
    anew = beam_turns(0, "I moved it to Lorne.", "Noted.", date="April-01-2024")
    batches = [{"turns": [[turn] for turn in batch]} for batch in (first, second)]
    plans = [
        [{"plan-1": [first], "plan-2": None}, {"plan-1": None, "plan-2": [later]}]
        for later in (second, anew)
    ]
    for chat in (batches, *plans):
        row = beam_row(chat=chat, probing_questions=json.dumps(probing()))
        assert load_tasks(write_json(tmp_path / "b.json", [row])) == [plain]


def memagent_row(question: Any, truth: list[Any]) -> dict[str, Any]:
    """A row of MemAgent's training file."""
    return {
        "data_source": "hotpotqa",
        "prompt": [{"role": "user", "content": question}],
        "context": CONTEXT,
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"index": 7, "question": question, "num_docs": 2},
    }


CONTEXT = "Document 1:\nOrla\nOrla is a potter."
EVALUATION = {"context": CONTEXT, "input": "Bran?", "answers": ["Port"], "num_docs": 2, "index": 7}


@pytest.mark.parametrize("write", [write_parquet, write_json])
@pytest.mark.parametrize(
    ("row", "source"),
    [(memagent_row("Bran?", ["Port"]), "hotpotqa"), (EVALUATION, "memagent")],
)
def test_memagent_rows_of_training_and_evaluation_are_tasks(
    tmp_path: Path, write: Any, row: dict[str, Any], source: str
) -> None:
    (task,) = load_tasks(write(tmp_path / "x", [row]))
    name = f"{source}-00000"
    question = Question("Bran?", ("Port",), f"{name}-0")
    assert task == Task(name, (question,), (), CONTEXT, source)


PAIR = ["Bran?", "Orla?"]
ALIASES = ("Port", "Harbour")


@pytest.mark.parametrize(
    ("row", "answers"),
    [
        (memagent_row(PAIR, [[*ALIASES], ["Orla"]]), [ALIASES, ("Orla",)]),
        (memagent_row(PAIR, ["Port", "Orla"]), [("Port",), ("Orla",)]),
        (memagent_row(PAIR[:1], [*ALIASES]), [ALIASES]),
        (EVALUATION | {"answers": "Port"}, [("Port",)]),
    ],
)
def test_memagent_answers_are_read_in_all_forms(
    tmp_path: Path, row: dict[str, Any], answers: list[tuple[str, ...]]
) -> None:
    (task,) = load_tasks(write_json(tmp_path / "x", [row]))
    assert [question.answers for question in task.questions] == answers
    assert [question.text for question in task.questions] == PAIR[: len(answers)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (memagent_row("Bran?", []), "'reward_model' is empty"),
        (locomo_row(conversation={"session_1": []}), "conversation.session_1_date_time"),
        (longmemeval_row(haystack_dates=["2023"]), "'haystack_dates'"),
        (beam_row(probing_questions="__import__('os')"), "neither JSON nor Python's"),
    ],
)
def test_row_with_a_wrong_field_raises_with_its_place(
    tmp_path: Path, row: dict[str, Any], message: str
) -> None:
    path = write_json(tmp_path / "x.json", [row])
    with pytest.raises(DataError, match=message) as caught:
        load_tasks(path)
    assert f"{path}: row 1" in str(caught.value)
