"""Supporting-fact recall and evidence recall against hand-made episodes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from atommem.envs.chunking import joined_text
from atommem.envs.longdoc.environment import chunk_observation, question_observation
from atommem.envs.longdoc.evidence_recall import evidence_recall
from atommem.envs.longdoc.fact_recall import fact_recall, facts_of
from atommem.envs.scoring.records import record_of
from atommem.envs.task import Document, Question, Task, describe_task
from atommem.episode import Episode, Step
from atommem.memory.log import MemoryView, Operation, Outcome, Retrieved, Source
from atommem.observation import Observation, StopReason

FACTS = Task(
    "t",
    (
        Question(
            "Where does Bran live?", ("Port", "Harbour"), metadata={"supporting": [["Bran", 0]]}
        ),
        Question("Is it far?", ("yes",)),
        Question("Who is a potter?", ("Orla",), metadata={"supporting": [["Orla Finn", 0]]}),
    ),
    (
        Document("Bran", "He is a sailor. He has lived in Port since 1990.", gold=True),
        Document("Moss", "Moss grows in Port since 1990."),
        Document("Orla Finn", "Orla is a potter.", gold=True),
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
    """A step that is shown these texts, by their entries' ids."""
    retrieved = (
        Retrieved(handle, entry, text, 0.5)
        for handle, (entry, text) in enumerate((shown or {}).items(), 1)
    )
    return Step(
        0,
        observation,
        MemoryView(retrieved=(*retrieved,)),
        [],
        [],
        [],
        "",
        "stop",
        (),
        (),
        operations,
        0,
    )


def asked(question: int, *operations: Operation, **shown: Any) -> Step:
    return step(Observation("answering", question=question), *operations, **shown)


def test_what_a_fact_is() -> None:
    (fact,) = facts_of(FACTS, FACTS.questions[0])
    assert (fact.answer, fact.words) == ("port", {"bran", "lived", "since", "1990"})
    assert facts_of(FACTS, FACTS.questions[1]) == []
    assert fact.carried_by(FACT)
    assert fact.carried_by("Since 1990: PORT.")
    assert not fact.carried_by("Bran lived in Portland")  # whole words
    assert not fact.carried_by("The port is big; Bran likes it")  # one more word is chance
    assert not fact.carried_by("Bran has lived there since 1990")
    (orla,) = facts_of(FACTS, FACTS.questions[2])
    assert orla.words == {"finn", "potter"}
    assert orla.carried_by("Orla: potter")  # a short statement: half of it
    assert not orla.carried_by("Orla")


def test_facts_entered_kept_and_retrieved_are_told_apart() -> None:
    def recall(*steps: Step) -> tuple[float, ...]:
        return tuple(fact_recall(FACTS, Episode("t", 0, list(steps)))[0].values())

    create = Operation(0, "create", entry_id=1, after=FACT)
    overwrite = Operation(0, "update", entry_id=1, before=FACT, after="Bran")
    rejected = Operation(0, "create", Outcome.REJECTED, after=FACT)
    assert [*fact_recall(FACTS, Episode("t", 0, [step(READING)]))[0]] == [
        "fact_entered",
        "fact_kept",
        "fact_retrieved",
    ]
    assert recall(step(READING, create)) == (1, 1, 0)
    assert recall(step(READING, create), asked(0, shown={1: FACT})) == (1, 1, 1)
    assert recall(step(READING, create), asked(1, shown={1: FACT})) == (1, 1, 0), (
        "shown for another question only"
    )
    assert recall(step(READING, create), asked(0, overwrite)) == (1, 0, 0)
    assert recall(step(READING, rejected)) == (0, 0, 0)


def test_questions_without_a_fact_have_no_recall_and_records_keep_it() -> None:
    answers = ("Port", None, None)
    steps = [asked(2, shown={1: "Orla Finn is a potter"})]
    episode = Episode("t", 0, steps, answers, 1 / 3, stop_reason=StopReason.UNANSWERED)
    record = record_of(describe_task(FACTS), episode, fact_recall(FACTS, episode))
    assert [question.metrics for question in record.questions] == [
        {"fact_entered": 0, "fact_kept": 0, "fact_retrieved": 0},
        {},
        {"fact_entered": 0, "fact_kept": 0, "fact_retrieved": 1},
    ]
    assert fact_recall(FACTS, Episode("t", 0)) == [{}, {}, {}]


def write(kind: str, entry: int, chunk: str, outcome: Outcome = Outcome.APPLIED) -> Operation:
    return Operation(0, kind, outcome, entry, after="x", source=Source(0, chunk))


def recall(
    chunks: list[str], operations: list[list[Operation]], *shown: tuple[int, ...]
) -> list[dict[str, float]]:
    """With these chunks read, and then the question of each of `shown` asked, which is shown these entries."""
    steps = [step(chunk_observation(TURNS, chunks, i), *operations[i]) for i in range(len(chunks))]
    questions = (question_observation(TURNS, range(i, i + 1)) for i in range(len(shown)))
    steps += [
        step(question, shown=dict.fromkeys(ids, "x"))
        for question, ids in zip(questions, shown, strict=True)
    ]
    return evidence_recall(TURNS, Episode("t", 0, steps))


def cut(*places: int) -> list[str]:
    text = joined_text(TURNS)
    edges = [0, *places, len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


def test_by_hand() -> None:
    chunks = cut(
        joined_text(TURNS).index("turn 1")
    )  # the second turn's heading is in the first chunk
    first, second = "chunk 1/2", "chunk 2/2"
    operations = [
        [write("create", 1, first), write("create", 3, first, Outcome.REJECTED)],
        [write("create", 2, second)],
    ]
    assert recall(chunks, operations, (1,), (1,), ()) == [
        {"evidence_recall": 0.5},
        {"evidence_recall": 1.0},
        {},
    ]
    assert recall(chunks, operations, (2, 1), (2,), ()) == [
        {"evidence_recall": 1.0},
        {"evidence_recall": 1.0},
        {},
    ]
    assert recall(chunks, operations, (3,), (), ()) == [
        {"evidence_recall": 0.0},
        {"evidence_recall": 0.0},
        {},
    ]
    merged = [[write("create", 1, first)], [write("update", 1, second)]]
    assert recall(chunks, merged, (1,), (1,), ())[0] == {"evidence_recall": 1.0}, (
        "an entry keeps what it was made of"
    )


def test_one_chunk_a_document_and_chunks_of_something_else() -> None:
    chunks = [f"May\n{document.text}" for document in TURNS.documents]
    operations = [[write("create", i + 1, f"chunk {i + 1}/3")] for i in range(3)]
    assert recall(chunks, operations, (1,), (1,), ()) == [
        {"evidence_recall": 0.5},
        {"evidence_recall": 0.0},
        {},
    ]
    assert recall(cut(50)[:1], [[]], (), (), ()) == [{}, {}, {}], (
        "an episode that ended while it read"
    )
    assert evidence_recall(TURNS, Episode("t", 0)) == [{}, {}, {}]
