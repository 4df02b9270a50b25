import asyncio
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atommem.actions import Action
from atommem.environment import TaskShape, Turn
from atommem.envs.chunking import chunk_task, chunk_text, joined_text
from atommem.envs.longdoc.environment import LongDocEnvironment, LongDocEnvironments
from atommem.envs.longdoc.longdoc_config import LongDocConfig
from atommem.envs.task import Document, Question, Task
from atommem.envs.task_files import save_tasks
from atommem.episode import Observation, StopReason
from atommem.errors import ConfigError
from tests.fakes import WordTokenizer

ANSWER, READ = "answer", "read"
ONCE: list[list[Action]] = [[], [], [Action(READ, "q")]]
TASK = Task(
    "t",
    (Question("First?", ("Rome", "Roma")), Question("Second?", ("42",))),
    (Document("", "one"), Document("", "two")),
)


def factory(**settings: Any) -> LongDocEnvironments:
    return LongDocEnvironments(
        LongDocConfig(**{"chunking": "documents", "max_reads": 2, **settings}), WordTokenizer()
    )


def environment(**settings: Any) -> LongDocEnvironment:
    return factory(**settings)()


async def play(env: LongDocEnvironment, steps: list[list[Action]]) -> list[Any]:
    """Return the observations, and at the end the stop reason."""
    seen: list[Any] = [await env.reset(TASK)]
    for actions in steps:
        result = await env.step(Turn("", actions))
        seen.append(result.observation if result.observation is not None else str(result.reason))
    return seen


def asked(observation: Observation) -> list[str]:
    return [text for piece in observation.task for _, text in piece.walk() if isinstance(text, str)]


def answer(text: str) -> list[Action]:
    return [Action(ANSWER, text)]


def test_chunk_has_its_span_in_the_text_and_replaces_lone_surrogates() -> None:
    text = "Ann lives in Rome. Bob left."
    chunks = factory(chunking="tokens", chunk_tokens=3).reading(text, [])
    assert len(chunks) > 1
    spans = [[text[chunk.start : chunk.end]] for chunk in chunks]
    assert spans == [chunk.values("chunk") for chunk in chunks]
    (observation,) = factory().reading("one \ud800 two\0", ["Who?"])
    assert observation.values("chunk") == ["one \ufffd two\ufffd"]


async def test_episode_reads_chunks_and_then_asks_questions_in_turn() -> None:
    env = environment()
    *seen, end = await play(env, [[], [], answer("roma"), answer("41")])
    assert end == "answered"
    assert [o.values("chunk") for o in seen] == [["one"], ["two"], [], []]
    both = ["First?", "Second?"]
    assert [asked(o) for o in seen] == [both, both, ["First?"], ["Second?"]]
    assert seen[1].label == "chunk 2/2"
    assert seen[2].label == "question 1/2, 2 reads left"
    score = await env.score()
    assert (score.reward, score.answers) == (0.5, ("roma", "41"))
    with pytest.raises(ConfigError, match="'empty' has no question"):
        await env.reset(Task("empty", ()))


async def test_episode_without_answers_ends_after_its_chunks_and_reads() -> None:
    env = environment(max_reads=3)
    steps = 1
    await env.reset(TASK)
    while (await env.step(Turn(""))).observation is not None:
        steps += 1
    assert steps == 2 + 2 * (3 + 1)


async def test_questions_asked_at_once_are_shown_together() -> None:
    seen = await play(environment(at_once=10), ONCE)
    assert [asked(o) for o in seen[2:]] == [["First?", "Second?"]] * 2
    assert [list(o.asked) for o in seen[1:]] == [[], [0, 1], [0, 1]]
    assert seen[2].label == "questions 1-2/2, 2 reads left"


async def test_reads_before_an_answer_are_bounded() -> None:
    seen = await play(environment(), [*ONCE, [], [Action(READ, "q")], answer("42")])
    assert [o.values("reads_left")[0] for o in seen[2:5]] == [2, 1, 0]
    assert asked(seen[5]) == ["Second?"]
    assert seen[6] == StopReason.UNANSWERED


