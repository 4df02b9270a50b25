"""MemAgent's files: training rows, evaluation rows, and several questions a row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atommem.envs.benchmarks.memagent import is_memagent, read_memagent
from atommem.envs.task import Question, Task
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
    assert all(map(is_memagent, rows))
    tasks = list(read_memagent(write(tmp_path / "x", rows)))
    assert tasks[0] == Task(
        id="hotpotqa-00000",
        questions=(Question("Where does Bran live?", ("Port", "Harbour"), id="hotpotqa-00000-0"),),
        context=CONTEXT,
        source="hotpotqa",
        metadata={"index": 7, "num_docs": 2},
    )
    assert tasks[1].questions[0].answers == ("Orla",)


@pytest.mark.parametrize("truth", [[["Port", "Harbour"], ["Orla"]], ["Port", "Orla"]])
@pytest.mark.parametrize("write", [write_parquet, write_json])
def test_several_questions(tmp_path: Path, write: Callable[..., Path], truth: list[Any]) -> None:
    row = train_row(["Where does Bran live?", "Who is a potter?"], truth)
    (task,) = read_memagent(write(tmp_path / "x", [row]))
    assert [q.text for q in task.questions] == ["Where does Bran live?", "Who is a potter?"]
    first = ("Port", "Harbour") if isinstance(truth[0], list) else ("Port",)
    assert [q.answers for q in task.questions] == [first, ("Orla",)]


def test_one_question_in_a_list_keeps_its_aliases(tmp_path: Path) -> None:
    rows = [train_row(["Where?"], [["Port", "Harbour"]]), train_row(["Where?"], ["Port", "Harbour"])]
    for task in read_memagent(write_json(tmp_path / "x.json", rows)):
        assert [q.answers for q in task.questions] == [("Port", "Harbour")]


@pytest.mark.parametrize("write", [write_json, write_lines])
def test_evaluation_rows(tmp_path: Path, write: Callable[..., Path]) -> None:
    (task,) = read_memagent(write(tmp_path / "eval_50.json", [eval_row()]))
    assert task == Task(
        id="memagent-00000",
        questions=(Question("Where does Bran live?", ("Port",), id="memagent-00000-0"),),
        context=CONTEXT,
        source="memagent",
        metadata={"index": 7, "num_docs": 2},
    )
    plain = eval_row(answers="Port")
    del plain["index"], plain["num_docs"]
    (task,) = read_memagent(write(tmp_path / "eval_50.json", [plain]))
    assert (task.questions[0].answers, task.metadata) == (("Port",), {})


def test_lenient_forms_of_a_training_row(tmp_path: Path) -> None:
    row = {
        "prompt": "Where does Bran live?",
        "context": CONTEXT,
        "reward_model": '{"ground_truth": "Port"}',
    }
    system = train_row()
    system["prompt"].insert(0, {"role": "system", "content": "Be brief."})
    tasks = list(read_memagent(write_json(tmp_path / "x.json", [row, system])))
    assert [task.questions[0].text for task in tasks] == ["Where does Bran live?"] * 2
    assert [task.source for task in tasks] == ["memagent", "hotpotqa"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            train_row(["a?", "b?"], ["x"]),
            r"field 'reward_model.ground_truth' has answers for 1 questions, but .* asks 2",
        ),
        (train_row("a?", []), "field 'reward_model.ground_truth' has no answer for question 1"),
        (train_row("a?", [3]), r"field 'reward_model.ground_truth\[0\]' is 3 \(int\), expected a string"),
        (train_row([], []), "field 'prompt' has no question"),
        (
            {**train_row(), "prompt": [{"role": "system", "content": "x"}]},
            "field 'prompt' has no message with the role",
        ),
        ({**train_row(), "reward_model": {"style": "rule"}}, "field 'reward_model' has no 'ground_truth'"),
    ],
)
def test_faults(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=rf"x\.json: row 2: .*{message}"):
        list(read_memagent(write_json(tmp_path / "x.json", [train_row(), row])))
