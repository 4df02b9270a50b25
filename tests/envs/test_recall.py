"""Supporting-fact recall and evidence recall against hand-made episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from atommem.envs.chunking import joined_text
from atommem.envs.longdoc.environment import chunk_observation, question_observation
from atommem.envs.longdoc.recall import evidence_recall, fact_recall, facts_of
from atommem.envs.task import Document, Question, Task
from atommem.episode import Episode, Observation, Step
from atommem.memory.log import MemoryView, Operation, Outcome, Retrieved, Source

FACTS = Task(
    "t",
    (
        Question(
            "Where does Bran live?", ("Port", "Harbour"), metadata={"supporting": [["Bran", 0]]}
        ),
        Question("Is it far?", ("yes",)),
    ),
    (
        Document("Bran", "He is a sailor. He has lived in Port since 1990.", gold=True),
        Document("Moss", "Moss grows in Port since 1990."),
    ),
)
FACT = "Bran lived in Port"
TURNS = Task(
    "t",
    (
        Question("?", ("x",), "q", {"documents": [0, 2]}),
        Question("?", ("x",), "r", {"documents": [1]}),
        Question("?", ()),
    ),
    tuple(Document("May", f"turn {number} " + "word " * 5) for number in range(3)),
    metadata={"sample_id": "c"},
)


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


def write(kind: str, entry: int, chunk: str, outcome: Outcome = Outcome.APPLIED) -> Operation:
    return Operation(0, kind, outcome, entry, after="x", source=Source(0, chunk))


def recall(
    operations: list[list[Operation]], *shown: tuple[int, ...], finished: bool = True
) -> list[float | None]:
    """Return evidence recall by question, where question i retrieves the entries `shown[i]`.

    The heading of the second turn is in the first of two chunks.
    """
    text = joined_text(TURNS)
    middle = text.index("turn 1")
    chunks = [text[:middle], text[middle:]]
    steps = [step(chunk_observation(TURNS, chunks, i), *operations[i]) for i in range(2)]
    for i, ids in enumerate(shown):
        question = question_observation(TURNS, range(i, i + 1))
        steps.append(step(question, shown=dict.fromkeys(ids, "x")))
    found = evidence_recall(TURNS, Episode("t", 0, steps if finished else steps[:1]))
    return [one.get("evidence_recall") for one in found]


CREATES = [
    [write("create", 1, "chunk 1/2"), write("create", 3, "chunk 1/2", Outcome.REJECTED)],
    [write("create", 2, "chunk 2/2")],
]


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (((1,), (1,), ()), [0.5, 1.0, None]),
        (((2, 1), (2,), ()), [1.0, 1.0, None]),
        (((3,), (), ()), [0.0, 0.0, None]),  # was rejected
    ],
)
def test_evidence_recall_equals_hand_computed_values(
    shown: tuple[tuple[int, ...], ...], expected: list[float | None]
) -> None:
    assert recall(CREATES, *shown) == expected
    assert recall(CREATES, *shown, finished=False) == [None, None, None]


def test_updated_entry_counts_for_all_of_its_chunks() -> None:
    operations = [[write("create", 1, "chunk 1/2")], [write("update", 1, "chunk 2/2")]]
    assert recall(operations, (1,), (1,), ())[0] == 1.0
