"""OOLONG: its rows and its scores."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from atommem.envs.scoring.metrics import score_question
from atommem.envs.task_files import load_tasks
from atommem.errors import DataError
from tests.envs.benchmark_rows import write_lines


def oolong_row(answer: str, kind: str = "", **changes: Any) -> dict[str, Any]:
    """Return an invented row in the layout of the synthetic or, without a kind, the real set."""
    row = {"id": 7, "context_window_id": 3, "context_window_text": "Lines.", "question": "Which?"}
    group = {"task_group": "user", "answer_type": f"ANSWER_TYPE.{kind}"}
    return {**row, "answer": answer, **(group if kind else {"question_type": "rolls"}), **changes}


def read(folder: Path, row: dict[str, Any]) -> Any:
    return load_tasks(write_lines(folder / "test.jsonl", [row]))[0]


SCORES = yaml.safe_load(Path(__file__).with_name("oolong_scores.yaml").read_text())


@pytest.mark.parametrize(("gold", "kind", "answer", "official"), SCORES)
def test_oolong_score_equals_the_official_one(
    gold: str, kind: str, answer: str, official: float, tmp_path: Path
) -> None:
    task = read(tmp_path, oolong_row(gold, kind))
    assert score_question(task.questions[0], answer, task.source)["oolong"] == official


def test_oolong_rows_share_the_cluster_of_their_text(tmp_path: Path) -> None:
    task = read(tmp_path, oolong_row("[datetime.date(2024, 3, 5)]", "DATE"))
    assert (task.id, task.source, task.context) == ("oolong-7", "oolong", "Lines.")
    assert task.metadata["sample_id"] == "3"
    (question,) = task.questions
    assert (question.answers, question.metadata["type"]) == (("2024-03-05",), "user")
    assert read(tmp_path, oolong_row("5", id="x")).source == "oolong_real"
    with pytest.raises(DataError, match="answer"):
        read(tmp_path, oolong_row("spam", "LABEL"))