@pytest.mark.parametrize(
    ("at_once", "steps", "answers", "reward"),
    [
        # An answer while reading does not count.
        (1, [*[answer("Rome")] * 2, answer("Oslo"), answer("42")], ("Oslo", "42"), 0.5),
        # The first answer of a step counts.
        (1, [[], [], answer("Oslo") + answer("Rome"), answer("42")], ("Oslo", "42"), 0.5),
        # Each answer is for its own question.
        (1, [[], [], answer("42"), answer("Rome")], ("42", "Rome"), 0.0),
        (1, [[], [], answer("Rome")], ("Rome", None), 0.5),
        (1, [[], [], answer("Rome 42"), answer("Rome 42")], ("Rome 42", "Rome 42"), 0.0),
        # Of questions asked at once the last answers count, in order.
        (10, [*ONCE, answer("so") + answer("roma") + answer("42")], ("roma", "42"), 1.0),
        (10, [*ONCE, answer("roma")], ("roma", None), 0.5),
        (10, [*ONCE, answer("") + answer("42")], (None, "42"), 0.5),
    ],
)
async def test_score_counts_one_answer_a_question(
    at_once: int, steps: list[list[Action]], answers: tuple[str | None, ...], reward: float
) -> None:
    env = environment(at_once=at_once)
    await play(env, steps)
    score = await env.score()
    assert (score.answers, score.reward) == (answers, reward)


async def test_chunks_are_made_in_a_thread_once_a_group_and_not_kept_for_ever() -> None:
    class Noting(WordTokenizer):
        threads: ClassVar[list[str]] = []

        def __call__(self, text: str, **settings: Any) -> dict[str, Any]:
            self.threads.append(threading.current_thread().name)
            return super().__call__(text, **settings)

    shared = LongDocEnvironments(LongDocConfig(chunk_tokens=2), Noting())
    await asyncio.gather(*(shared.prepare(TASK) for _ in range(4)))
    shared.chunks(TASK)
    assert len(Noting.threads) == 1
    assert Noting.threads[0].startswith("atommem-chunks")
    for number in range(100):
        shared.chunks(Task(str(number), TASK.questions, TASK.documents))
    shared.chunks(TASK)
    assert len(Noting.threads) == 102
    await shared.close()


@pytest.mark.parametrize(
    ("at_once", "file", "questions"),
    [(1, "", 5.5), (2, "", 2.75), (10, "", 1), (1, "tasks.jsonl", 2), (10, "tasks.jsonl", 1)],
)
def test_shape_counts_questions_asked_at_once_as_one(
    tmp_path: Path, at_once: int, file: str, questions: float
) -> None:
    save_tasks([TASK], tmp_path / "tasks.jsonl")
    supposed = TaskShape("", 1, 200, 0, 0, 5.5, 0, 0)
    path = str(tmp_path / file) if file else None
    shape = factory(chunking="tokens", at_once=at_once).shape(path, supposed)
    assert shape.questions == questions
    assert shape.questions * shape.question_tokens == (2 if file else 5.5 * 25)


class ByteTokenizer(WordTokenizer):
    """One token a UTF-8 byte, with the span of its character: the worst byte-level case."""

    def __call__(self, text: str, **_: object) -> dict[str, object]:
        spans = [(i, i + 1) for i, char in enumerate(text) for _ in char.encode("utf-8")]
        return {"input_ids": list(range(len(spans))), "offset_mapping": spans}


@pytest.mark.parametrize("tokenizer", [WordTokenizer(), ByteTokenizer()])
@given(text=st.text("ab .!?\n北é😀", max_size=200), size=st.integers(1, 20))
@settings(max_examples=150)
def test_chunks_join_to_the_text_and_none_is_too_long(
    tokenizer: WordTokenizer, text: str, size: int
) -> None:
    chunks = chunk_text(text, tokenizer, size)
    assert "".join(chunks) == text
    for chunk in chunks:
        spans = tokenizer(chunk, add_special_tokens=False, return_offsets_mapping=True)
        # A character may have more tokens than a chunk; white space at an edge may add one.
        assert len(spans["offset_mapping"]) <= size + 1 or len(chunk) == 1


def test_documents_are_joined_with_their_titles_or_are_a_chunk_each() -> None:
    task = Task("t", (), (Document("Ann", "She ran. "), Document("", "No title.")))
    assert joined_text(task) == "Document 1: Ann\nShe ran.\n\nNo title."
    assert joined_text(Task("t", (), context="ready")) == "ready"
    chunks = chunk_task(task, WordTokenizer(), "documents", 1)
    assert chunks == ["Ann\nShe ran. ", "No title."]
