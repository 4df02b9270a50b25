import asyncio
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atommem.actions import Action
from atommem.description import TaskShape
from atommem.environment import Turn
from atommem.envs.chunking import chunk_task, chunk_text, joined_text
from atommem.envs.longdoc.environment import LongDocEnvironment, LongDocEnvironments
from atommem.envs.longdoc.longdoc_config import LongDocConfig
from atommem.envs.task import Document, Question, Task
from atommem.envs.task_files import save_tasks
from atommem.errors import ConfigError
from atommem.observation import Observation, StopReason
from tests.fakes import WordTokenizer

ANSWER, READ = "answer", "read"
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


async def play(
    env: LongDocEnvironment, steps: list[list[Action]], task: Task = TASK
) -> list[Observation | str]:
    seen: list[Observation | str] = [await env.reset(task)]
    for actions in steps:
        result = await env.step(Turn("", actions))
        seen.append(result.observation if result.observation is not None else str(result.reason))
    return seen


def asked(observation: Observation | str) -> list[str]:
    assert isinstance(observation, Observation)
    return [text for piece in observation.task for _, text in piece.walk() if isinstance(text, str)]


def answer(text: str) -> list[Action]:
    return [Action(ANSWER, text)]


def test_a_chunk_says_where_in_the_text_it_stands_and_half_a_character_is_a_sign_that_one_was_lost() -> (
    None
):
    text = "Ann lives in Rome. Bob left."
    chunks = factory(chunking="tokens", chunk_tokens=3).reading(text, [])
    assert len(chunks) > 1
    assert [[text[chunk.start : chunk.end]] for chunk in chunks] == [
        chunk.values("chunk") for chunk in chunks
    ]
    (observation,) = factory().reading("one \ud800 two\0", ["Who?"])
    assert observation.values("chunk") == ["one \ufffd two\ufffd"]


async def test_chunks_then_the_questions_in_turn() -> None:
    env = environment()
    seen = await play(env, [[], [], answer("roma"), answer("41")])
    assert [o if isinstance(o, str) else o.values("chunk") for o in seen] == [
        ["one"],
        ["two"],
        [],
        [],
        "answered",
    ]
    assert [asked(o) for o in seen[:4]] == [
        ["First?", "Second?"],
        ["First?", "Second?"],
        ["First?"],
        ["Second?"],
    ]
    assert [o if isinstance(o, str) else o.label for o in seen] == [
        *(
            "chunk 1/2",
            "chunk 2/2",
            "question 1/2, 2 reads left",
            "question 2/2, 2 reads left",
            "answered",
        )
    ]
    score = await env.score()
    assert (score.reward, score.answers) == (0.5, ("roma", "41"))
    with pytest.raises(ConfigError, match="'empty' has no question"):
        await env.reset(Task("empty", ()))
    env = environment(max_reads=3)
    steps = 1
    await env.reset(TASK)
    while not (await env.step(Turn(""))).done:
        steps += 1
    assert steps == 2 + 2 * (3 + 1), "bounded by chunks and questions"


async def test_questions_asked_at_once_are_shown_together_and_reads_before_an_answer_are_bounded() -> (
    None
):
    seen = await play(environment(at_once=10), [[], [], [Action(READ, "q")]])
    assert [asked(o) for o in seen[2:]] == [["First?", "Second?"]] * 2
    assert [list(o.asked) for o in seen[1:] if isinstance(o, Observation)] == [[], [0, 1], [0, 1]]
    assert isinstance(seen[2], Observation)
    assert seen[2].label == "questions 1-2/2, 2 reads left"
    seen = await play(
        environment(), [[], [], [Action(READ, "q")], [], [Action(READ, "q")], answer("42")]
    )
    assert [o.values("reads_left")[0] for o in seen[2:5] if isinstance(o, Observation)] == [2, 1, 0]
    assert asked(seen[5]) == ["Second?"]
    assert seen[6] == StopReason.UNANSWERED


ONCE: list[list[Action]] = [[], [], [Action(READ, "q")]]


