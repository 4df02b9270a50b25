"""Where answers are lost, against episodes written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atommem.actions import Action
from atommem.envs.scoring.records import EpisodeRecord, QuestionRecord
from atommem.episode import Episode, Step
from atommem.eval.reporting.inspection import AnswerSource, AnswerTrail, Fate, Inspection, answer_trails, holds
from atommem.memory.entries import MemoryView, Retrieved
from atommem.memory.operations import Operation, Outcome
from atommem.observation import Observation, StopReason
from tests.fakes import reading

CREATE, UPDATE, DELETE, PAD = "create", "update", "delete", "scratchpad"


def step(
    index: int,
    *operations: Operation,
    question: int | None = None,
    shown: tuple[tuple[int, str], ...] = (),
    scratchpad: str = "",
    answer: str | None = None,
    size: int = 0,
) -> Step:
    observation = reading("q", chunk="The chunk says Lorne.")
    if question is not None:
        observation = Observation("answering", question=question)
    view = MemoryView(
        scratchpad, "query", tuple(Retrieved(place, entry, text, 0.5) for place, (entry, text) in enumerate(shown, 1))
    )
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


def create(index: int, entry: int, text: str) -> Operation:
    return Operation(index, CREATE, Outcome.APPLIED, entry_id=entry, after=text)


def test_words_must_follow_one_another() -> None:
    assert holds(["It lies on the River Lorne, in Vesk."], ["river lorne"])
    assert not holds(["Lornes and a river"], ["lorne"])
    assert not holds(["the river, and then Lorne"], ["river lorne"])


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (Operation(1, UPDATE, Outcome.APPLIED, 1, 1, "on the Lorne", "on a river"), (True, False)),
        (Operation(1, DELETE, Outcome.APPLIED, 1, 1, before="on the Lorne"), (True, False)),
        (Operation(1, DELETE, Outcome.UNKNOWN_HANDLE, handle=4), (True, True)),
        (Operation(1, DELETE, Outcome.APPLIED, 1, before="on the Lorne", actor="retention:fifo"), (True, False)),
    ],
)
def test_an_answer_that_memory_lost(loss: Operation, expected: tuple[bool, bool]) -> None:
    (fate,) = answer_trails(
        *make([step(0, create(0, 1, "on the Lorne")), step(1, loss), step(2, question=0)], (None, "Lorne"))
    )
    assert (fate.entered, fate.kept) == expected
    assert (fate.shown, fate.sources, fate.step) == (False, (), None)


def test_the_source_is_the_step_that_wrote_the_text() -> None:
    update = Operation(1, UPDATE, Outcome.APPLIED, 1, 1, "on a river", "on the Lorne")
    shown = ((1, "on the Lorne"),)
    (fate,) = answer_trails(
        *make(
            [step(0, create(0, 1, "on a river")), step(1, update), step(2, question=0, shown=shown, answer="Lorne")],
            ("Lorne", "Lorne"),
        )
    )
    assert (fate.entered, fate.sources) == (True, (AnswerSource("entry", 1, 1, written=1),))


def test_the_scratchpad_is_memory_and_a_wrong_answer_has_a_source() -> None:
    pad = Operation(0, PAD, Outcome.APPLIED, before="", after="Lorne or Elsk")
    (fate,) = answer_trails(
        *make([step(0, pad), step(1, question=0, scratchpad="Lorne or Elsk", answer="Elsk")], ("Elsk", "Lorne"))
    )
    assert (fate.entered, fate.kept, fate.shown) == (True, True, True)
    assert fate.sources == (AnswerSource("scratchpad", written=0),)


def test_every_question_has_its_own_step_and_memory() -> None:
    fates = answer_trails(
        *make(
            [
                step(0, create(0, 1, "on the Lorne"), create(0, 2, "by Mara")),
                step(1, question=0, shown=((1, "on the Lorne"),)),
                step(
                    2,
                    Operation(2, DELETE, Outcome.APPLIED, 1, 1, before="on the Lorne"),
                    question=0,
                    shown=((1, "on the Lorne"),),
                    answer="Lorne",
                ),
                step(3, question=1, answer="Lorne"),
            ],
            ("Lorne", "Lorne"),
            ("Lorne", "Mara"),
        )
    )
    assert [(fate.kept, fate.shown, fate.step) for fate in fates] == [(True, True, 2), (True, False, 3)]


def test_precision_and_store_size() -> None:
    inspection = Inspection()
    shown = ((1, "on the Lorne"), (2, "by Mara"), (3, "nothing"))
    episodes = [
        make(
            [step(0, create(0, 1, "Lorne"), size=1), step(1, question=0, shown=shown, answer="Lorne")],
            ("Lorne", "Lorne"),
        ),
        make([step(0, size=4), step(1, question=0, answer="Lorne", size=2)], ("Lorne", "Lorne")),
        make([step(0, question=0, shown=shown, answer="yes", size=7)], ("yes", "yes")),
    ]
    for episode, record in episodes:
        inspection.add(episode, record)
    assert inspection.to_json()["retrieval_precision"] == 1 / 3
    assert (inspection.operations, inspection.writes, inspection.only_retrieves) == (1, 1, False)
    assert (inspection.sizes, inspection.steps) == ({0: 12, 1: 2}, {0: 3, 1: 2})
    # The one that ended after its first step keeps its entries: none of the three is left out of the mean.
    assert inspection.to_json()["store_size_by_step"] == pytest.approx([12 / 3, (2 + 7) / 3])
    assert Inspection().to_json()["retrieval_precision"] is None


def test_a_memory_of_documents_loses_by_not_retrieving() -> None:
    query = Operation(0, "read", Outcome.APPLIED, after="q")
    inspection = Inspection()
    inspection.add(*make([step(0, query, question=0, shown=((1, "by Mara"),), answer="x")], ("x", "Lorne")))
    assert inspection.only_retrieves
    inspection.fates.update([Fate.NEVER_ENTERED])
    assert (inspection.lost()["never_entered"], inspection.lost()["not_retrieved"]) == (0, 1)


FATES = [
    # right, entered, kept, shown
    ((1, 1, 1, 1), Fate.RIGHT),
    ((1, 1, 1, 0), Fate.RIGHT_OTHERWISE),
    ((1, 0, 0, 0), Fate.RIGHT_OTHERWISE),
    ((0, 1, 1, 1), Fate.MISREAD),
    ((0, 0, 0, 1), Fate.MISREAD),  # RAG shows what it never wrote
    ((0, 1, 1, 0), Fate.NOT_RETRIEVED),
    ((0, 1, 0, 0), Fate.FORGOTTEN),
    ((0, 0, 0, 0), Fate.NEVER_ENTERED),
]


@pytest.mark.parametrize(("flags", "expected"), FATES)
def test_a_fate_is_the_first_place_where_the_answer_was_lost(flags: tuple[int, int, int, int], expected: Fate) -> None:
    right, entered, kept, shown = flags
    metrics = {"fact_entered": float(entered), "fact_kept": float(kept), "fact_retrieved": float(shown)}
    question = QuestionRecord("q", "?", "a", ("b",), "", {"em": float(right), **metrics})
    trail = AnswerTrail(True, bool(entered), bool(kept), bool(shown), (), 0)
    assert Inspection("words").fate(replace(question, metrics={"em": float(right)}), trail) is expected
    inspection = Inspection("facts")
    without = QuestionRecord("q", "?", "yes", ("yes",), metrics={"em": 1.0})
    inspection.fates.update(inspection.fate(item, None) for item in (question, without))
    found = inspection.lost()
    assert (found["by"], found["questions"], found["counted"], found[expected]) == ("facts", 2, 1, 1)
