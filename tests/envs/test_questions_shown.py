"""When questions are shown: while reading, only when asked, or in the middle of the text."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from atommem.actions import Action
from atommem.config import MemoryConfig
from atommem.dialects import get_dialect
from atommem.environment import Turn
from atommem.envs.longdoc.environment import LongDocEnvironments, needed_chunks
from atommem.envs.longdoc.longdoc_config import LongDocConfig
from atommem.envs.questions_shown import MODES, drawn_mode, trained_for
from atommem.envs.task import Document, Question, Task
from atommem.episode import Observation
from atommem.memory.log import MemoryView
from atommem.prompts import PromptBuilder
from tests.envs.test_longdoc import factory
from tests.fakes import WordTokenizer

TASK = Task(
    "t",
    (
        Question("First?", ("Rome",), metadata={"documents": [0]}),
        Question("Second?", ("42",), metadata={"documents": [1, 2]}),
    ),
    tuple(Document("", f"part {number}") for number in range(6)),
)
SETS = (("paper", "full"), ("released", "full"), ("paper", "compact"), ("memagent", "memagent"))


async def observations(task: Task = TASK, **settings: Any) -> list[Observation]:
    """Return an episode's observations, with one read and a right answer for each question."""
    env = factory(max_reads=1, **settings)()
    seen = [await env.reset(task)]
    while True:
        now = seen[-1]
        action = Action("read", "x")
        if now.question is not None and max(now.values("reads_left")) == 0:
            action = Action("answer", task.questions[now.asked.start].answers[0])
        result = await env.step(Turn("", [action]))
        if result.observation is None:
            assert (await env.score()).reward == 1.0
            return seen
        seen.append(result.observation)


def shape(seen: list[Observation]) -> str:
    """r: reading with questions, b: blind, ?: a question."""
    letters = []
    for one in seen:
        reading = "r" if one.values("questions") or one.values("text") else "b"
        letters.append(reading if one.question is None else "?")
    return "".join(letters)


@pytest.mark.parametrize(
    ("mode", "expected"), [("reading", "rrrrrr????"), ("answering", "bbbbbb????")]
)
async def test_questions_are_shown_while_reading_or_not(mode: str, expected: str) -> None:
    seen = await observations(questions_shown=mode)
    assert shape(seen) == expected
    pieces = LongDocEnvironments.shown(LongDocConfig(questions_shown=[mode]))
    assert {piece.name for one in seen for piece in one.pieces} <= {*pieces}


async def test_arriving_question_comes_after_its_evidence() -> None:
    seen_at: dict[int, set[int]] = {0: set(), 1: set()}
    shapes = set()
    for number in range(60):
        task = Task(f"t{number}", TASK.questions, TASK.documents)
        seen = await observations(task, questions_shown="arriving")
        shapes.add(shape(seen))
        assert shape(seen).endswith("??"), "the rest after the last question is not read"
        assert shape(seen).count("?") == 4
        for at, one in enumerate(seen):
            if one.question is not None:
                read = sum(item.question is None for item in seen[:at])
                seen_at[one.question].add(read)
                over = read == len(TASK.documents)
                expected = {"answering"} if over else {"asked", "asked_reads"}
                assert {piece.name for piece in one.closing} == expected
    assert seen_at == {0: {1, 2, 3, 4, 5, 6}, 1: {3, 4, 5, 6}}
    assert len(shapes) > 10


async def test_needed_chunks_end_with_the_evidence_or_the_text() -> None:
    task = Task("t", (Question("First?", ("Rome",)),), TASK.documents)
    assert shape(await observations(task, questions_shown="arriving")) == "bbbbbb??"
    assert needed_chunks(TASK, [document.text for document in TASK.documents]) == [1, 3]
    assert needed_chunks(TASK, ["other", "text"]) == [2, 2]
    chunks = factory(chunking="tokens", chunk_tokens=4).chunks(TASK)
    assert [" ".join(chunks[:end]).count("part") for end in needed_chunks(TASK, chunks)] == [2, 4]


@pytest.mark.parametrize("mode", MODES)
async def test_open_ended_observations_hide_the_length_of_the_text(mode: str) -> None:
    seen = await observations(questions_shown=mode, open_ended=True)
    names = {name for one in seen for piece in one.pieces for name, _ in piece.walk()}
    assert not names & {"chunk_number", "chunk_count"}
    assert "answering" not in {piece.name for one in seen for piece in one.pieces}


def test_mode_of_a_task_is_fixed_and_as_frequent_as_named() -> None:
    modes = ["reading", "answering", "answering", "arriving"]
    drawn = [drawn_mode(modes, f"task {number}") for number in range(2000)]
    assert drawn[:50] == [drawn_mode(modes, f"task {number}") for number in range(50)]
    assert 0.45 < drawn.count("answering") / 2000 < 0.55
    assert 0.2 < drawn.count("arriving") / 2000 < 0.3


@pytest.mark.parametrize(("dialect", "templates"), SETS)
async def test_prompts_of_every_mode_differ_in_every_dialect(dialect: str, templates: str) -> None:
    memory = MemoryConfig(dialect=dialect, templates=templates)
    prompts = set()
    kinds = 0
    for mode, open_ended in itertools.product(MODES, [False, True]):
        shared = factory(questions_shown=mode, open_ended=open_ended)
        builder = PromptBuilder.of(WordTokenizer(), get_dialect(dialect, templates), memory, shared)
        task = Task("t0", TASK.questions[:1], TASK.documents)
        seen = await observations(task, questions_shown=mode, open_ended=open_ended)
        prompts |= {
            (at, mode, open_ended, builder.text(one, MemoryView())) for at, one in enumerate(seen)
        }
        kinds += len(seen)
    assert len(prompts) == kinds
    texts = {text for *_, text in prompts}
    assert sum("First?" not in text for text in texts) > 6


@pytest.mark.parametrize(
    ("settings", "text", "flags"),
    [
        ({}, "with the questions in view", (True, False, False, False)),
        (
            {"questions_shown": "answering"},
            "trained without questions",
            (False, True, False, False),
        ),
        (
            {"questions_shown": ["arriving", "reading"], "open_ended": True},
            "unknown length",
            (True, True, True, True),
        ),
    ],
)
def test_trained_for_names_the_modes_of_a_checkpoint(
    settings: dict[str, Any], text: str, flags: tuple[bool, ...]
) -> None:
    found = trained_for(settings)
    assert (found.shown, found.blind, found.between, found.open_ended) == flags
    assert text in str(found)
