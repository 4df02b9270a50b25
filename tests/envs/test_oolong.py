"""OOLONG: its rows, its scores, and generated lines that are counted again."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from atommem.envs.scoring.metrics import score_question
from atommem.envs.synthetic.oolong import _LABELS, OolongConfig, generate
from atommem.envs.synthetic.told import RELATIONS
from atommem.envs.task_files import load_tasks
from atommem.errors import DataError


def oolong_row(answer: str, kind: str = "", **changes: Any) -> dict[str, Any]:
    """Return an invented row in the layout of the synthetic or, without a kind, the real set."""
    row = {"id": 7, "context_window_id": 3, "context_window_text": "Lines.", "question": "Which?"}
    group = {"task_group": "user", "answer_type": f"ANSWER_TYPE.{kind}"}
    return {**row, "answer": answer, **(group if kind else {"question_type": "rolls"}), **changes}


def read(folder: Path, row: dict[str, Any]) -> Any:
    path = folder / "test.jsonl"
    path.write_text(json.dumps(row) + "\n")
    return load_tasks(path)[0]


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
    assert (task.questions[0].answers, task.questions[0].metadata["type"]) == (
        ("2024-03-05",),
        "user",
    )
    assert read(tmp_path, oolong_row("5", id="x")).source == "oolong_real"
    with pytest.raises(DataError, match="answer"):
        read(tmp_path, oolong_row("spam", "LABEL"))


def label_of(sentence: str, labels: list[str]) -> str:
    """Classify a sentence by the wordings that it can be; '' if it can be of several labels."""
    found = {
        label
        for label in labels
        for wording in RELATIONS[_LABELS[label]]["say"].split("|")
        if re.fullmatch(
            re.sub(r"\\\{\w\\\}", ".+", re.escape(re.sub(r"[][<>]", "", wording.strip()))),
            sentence,
            re.IGNORECASE,
        )
    }
    return found.pop() if len(found) == 1 else ""


@pytest.mark.parametrize("split", ["train", "test"])
def test_generated_lines_give_the_answer_when_they_are_counted_again(split: str) -> None:
    kinds: Counter[str] = Counter()
    for task in generate(OolongConfig(lines=40), 20, 3, split):
        question = task.questions[0]
        intro, *parts = (document.text for document in task.documents)
        labels = intro.partition("these: ")[2].rstrip(".").split(", ")
        counts = dict.fromkeys(labels, 0)
        user = re.search(r"user (\d+)", question.text)
        date = re.search(r"up to (\S+),", question.text)
        lines = [line.split(" | ") for part in parts for line in part.splitlines()]
        found = [
            label_of(sentence, labels)
            for day, name, sentence in lines
            if not (user and name != f"user {user[1]}") and not (date and day > date[1])
        ]
        assert len(lines) == 40
        if "" in found:
            continue  # these sentences do not tell this test their label
        counts.update(Counter(found))
        kind = question.metadata["answer_type"].removeprefix("ANSWER_TYPE.")
        kinds[kind] += 1
        (answer,) = question.answers
        named = sorted((label for label in labels if f"the {label}" in question.text), key=len)
        if kind == "NUMERIC":
            assert counts[named[-1]] == int(answer)
        elif kind == "LABEL":
            best = (max if "most often" in question.text else min)(counts.values())
            assert [label for label in labels if counts[label] == best] == [answer]
        else:
            first, second = sorted(named, key=question.text.index)
            more = counts[first] - counts[second]
            expected = "more" if more > 0 else "less" if more else "same"
            assert answer.startswith(expected)
        assert score_question(question, answer, task.source) == {"em": 1.0, "oolong": 1.0}
    assert sum(kinds.values()) > 8
    assert len(kinds) == 3
