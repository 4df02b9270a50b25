"""Supporting-fact recall against hand-made episodes."""

from __future__ import annotations

from atommem.envs.longdoc.fact_recall import fact_recall, facts_of
from atommem.envs.scoring.records import record_of
from atommem.envs.task import Document, Question, Task, describe_task
from atommem.episode import Episode, Step
from atommem.memory.entries import MemoryView, Retrieved
from atommem.memory.operations import Operation, Outcome
from atommem.observation import Observation, StopReason

TASK = Task(
    "t",
    (
        Question("Where does Bran live?", ("Port", "Harbour"), metadata={"supporting": [["Bran", 0]]}),
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


def op(kind: str, entry: int | None, before: str | None, after: str | None, **more: Outcome) -> Operation:
    return Operation(0, kind, more.get("outcome", Outcome.APPLIED), entry, before=before, after=after)


def step(index: int, phase: str, question: int, view: MemoryView, *operations: Operation) -> Step:
    observation = Observation(phase, question=question if phase == "answering" else None)
    return Step(index, observation, view, [], [], [], "", "stop", (), (), operations, 0)


def recall(*steps: Step) -> list[dict[str, float]]:
    return fact_recall(TASK, Episode("t", 0, list(steps)))


def shown(text: str) -> MemoryView:
    return MemoryView(retrieved=(Retrieved(1, 1, text, 0.5),))


def numbers(found: dict[str, float]) -> tuple[float, ...]:
    return found["fact_entered"], found["fact_kept"], found["fact_retrieved"]


def test_what_a_fact_is() -> None:
    (fact,) = facts_of(TASK, TASK.questions[0])
    assert (fact.answer, fact.words) == ("port", {"bran", "lived", "since", "1990"})
    assert facts_of(TASK, TASK.questions[1]) == []
    assert fact.carried_by(FACT)
    assert fact.carried_by("Since 1990: PORT.")
    assert not fact.carried_by("Bran lived in Portland")  # whole words
    assert not fact.carried_by("The port is big; Bran likes it")  # one more word is chance
    assert not fact.carried_by("Bran has lived there since 1990")
    (orla,) = facts_of(TASK, TASK.questions[2])
    assert orla.words == {"finn", "potter"}
    assert orla.carried_by("Orla: potter")  # a short statement: half of it
    assert not orla.carried_by("Orla")


def test_entered_kept_and_retrieved_are_told_apart() -> None:
    create = op("create", 1, None, FACT)
    overwrite = op("update", 1, FACT, "Bran")
    reading = step(0, "reading", 0, MemoryView(), create)
    assert numbers(recall(reading)[0]) == (1, 1, 0)
    assert numbers(recall(reading, step(1, "answering", 0, shown(FACT)))[0]) == (1, 1, 1)
    # Shown for another question only.
    assert numbers(recall(reading, step(1, "answering", 1, shown(FACT)))[0]) == (1, 1, 0)
    assert numbers(recall(reading, step(1, "answering", 0, MemoryView(), overwrite))[0]) == (1, 0, 0)
    rejected = op("create", None, None, FACT, outcome=Outcome.REJECTED)
    assert numbers(recall(step(0, "reading", 0, MemoryView(), rejected))[0]) == (0, 0, 0)


def test_questions_without_a_fact_have_no_recall_and_records_keep_it() -> None:
    asked = step(0, "answering", 2, shown("Orla Finn is a potter"))
    assert [bool(item) for item in recall(asked)] == [True, False, True]
    assert numbers(recall(asked)[2]) == (0, 0, 1)
    episode = Episode("t", 0, [asked], ("Port", None, None), 1 / 3, stop_reason=StopReason.UNANSWERED)
    record = record_of(describe_task(TASK), episode, fact_recall(TASK, episode))
    metrics = [question.metrics for question in record.questions]
    assert [item.get("fact_retrieved") for item in metrics] == [0.0, None, 1.0]
    assert recall() == [{}, {}, {}]
