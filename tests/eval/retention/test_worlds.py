"""What a synthetic task needs kept, and the claims, by hand."""

from __future__ import annotations

import random

import pytest

from atommem.envs.scoring.records import EpisodeRecord, QuestionRecord
from atommem.envs.synthetic.prose import get_prose
from atommem.envs.synthetic.world import WorldConfig, generate
from atommem.envs.task import Document, Question, Task
from atommem.errors import ConfigError
from atommem.eval.retention.claims import Column, mean_em, near_specialist
from atommem.eval.retention.worlds import labelled, needs_of
from atommem.observation import StopReason

TASK = Task(
    "one-0",
    (Question("Ivoryharp made home ?", ("Fenwick",), id="q"),),
    (Document("", "Marena Oakrest home Peri Stonewick home"), Document("", "Ivoryharp Peri made Peri Fenwick moved")),
    metadata={"prose": "compact"},
)


def test_needs_by_hand() -> None:
    needed = {"Peri Stonewick home": 1, "Ivoryharp Peri made": 1, "Peri Fenwick home": 1}
    assert needs_of([TASK]) == {"one-0": needed}
    (stream,) = labelled([TASK])
    assert stream.texts == ("Marena Oakrest home", "Peri Stonewick home", "Ivoryharp Peri made")
    assert stream.needs() == [0, 1, 1]


def test_every_task_needs_its_answer() -> None:
    config = WorldConfig(prose="compact", hops=(1, 3), questions=(1, 2), distractors=5)
    tasks = list(generate(config, 20, 3))
    for task, needed in zip(tasks, needs_of(tasks).values(), strict=True):
        said = get_prose("compact").statements(" ".join(needed))
        assert {answer for question in task.questions for answer in question.answers} <= {each.value for each in said}


def made(right: list[bool], seeds: int = 1) -> list[EpisodeRecord]:
    found = []
    for seed in range(seeds):
        for number, em in enumerate(right):
            question = QuestionRecord(f"{number}", f"q{number}", "a", ("a",), metrics={"em": float(em)})
            name, metrics = f"synthetic-7-{number}", {"em": float(em)}
            record = EpisodeRecord(
                name, seed, "synthetic", StopReason.ANSWERED, None, float(em), metrics, (question,), {}, 0.0
            )
            found.append(record)
    return found


def test_the_best_rule_is_chosen_on_tasks_that_are_in_no_figure() -> None:
    """60 tasks; on the first 20 lru is the better rule, on the others fifo."""
    draws = random.Random(0)
    own = [True] * 60
    lru = [True] * 20 + [draws.random() < 0.5 for _ in range(40)]
    fifo = [False] * 20 + [draws.random() < 0.6 for _ in range(40)]
    arms = {
        "atommem, own reject": made(own, 3),
        "atommem, writes lru": made(lru, 3),
        "atommem, writes fifo": made(fifo, 3),
        "atommem, writes oracle": made([True] * 60, 3),
    }
    column = Column(arms, 20)
    found = column.against_rules()
    expected = 1 - sum(lru[20:]) / 40
    assert (column.rule, found["own_em"], len(column.arms[column.own])) == ("atommem, writes lru", 1.0, 120)
    assert found["difference"] == pytest.approx(expected)
    assert found["p_holm"] < 0.01
    assert found["not_beaten"] == []
    assert column.gap_closed()["share"] == 1.0
    assert column.gap_closed()["gap"] == pytest.approx(expected)
    assert column.spread()["farthest"] in ("atommem, writes lru", "atommem, writes fifo")
    with pytest.raises(ConfigError, match="more than 60 tasks"):
        Column(arms, 60)
    with pytest.raises(ConfigError, match="no row atommem, own"):
        Column({"atommem, writes lru": made(lru)}, 20)


def test_a_specialist_by_hand() -> None:
    general, special = made([True] * 20 + [True, False] * 20), made([True] * 20 + [True, True, True, False] * 10)
    found = near_specialist(general, special, 20)
    assert (found["difference"], found["within"], mean_em(special[20:])) == (-0.25, False, 0.75)
    assert near_specialist(special, general, 20)["within"]
