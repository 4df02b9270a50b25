"""MemAgent's files: training rows, evaluation rows, several questions a row; hostile ones in test_hostile_files.py."""

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
def test_rows_of_training_and_evaluation(
    tmp_path: Path, write: Any, row: dict[str, Any], source: str
) -> None:
    tasks = load_tasks(write(tmp_path / "x", [row, row]))
    metadata = {"index": 7, "num_docs": 2}
    assert tasks == [
        Task(
            f"{source}-0000{n}",
            (Question(ASKED, ("Port",), f"{source}-0000{n}-0"),),
            (),
            CONTEXT,
            source,
            metadata,
        )
        for n in range(2)
    ]


TWO = ["Bran?", "Orla?"]


@pytest.mark.parametrize("write", [write_parquet, write_json])
@pytest.mark.parametrize(
    ("row", "asked"),
    [
        (
            train_row(TWO, [["Port", "Harbour"], ["Orla"]]),
            {"Bran?": ("Port", "Harbour"), "Orla?": ("Orla",)},
        ),
        (train_row(TWO, ["Port", "Orla"]), {"Bran?": ("Port",), "Orla?": ("Orla",)}),
        (
            train_row(["Bran?"], [["Port", "Harbour"]]),
            {"Bran?": ("Port", "Harbour")},
        ),  # one question keeps its aliases
        (train_row(["Bran?"]), {"Bran?": ("Port", "Harbour")}),
        # Lenient forms.
        (eval_row(answers="Port"), {ASKED: ("Port",)}),
        (
            {"context": "x", "prompt": ASKED, "reward_model": '{"ground_truth": "Port"}'},
            {ASKED: ("Port",)},
        ),
        (
            train_row(prompt=[{"role": r, "content": ASKED} for r in ("system", "user")]),
            {ASKED: ("Port", "Harbour")},
        ),
    ],
)
def test_questions_and_answers_in_all_their_forms(
    tmp_path: Path, write: Any, row: dict[str, Any], asked: dict[str, tuple[str, ...]]
) -> None:
    (task,) = load_tasks(write(tmp_path / "x", [row]))
    assert {question.text: question.answers for question in task.questions} == asked


def test_a_row_without_a_question_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'prompt' has no question"):
        load_tasks(write_json(tmp_path / "none.json", [train_row([], [])]))
