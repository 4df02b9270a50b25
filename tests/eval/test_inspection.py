"""Where answers are lost, against episodes written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atommem.actions import Action
from atommem.envs.scoring.records import EpisodeRecord, QuestionRecord
from atommem.episode import Episode, Observation, Step, StopReason
from atommem.eval.reporting.inspection import AnswerPath, Inspection, Stage, answer_paths, holds
from atommem.memory.log import MemoryView, Operation, Outcome, Retrieved
from tests.fakes import reading


def step(
    index: int,
    *operations: Operation,
    question: int | None = None,
    shown: tuple[tuple[int, str], ...] = (),
    scratchpad: str = "",
    answer: str | None = None,
    size: int = 0,
) -> Step:
    read = reading("q", chunk="The chunk says Lorne.")
    observation = read if question is None else Observation("answering", question=question)
    retrieved = tuple(
        Retrieved(place, entry, text, 0.5) for place, (entry, text) in enumerate(shown, 1)
    )
    view = MemoryView(scratchpad, "query", retrieved)
    actions = () if answer is None else (Action("answer", answer),)
    return Step(index, observation, view, [], [], [], "", "stop", actions, (), operations, size)


def make(steps: list[Step], *questions: tuple[str | None, str]) -> tuple[Episode, EpisodeRecord]:
    """`questions` are (answer, gold)."""
    items = tuple(
        QuestionRecord(f"q{i}", "?", answer, (gold,), metrics={"em": float(answer == gold)})
        for i, (answer, gold) in enumerate(questions)
    )
    episode = Episode("t", 0, steps, reward=1.0, stop_reason=StopReason.ANSWERED)
    return episode, EpisodeRecord("t", 0, "s", "answered", None, 1.0, {}, items, {}, 1.0)


def create(entry: int, text: str, step: int = 0) -> Operation:
    return Operation(step, "create", Outcome.APPLIED, entry_id=entry, after=text)


LORNE = (1, "on the Lorne")
DELETED = Operation(1, "delete", Outcome.APPLIED, 1, 1, before="on the Lorne")


def test_holds_needs_the_words_in_sequence() -> None:
    assert holds(["It lies on the River Lorne, in Vesk."], ["river lorne"])
    assert not holds(["Lornes and a river"], ["lorne"])
    assert not holds(["the river, and then Lorne"], ["river lorne"])


@pytest.mark.parametrize(
    ("loss", "kept"),
    [
        (Operation(1, "update", Outcome.APPLIED, 1, 1, "on the Lorne", "on a river"), False),
        (DELETED, False),
        (Operation(1, "delete", Outcome.UNKNOWN_HANDLE, handle=4), True),
        (replace(DELETED, actor="retention:fifo"), False),
    ],
)
def test_answer_paths_tell_kept_from_lost(loss: Operation, kept: bool) -> None:
    steps = [step(0, create(*LORNE)), step(1, loss), step(2, question=0)]
    assert answer_paths(*make(steps, (None, "Lorne"))) == [AnswerPath(True, kept, False)]


def test_answer_paths_use_each_questions_own_step() -> None:
    steps = [
        step(0, create(*LORNE), create(2, "by Mara")),
        step(1, question=0, shown=(LORNE,)),
        step(2, replace(DELETED, step=2), question=0, shown=(LORNE,), answer="Lorne"),
        step(3, question=1, answer="Lorne"),
    ]
    paths = answer_paths(*make(steps, ("Lorne", "Lorne"), ("Lorne", "Mara")))
    assert paths == [AnswerPath(True, True, True), AnswerPath(True, True, False)]
    assert answer_paths(*make(steps, ("yes", "yes"))) == [None]


def test_inspection_computes_precision_and_store_size() -> None:
    inspection = Inspection()
    assert inspection.to_json()["retrieval_precision"] is None
    shown = (LORNE, (2, "by Mara"), (3, "nothing"))
    first = [step(0, create(1, "Lorne"), size=1), step(1, question=0, shown=shown, answer="Lorne")]
    second = [step(0, size=4), step(1, question=0, answer="Lorne", size=2)]
    third = [step(0, question=0, shown=shown, answer="yes", size=7)]
    for steps, answer in ((first, "Lorne"), (second, "Lorne"), (third, "yes")):
        episode, record = make(steps, (answer, answer))
        inspection.add(record, episode)
    found = inspection.to_json()
    assert found["retrieval_precision"] == 1 / 3
    # The third episode keeps its entries in the mean after its end.
    assert found["store_size_by_step"] == pytest.approx([12 / 3, (2 + 7) / 3])
    inspection.add(record, None)
    assert inspection.to_json()["traces_missing"] == 1


def test_inspection_of_rag_counts_answers_as_not_retrieved() -> None:
    query = Operation(0, "read", Outcome.APPLIED, after="q")
    inspection = Inspection("words")
    steps = [step(0, query, question=0, shown=((1, "by Mara"),), answer="x")]
    episode, record = make(steps, ("x", "Lorne"))
    inspection.add(record, episode)
    lost = inspection.lost()
    assert (lost["never_entered"], lost["not_retrieved"]) == (0, 1)


@pytest.mark.parametrize(
    ("right", "entered", "kept", "shown", "expected"),
    [
        (1, 1, 1, 1, Stage.RIGHT),
        (1, 0, 0, 0, Stage.RIGHT_OTHERWISE),
        (0, 1, 1, 1, Stage.MISREAD),
        (0, 1, 1, 0, Stage.NOT_RETRIEVED),
        (0, 1, 0, 0, Stage.FORGOTTEN),
        (0, 0, 0, 0, Stage.NEVER_ENTERED),
    ],
)
def test_stage_is_the_first_at_which_the_answer_was_lost(
    right: int, entered: int, kept: int, shown: int, expected: Stage
) -> None:
    facts = dict(zip(("fact_entered", "fact_kept", "fact_retrieved"), (entered, kept, shown)))  # noqa: B905
    metrics = {"em": float(right)}
    question = QuestionRecord("q", "?", "a", ("b",), "", metrics | facts)
    path = AnswerPath(bool(entered), bool(kept), bool(shown))
    assert Inspection("facts").stage(question, None) is expected
    assert Inspection("words").stage(replace(question, metrics=metrics), path) is expected
    assert Inspection("facts").stage(replace(question, metrics=metrics), path) is None