@pytest.mark.parametrize(
    ("at_once", "steps", "answers", "reward"),
    [
        (
            1,
            [answer("Rome"), answer("Rome"), answer("Oslo"), answer("42")],
            ("Oslo", "42"),
            0.5,
        ),  # none while it reads
        (
            1,
            [[], [], [*answer("Oslo"), *answer("Rome")], [*answer("42"), *answer("43")]],
            ("Oslo", "42"),
            0.5,
        ),
        (
            1,
            [[], [], answer("42"), answer("Rome")],
            ("42", "Rome"),
            0.0,
        ),  # each is for its own question
        (1, [[], [], answer("Rome")], ("Rome", None), 0.5),  # stopped early
        (1, [*ONCE, [], [Action(READ, "q")], answer("42")], (None, "42"), 0.5),
        *(
            (1, [[], [], answer(text), answer(text)], (text, text), 0.0)
            for text in ("Rome 42", r"\boxed{Rome}", "")
        ),
        # The last ones, in order.
        (10, [*ONCE, [*answer("roma"), *answer("42")]], ("roma", "42"), 1.0),
        (10, [*ONCE, [*answer("so"), *answer("roma"), *answer("42")]], ("roma", "42"), 1.0),
        (10, [*ONCE, answer("roma")], ("roma", None), 0.5),
        (10, [*ONCE, [*answer(""), *answer("42")]], (None, "42"), 0.5),
    ],
)
async def test_what_answers_count_and_earn(
    at_once: int, steps: list[list[Action]], answers: tuple[str | None, ...], reward: float
) -> None:
    env = environment(at_once=at_once)
    seen = await play(env, steps)
    score = await env.score()
    assert (score.answers, score.reward) == (answers, reward)
    assert isinstance(seen[-1], Observation) or (seen[-1] == StopReason.UNANSWERED) == (
        None in answers
    )


async def test_chunks_are_cut_in_a_thread_once_for_the_episodes_of_a_group() -> None:
    class Noting(WordTokenizer):
        threads: ClassVar[list[str]] = []

        def __call__(self, text: str, **settings: Any) -> dict[str, Any]:
            self.threads.append(threading.current_thread().name)
            return super().__call__(text, **settings)

    shared = LongDocEnvironments(LongDocConfig(chunk_tokens=2), Noting())
    await asyncio.gather(*(shared.prepare(TASK) for _ in range(4)))
    first = shared.chunks(TASK)
    assert shared.chunks(TASK) is first
    assert len(Noting.threads) == 1
    assert Noting.threads[0].startswith("atommem-chunks")
    for number in range(100):
        shared.chunks(Task(str(number), TASK.questions, TASK.documents))
    assert len(Noting.threads) == 101
    assert shared.chunks(TASK) == first
    assert len(Noting.threads) == 102, "not kept for ever"
    await shared.close()


def test_questions_asked_at_once_are_one_step_of_a_task_s_shape(tmp_path: Path) -> None:
    save_tasks([TASK], tmp_path / "tasks.jsonl")
    supposed = TaskShape("", 1, 200, 0, 0, 5.5, 0, 0)
    cases = (
        (1, "", 5.5),
        (2, "", 2.75),
        (10, "", 1),
        (1, "tasks.jsonl", 2),
        (10, "tasks.jsonl", 1),
    )
    for at_once, path, questions in cases:
        shape = factory(chunking="tokens", at_once=at_once).shape(
            str(tmp_path / path) if path else None, supposed
        )
        assert shape.questions == questions
        assert shape.questions * shape.question_tokens == (2 if path else 5.5 * 25)


class ByteTokenizer(WordTokenizer):
    """One token a UTF-8 byte, all of a character's tokens with its span: the worst byte-level case."""

    def __call__(self, text: str, **_: object) -> dict[str, object]:
        spans = [(i, i + 1) for i, char in enumerate(text) for _ in char.encode("utf-8")]
        return {"input_ids": list(range(len(spans))), "offset_mapping": spans}


TOKENIZERS = {"words": WordTokenizer(), "bytes": ByteTokenizer()}


@pytest.mark.parametrize("name", TOKENIZERS)
@given(
    text=st.text("ab .!?\n北é😀", max_size=200), size=st.integers(1, 20), sentences=st.booleans()
)
@settings(max_examples=150)
def test_chunks_joined_are_the_text_and_none_is_too_long(
    name: str, text: str, size: int, sentences: bool
) -> None:
    tokenizer = TOKENIZERS[name]
    chunks = chunk_text(text, tokenizer, size, whole_sentences=sentences)
    assert "".join(chunks) == text
    for chunk in chunks:
        count = len(
            tokenizer(chunk, add_special_tokens=False, return_offsets_mapping=True)[
                "offset_mapping"
            ]
        )
        # Only a single character may need more tokens than a chunk holds; blanks at an edge may form one token more.
        assert count <= size + 1 or len(chunk) == 1


def test_whole_sentences_stay_together_when_they_fit() -> None:
    text = "One two three. Four five. Six seven eight nine ten eleven twelve. Done."
    assert chunk_text(text, WordTokenizer(), 5, whole_sentences=True) == [
        "One two three. Four five.",
        " Six seven eight nine ten",
        " eleven twelve. Done.",
    ]


def test_documents_are_joined_with_their_titles_or_are_a_chunk_each() -> None:
    task = Task("t", (), (Document("Ann", "She ran. "), Document("", "No title.")))
    assert joined_text(task) == "Document 1: Ann\nShe ran.\n\nNo title."
    assert joined_text(Task("t", (), context="ready")) == "ready"
    assert chunk_task(task, WordTokenizer(), "documents", 1, False) == [
        "Ann\nShe ran. ",
        "No title.",
    ]
    assert chunk_task(task, WordTokenizer(), "tokens", 100, False) == [joined_text(task)]
