"""Where answers are lost, against episodes written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atommem.actions import Action
from atommem.envs.scoring.records import EpisodeRecord, QuestionRecord
from atommem.episode import Episode, Step
from atommem.eval.reporting.inspection import (
    AnswerSource,
    AnswerTrail,
    Fate,
    Inspection,
    answer_trails,
    holds,
)
from atommem.memory.log import MemoryView, Operation, Outcome, Retrieved
from atommem.observation import Observation, StopReason
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


def test_words_must_follow_one_another() -> None:
    assert holds(["It lies on the River Lorne, in Vesk."], ["river lorne"])
    assert not holds(["Lornes and a river"], ["lorne"])
    assert not holds(["the river, and then Lorne"], ["river lorne"])


def test_an_answer_that_memory_lost() -> None:
    for loss, kept in (
        (Operation(1, "update", Outcome.APPLIED, 1, 1, "on the Lorne", "on a river"), False),
        (DELETED, False),
        (Operation(1, "delete", Outcome.UNKNOWN_HANDLE, handle=4), True),
        (replace(DELETED, actor="retention:fifo"), False),
    ):
        steps = [step(0, create(*LORNE)), step(1, loss), step(2, question=0)]
        (trail,) = answer_trails(*make(steps, (None, "Lorne")))
        assert trail == AnswerTrail(
            True, entered=True, kept=kept, shown=False, sources=(), step=None
        )


def test_the_source_is_the_step_that_wrote_the_text_and_a_wrong_answer_has_one() -> None:
    update = Operation(1, "update", Outcome.APPLIED, 1, 1, "on a river", "on the Lorne")
    steps = [
        step(0, create(1, "on a river")),
        step(1, update),
        step(2, question=0, shown=(LORNE,), answer="Lorne"),
    ]
    (trail,) = answer_trails(*make(steps, ("Lorne", "Lorne")))
    assert (trail.entered, trail.sources) == (True, (AnswerSource("entry", 1, 1, written=1),))
    pad = Operation(0, "scratchpad", Outcome.APPLIED, before="", after="Lorne or Elsk")
    steps = [step(0, pad), step(1, question=0, scratchpad="Lorne or Elsk", answer="Elsk")]
    (trail,) = answer_trails(*make(steps, ("Elsk", "Lorne")))
    assert trail == AnswerTrail(True, True, True, True, (AnswerSource("scratchpad", written=0),), 1)


def test_every_question_has_its_own_step_and_memory() -> None:
    steps = [
        step(0, create(*LORNE), create(2, "by Mara")),
        step(1, question=0, shown=(LORNE,)),
        step(2, replace(DELETED, step=2), question=0, shown=(LORNE,), answer="Lorne"),
        step(3, question=1, answer="Lorne"),
    ]
    trails = answer_trails(*make(steps, ("Lorne", "Lorne"), ("Lorne", "Mara")))
    assert [(trail.kept, trail.shown, trail.step) for trail in trails] == [
        (True, True, 2),
        (True, False, 3),
    ]


def test_precision_and_store_size() -> None:
    inspection = Inspection()
    assert inspection.to_json()["retrieval_precision"] is None
    shown = (LORNE, (2, "by Mara"), (3, "nothing"))
    for steps, given in (
        (
            [step(0, create(1, "Lorne"), size=1), step(1, question=0, shown=shown, answer="Lorne")],
            "Lorne",
        ),
        ([step(0, size=4), step(1, question=0, answer="Lorne", size=2)], "Lorne"),
        ([step(0, question=0, shown=shown, answer="yes", size=7)], "yes"),
    ):
        inspection.add(*make(steps, (given, given)))
    assert inspection.to_json()["retrieval_precision"] == 1 / 3
    assert (inspection.operations, inspection.writes, inspection.only_retrieves) == (1, 1, False)
    assert (inspection.sizes, inspection.steps) == ({0: 12, 1: 2}, {0: 3, 1: 2})
    # The one that ended after its first step keeps its entries: none of the three is left out of the mean.
    assert inspection.to_json()["store_size_by_step"] == pytest.approx([12 / 3, (2 + 7) / 3])


def test_a_memory_of_documents_loses_by_not_retrieving() -> None:
    query = Operation(0, "read", Outcome.APPLIED, after="q")
    inspection = Inspection()
    inspection.add(
        *make([step(0, query, question=0, shown=((1, "by Mara"),), answer="x")], ("x", "Lorne"))
    )
    assert inspection.only_retrieves
    inspection.fates.update([Fate.NEVER_ENTERED])
    assert (inspection.lost()["never_entered"], inspection.lost()["not_retrieved"]) == (0, 1)


@pytest.mark.parametrize(
    ("right", "entered", "kept", "shown", "expected"),
    [
        (1, 1, 1, 1, Fate.RIGHT),
        (1, 1, 1, 0, Fate.RIGHT_OTHERWISE),
        (1, 0, 0, 0, Fate.RIGHT_OTHERWISE),
        (0, 1, 1, 1, Fate.MISREAD),
        (0, 0, 0, 1, Fate.MISREAD),  # RAG shows what it never wrote
        (0, 1, 1, 0, Fate.NOT_RETRIEVED),
        (0, 1, 0, 0, Fate.FORGOTTEN),
        (0, 0, 0, 0, Fate.NEVER_ENTERED),
    ],
)
def test_a_fate_is_the_first_place_where_the_answer_was_lost(
    right: int, entered: int, kept: int, shown: int, expected: Fate
) -> None:
    metrics = {
        "fact_entered": float(entered),
        "fact_kept": float(kept),
        "fact_retrieved": float(shown),
    }
    question = QuestionRecord("q", "?", "a", ("b",), "", {"em": float(right), **metrics})
    trail = AnswerTrail(True, bool(entered), bool(kept), bool(shown), (), 0)
    assert (
        Inspection("words").fate(replace(question, metrics={"em": float(right)}), trail) is expected
    )
    inspection = Inspection("facts")
    without = QuestionRecord("q", "?", "yes", ("yes",), metrics={"em": 1.0})
    inspection.fates.update(inspection.fate(item, None) for item in (question, without))
    found = inspection.lost()
    assert (found["by"], found["questions"], found["counted"], found[expected]) == (
        "facts",
        2,
        1,
        1,
    )
