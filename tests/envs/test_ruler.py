"""RULER's families, and the scores of answers that list all values."""

import asyncio
import random
import re
from collections import Counter
from pathlib import Path

import pytest

from atommem.envs.question_answering import score_answers
from atommem.envs.scoring.metrics import all_of_scores, score_question
from atommem.envs.synthetic.ruler import FAMILIES, RulerConfig, generate
from atommem.envs.task import Task
from atommem.envs.task_files import load_tasks
from atommem.errors import DataError
from tests.envs.benchmark_rows import write_lines


def string_match_all(prediction: str, references: list[str]) -> float:
    """As in NVIDIA/RULER, scripts/eval/synthetic/constants.py (Apache-2.0), of one row."""
    return sum(1.0 if r.lower() in prediction.lower() else 0.0 for r in references) / len(
        references
    )


@pytest.fixture
def prose(tmp_path: Path) -> Path:
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(4, 8))) for _ in range(400)]
    sentences = (" ".join(rng.sample(words, 9)).capitalize() + "." for _ in range(80))
    (tmp_path / "prose.txt").write_text(" ".join(sentences))
    return tmp_path / "prose.txt"


def tasks_of(family: str, prose: Path, count: int = 5) -> list[Task]:
    return list(generate(RulerConfig(family, str(prose), 400), count, 1, "train"))


@pytest.mark.parametrize("family", FAMILIES)
def test_ruler_values_follow_from_the_text(family: str, prose: Path) -> None:
    for task in tasks_of(family, prose):
        (question,) = task.questions
        text = " ".join(document.text for document in task.documents)
        counts = Counter(text.split())
        if family == "variable_tracking":
            value = question.text.split("value ")[1].split()[0]
            known = {value}
            for name, given in re.findall(r"VAR (\w+) = (?:VAR )?(\w+)\.", text):
                known |= {name} if given in known else set()
            assert {*question.answers} == known - {value}
            assert len(question.answers) == 5
        elif family.endswith("_words"):
            most = {word for word, _ in counts.most_common(len(question.answers))}
            assert {*question.answers} == most
        else:
            asked = re.findall(r"\w+", question.text.split(" for ")[1].split(" mentioned")[0])
            needles = re.findall(r"numbers for (\w+) is: (\d+)\.", text)
            assert {*question.answers} == {value for name, value in needles if name in asked}
        assert any(document.gold for document in task.documents)
        answer = ", ".join([*question.answers[:2], "other"])
        recall = score_question(question, answer, task.source)["sub_em"]
        assert recall == string_match_all(answer, [*question.answers])


def test_all_of_recall_equals_the_official_scorer_and_lists_do_not_pay() -> None:
    rng = random.Random(3)
    for _ in range(300):
        values = [str(rng.randint(1000, 9999)) for _ in range(rng.randint(1, 5))]
        others = [str(rng.randint(1000, 9999)) for _ in range(4)]
        given = rng.sample([*values, *others], rng.randint(0, 5))
        answer = rng.choice([", ", " and ", "\n", " "]).join(given)
        scores = all_of_scores(answer, values)
        assert scores["sub_em"] == string_match_all(answer, values)
        # A guess beside an answer never raises what a reward may be.
        more = all_of_scores(f"{answer}, {rng.randint(10_000, 99_999)}", values)
        assert more["em"] <= scores["em"]
        assert more["net_recall"] <= scores["net_recall"]
    assert all_of_scores("1234 and 5678.", ["5678", "1234"])["em"] == 1.0
    assert all_of_scores(None, ["5678"]) == dict.fromkeys(("em", "f1", "sub_em", "net_recall"), 0.0)


def test_official_ruler_rows_ask_for_all_outputs(tmp_path: Path) -> None:
    text = "Some text. There are 12 and 34.\nWhat are all the numbers?"
    row = {"index": 0, "input": text, "outputs": ["12", "34"], "length": 9}
    (task,) = load_tasks(write_lines(tmp_path / "validation.jsonl", [row]))
    assert task.questions[0].text == "What are all the numbers?"
    assert task.context == "Some text. There are 12 and 34."
    score = asyncio.run(score_answers(task, ["34, 12, 99"], "net_recall"))
    assert (score.reward, score.metrics["sub_em"]) == (0.5, 1.0)


def test_ruler_needs_prose(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("Too short.")
    for name in ("short.txt", "missing.txt"):
        with pytest.raises(DataError, match="prose"):
            tasks_of("niah_single", tmp_path / name)
