"""Recall of facts against hand-made episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from atommem.envs.longdoc.recall import fact_recall, facts_of
from atommem.envs.task import Document, Question, Task
from atommem.episode import Episode, Observation, Step
from atommem.memory.log import MemoryView, Operation, Outcome, Retrieved

FACTS = Task(
    "t",
    (
        Question("Where does Bran live?", ("Port", "Harbour")),
        Question("Is it far?", ("yes",)),
    ),
    (
        Document("Bran", "He is a sailor. He has lived in Port since 1990.", gold=True),
        Document("Moss", "Moss grows in Port since 1990."),
    ),
)
FACT = "Bran lived in Port"
READING = Observation("reading")


def step(
    observation: Observation, *operations: Operation, shown: Mapping[int, str] | None = None
) -> Step:
    """Return a step that retrieves the texts in `shown`, by the ids of their entries."""
    retrieved = (
        Retrieved(handle, entry, text, 0.5)
        for handle, (entry, text) in enumerate((shown or {}).items(), 1)
    )
    view = MemoryView(retrieved=(*retrieved,))
    return Step(0, observation, view, [], [], [], "", "stop", (), (), operations, 0)


def asked(question: int, *operations: Operation, **shown: Any) -> Step:
    return step(Observation("answering", question=question), *operations, **shown)


@pytest.mark.parametrize(
    ("text", "carried"),
    [
        ("Since 1990: PORT.", True),
        ("Bran lived in Portland", False),  # whole words
        ("The port is big; Bran likes it", False),  # one more word is chance
        ("Bran has lived there since 1990", False),
    ],
)
def test_fact_is_carried_by_its_answer_and_two_of_its_words(text: str, carried: bool) -> None:
    (fact,) = facts_of(FACTS, FACTS.questions[0])
    assert fact.carried_by(text) is carried
    assert facts_of(FACTS, FACTS.questions[1]) == []


CREATE = Operation(0, "create", entry_id=1, after=FACT)
OVERWRITE = Operation(0, "update", entry_id=1, before=FACT, after="Bran")
REJECTED = Operation(0, "create", Outcome.REJECTED, after=FACT)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([step(READING, CREATE), asked(0, shown={1: FACT})], (1, 1, 1)),
        ([step(READING, CREATE), asked(0, OVERWRITE)], (1, 0, 0)),
        ([step(READING, REJECTED)], (0, 0, 0)),
    ],
)
def test_fact_recall_separates_entered_kept_and_retrieved(
    steps: list[Step], expected: tuple[int, ...]
) -> None:
    found = fact_recall(FACTS, Episode("t", 0, steps))[0]
    assert [*found] == ["fact_entered", "fact_kept", "fact_retrieved"]
    assert (*found.values(),) == expected
