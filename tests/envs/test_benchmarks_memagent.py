"""MemAgent's files: training rows, evaluation rows, several questions a row; hostile ones in test_hostile_files.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atommem.envs.task import Question, Task
from atommem.envs.task_files import load_tasks
from atommem.errors import DataError
from tests.envs.benchmark_rows import write_json, write_lines, write_parquet

CONTEXT = "Document 1:\nOrla\nOrla is a potter.\n\nDocument 2:\nBran\nBran lives in Port."


def train_row(question: Any = "Where does Bran live?", truth: Any = ("Port", "Harbour")) -> dict[str, Any]:
    return {
        "data_source": "hotpotqa",
        "prompt": [{"role": "user", "content": question}],
        "context": CONTEXT,
        "ability": "memory",
        "reward_model": {"style": "rule", "ground_truth": list(truth)},
        "extra_info": {"index": 7, "question": question, "num_docs": 2},
    }


def eval_row(**changes: Any) -> dict[str, Any]:
    row = {"context": CONTEXT, "input": "Where does Bran live?", "answers": ["Port"], "num_docs": 2, "index": 7}
    return {**row, **changes}


@pytest.mark.parametrize("write", [write_parquet, write_json, write_lines])
def test_training_rows(tmp_path: Path, write: Callable[..., Path]) -> None:
    rows = [train_row(), train_row("Who is a potter?", ["Orla"])]
    tasks = load_tasks(write(tmp_path / "x", rows))
    asked = (Question("Where does Bran live?", ("Port", "Harbour"), id="hotpotqa-00000-0"),)
    metadata = {"index": 7, "num_docs": 2}
    assert tasks[0] == Task("hotpotqa-00000", asked, context=CONTEXT, source="hotpotqa", metadata=metadata)
    assert tasks[1].questions[0].answers == ("Orla",)


@pytest.mark.parametrize("write", [write_parquet, write_json])
@pytest.mark.parametrize(
    ("asked", "truth", "answers"),
    [
        (["Bran?", "Orla?"], [["Port", "Harbour"], ["Orla"]], [("Port", "Harbour"), ("Orla",)]),
        (["Bran?", "Orla?"], ["Port", "Orla"], [("Port",), ("Orla",)]),
        (["Bran?"], [["Port", "Harbour"]], [("Port", "Harbour")]),  # one question keeps its aliases
        (["Bran?"], ["Port", "Harbour"], [("Port", "Harbour")]),
    ],
)
def test_questions_in_a_list(
    tmp_path: Path, write: Callable[..., Path], asked: list[str], truth: list[Any], answers: list[tuple[str, ...]]
) -> None:
    (task,) = load_tasks(write(tmp_path / "x", [train_row(asked, truth)]))
    assert [(question.text, question.answers) for question in task.questions] == list(zip(asked, answers, strict=True))


def test_evaluation_rows_and_lenient_forms(tmp_path: Path) -> None:
    plain = {"context": CONTEXT, "input": "Where does Bran live?", "answers": "Port"}
    bare = {"context": CONTEXT, "prompt": "Where does Bran live?", "reward_model": '{"ground_truth": "Port"}'}
    system = train_row()
    system["prompt"].insert(0, {"role": "system", "content": "Be brief."})
    tasks = load_tasks(write_json(tmp_path / "eval_50.json", [eval_row(), plain, bare, system]))
    asked = (Question("Where does Bran live?", ("Port",), id="memagent-00000-0"),)
    metadata = {"index": 7, "num_docs": 2}
    assert tasks[0] == Task("memagent-00000", asked, context=CONTEXT, source="memagent", metadata=metadata)
    assert {task.questions[0].text for task in tasks} == {"Where does Bran live?"}
    assert [task.questions[0].answers for task in tasks] == [*[("Port",)] * 3, ("Port", "Harbour")]
    assert [task.source for task in tasks] == ["memagent", "memagent", "memagent", "hotpotqa"]
    assert tasks[1].metadata == {}
    with pytest.raises(DataError, match="'prompt' has no question"):
        load_tasks(write_json(tmp_path / "none.json", [train_row([], [])]))
