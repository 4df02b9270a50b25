"""Evidence recall against hand-made episodes on a LoCoMo conversation."""

from __future__ import annotations

from itertools import pairwise

from atommem.envs.chunking import joined_text
from atommem.envs.longdoc.environment import chunk_observation, question_observation
from atommem.envs.longdoc.evidence_recall import evidence_recall
from atommem.envs.task import Document, Question, Task
from atommem.episode import Episode, Step
from atommem.memory.entries import MemoryView, Retrieved, Source
from atommem.memory.operations import Operation, Outcome
from atommem.observation import Observation

TASK = Task(
    "t",
    (
        Question("?", ("x",), "q", {"documents": [0, 2]}),
        Question("?", ("x",), "r", {"documents": [1]}),
        Question("?", ()),
    ),
    tuple(Document("May", f"turn {number} " + "word " * 5) for number in range(3)),
    metadata={"sample_id": "c"},
)


def step(index: int, observation: Observation, *operations: Operation, shown: tuple[int, ...] = ()) -> Step:
    view = MemoryView(retrieved=tuple(Retrieved(handle, entry, "x", 0.5) for handle, entry in enumerate(shown, 1)))
    return Step(index, observation, view, [], [], [], "", "stop", (), (), operations, 0)


def write(kind: str, entry: int, chunk: str, outcome: Outcome = Outcome.APPLIED) -> Operation:
    return Operation(0, kind, outcome, entry, after="x", source=Source(0, chunk))


def recall(chunks: list[str], operations: list[list[Operation]], *shown: tuple[int, ...]) -> list[dict[str, float]]:
    steps = [step(i, chunk_observation(TASK, chunks, i), *operations[i]) for i in range(len(chunks))]
    steps += [
        step(len(steps) + i, question_observation(TASK, range(i, i + 1)), shown=entries)
        for i, entries in enumerate(shown)
    ]
    return evidence_recall(TASK, Episode("t", 0, steps))


def cut(*places: int) -> list[str]:
    text = joined_text(TASK)
    edges = [0, *places, len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


def test_by_hand() -> None:
    chunks = cut(joined_text(TASK).index("turn 1"))  # the second turn's heading is in the first chunk
    first, second = "chunk 1/2", "chunk 2/2"
    operations = [
        [write("create", 1, first), write("create", 3, first, Outcome.REJECTED)],
        [write("create", 2, second)],
    ]
    assert recall(chunks, operations, (1,), (1,), ()) == [{"evidence_recall": 0.5}, {"evidence_recall": 1.0}, {}]
    assert recall(chunks, operations, (2, 1), (2,), ()) == [{"evidence_recall": 1.0}, {"evidence_recall": 1.0}, {}]
    assert recall(chunks, operations, (3,), (), ()) == [{"evidence_recall": 0.0}, {"evidence_recall": 0.0}, {}]
    merged = [[write("create", 1, first)], [write("update", 1, second)]]
    assert recall(chunks, merged, (1,), (1,), ())[0] == {"evidence_recall": 1.0}, "an entry keeps what it was made of"


def test_one_chunk_a_document_and_chunks_of_something_else() -> None:
    chunks = [f"May\n{document.text}" for document in TASK.documents]
    operations = [[write("create", i + 1, f"chunk {i + 1}/3")] for i in range(3)]
    assert recall(chunks, operations, (1,), (1,), ()) == [{"evidence_recall": 0.5}, {"evidence_recall": 0.0}, {}]
    assert recall(cut(50)[:1], [[]], (), (), ()) == [{}, {}, {}], "an episode that ended while it read"
    assert evidence_recall(TASK, Episode("t", 0)) == [{}, {}, {}]
