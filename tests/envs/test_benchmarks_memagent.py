"""MemAgent's files: training rows, evaluation rows, and several questions a row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atommem.envs.task import Question, Task
from atommem.envs.task_files import load_tasks
from atommem.errors import DataError
from tests.envs.benchmark_rows import write_json, write_lines, write_parquet

CONTEXT = "Document 1:\nOrla\nOrla is a potter.\n\nDocument 2:\nBran\nBran lives in Port."
ASKED = "Where does Bran live?"


def train_row(
    question: Any = ASKED, truth: Any = ("Port", "Harbour"), **changes: Any
) -> dict[str, Any]:
    row = {
        "data_source": "hotpotqa",
        "prompt": [{"role": "user", "content": question}],
        "context": CONTEXT,
        "ability": "memory",
        "reward_model": {"style": "rule", "ground_truth": list(truth)},
        "extra_info": {"index": 7, "question": question, "num_docs": 2},
    }
    return {**row, **changes}


def eval_row(**changes: Any) -> dict[str, Any]:
    row = {"context": CONTEXT, "input": ASKED, "answers": ["Port"], "num_docs": 2, "index": 7}
    return {**row, **changes}


@pytest.mark.parametrize("write", [write_parquet, write_json, write_lines])
@pytest.mark.parametrize(
    ("row", "source"), [(train_row(ASKED, ["Port"]), "hotpotqa"), (eval_row(), "memagent")]
)
def test_rows_of_training_and_evaluation_are_tasks(
    tmp_path: Path, write: Any, row: dict[str, Any], source: str
) -> None:
    (task,) = load_tasks(write(tmp_path / "x", [row]))
    name = f"{source}-00000"
    metadata = {"index": 7, "num_docs": 2}
    question = Question(ASKED, ("Port",), f"{name}-0")
    assert task == Task(name, (question,), (), CONTEXT, source, metadata)


PAIR = ["Bran?", "Orla?"]
ALIASES = ("Port", "Harbour")


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (train_row(PAIR, [["Port", "Harbour"], ["Orla"]]), {"Bran?": ALIASES, "Orla?": ("Orla",)}),
        (train_row(PAIR, ["Port", "Orla"]), {"Bran?": ("Port",), "Orla?": ("Orla",)}),
        (train_row(["Bran?"]), {"Bran?": ALIASES}),
        (eval_row(answers="Port"), {ASKED: ("Port",)}),
        (
            {"context": "x", "prompt": ASKED, "reward_model": '{"ground_truth": "Port"}'},
            {ASKED: ("Port",)},
        ),
    ],
)
def test_questions_and_answers_are_read_in_all_forms(
    tmp_path: Path, row: dict[str, Any], expected: dict[str, tuple[str, ...]]
) -> None:
    (task,) = load_tasks(write_json(tmp_path / "x", [row]))
    assert {question.text: question.answers for question in task.questions} == expected


def test_row_without_a_question_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'prompt' has no question"):
        load_tasks(write_json(tmp_path / "none.json", [train_row([], [])]))
