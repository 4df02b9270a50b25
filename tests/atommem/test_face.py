"""`atommem.AsyncMemory`: reading, asking, looking at it, forks."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from atommem import AsyncMemory
from atommem.config import MemoryConfig
from atommem.envs.task import Question, Task
from atommem.errors import ConfigError, DataError, OutageError
from atommem.policy.contract import Completion, Sampling
from tests.fakes import ListPolicy, WordEmbedder, WordTokenizer, longdoc, make_episode_runner

TEXT = "one two three four five six seven"
ANSWERED = "<final_answer>\\boxed{six}</final_answer>"


class NotePolicy:
    """Keeps every chunk as an entry, looks for it, and answers ``42``; keeps what it was asked.

    Attributes:
        fail_at: The number of the request that fails once, as when a server is gone.
        hang: No request is answered any more.
        seconds: How long a request takes.
        running, most: Requests at this time, and at most.
    """

    def __init__(self) -> None:
        self.tokenizer = WordTokenizer()
        self.prompts: list[str] = []
        self.fail_at: int | None = None
        self.hang = False
        self.running = self.most = 0
        self.seconds = 0.001
        self.closed = False

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        prompt = self.tokenizer.decode(prompt_ids)
        self.prompts.append(prompt)
        if self.fail_at == len(self.prompts):
            raise OutageError("server gone")
        self.running += 1
        self.most = max(self.most, self.running)
        await (asyncio.Event().wait() if self.hang else asyncio.sleep(self.seconds))
        self.running -= 1
        chunk = re.search(r"of the text:\n(.*?)\n", prompt)
        kept = f"<create_memory>{chunk[1]}</create_memory><read_memory>{chunk[1]}</read_memory>" if chunk else ""
        text = kept or "<final_answer>\\boxed{42}</final_answer>"
        ids = [*self.tokenizer.encode(text), 0]
        return Completion(ids, [0.0] * len(ids), text, "stop")

    async def close(self) -> None:
        self.closed = True


def make(policy: Any = None, **settings: Any) -> AsyncMemory:
    settings = {"embedder": WordEmbedder(), "chunk_tokens": 3, **settings}
    return AsyncMemory(NotePolicy() if policy is None else policy, **settings)


def texts(memory: AsyncMemory) -> list[str]:
    return [entry.text.strip() for entry in memory.entries()]


async def test_what_is_served_is_what_was_trained() -> None:
    # One policy is asked the same as in an episode of training: token for token, and with the same operations.
    replies = [
        "<create_memory>a</create_memory>",
        "<read_memory>a</read_memory>",
        "",
        "<read_memory>b</read_memory>",
        ANSWERED,
    ]
    trained, served = (ListPolicy(WordTokenizer(), replies) for _ in range(2))
    environments = longdoc(trained.tokenizer, chunking="tokens", chunk_tokens=3)
    runner = make_episode_runner(
        policy=trained,
        embedder=WordEmbedder(),
        tokenizer=trained.tokenizer,
        environments=environments,
        memory=MemoryConfig(),
        sampling=Sampling(),
    )
    episode = await runner.run(Task("t", (Question("What?", ()),), context=TEXT))
    memory = make(served)
    reading = await memory.read(TEXT, questions="What?")
    answer = await memory.ask("What?")
    assert served.prompts == trained.prompts
    assert episode.answers == (answer.text,) == ("six",)
    assert [o.kind for o in memory.history()] == [o.kind for step in episode.steps for o in step.operations]
    assert (reading.chunks, reading.steps, [step.index for step in answer.steps]) == (3, (0, 1, 2), [3, 4])


async def test_an_answer_says_what_it_came_from() -> None:
    memory = make()
    await memory.read(TEXT, name="numbers.txt")
    answer = await memory.ask("What?")
    assert (str(answer), answer.question, answer.scratchpad) == ("42", "What?", "")
    assert {entry.text.strip() for entry in answer.entries} == {"one two three", "four five six", "seven"}
    assert answer.entries[0].source is not None
    assert answer.entries[0].source.piece == "numbers.txt, chunk 3/3"
    assert answer.to_json()["answer"] == "42"
    assert memory.settings["chunk_tokens"] == 3
    assert repr(memory) == "AsyncMemory(3 entries after 4 steps)"


async def test_no_answer_is_none() -> None:
    memory = make(ListPolicy(WordTokenizer(), ["nothing", "at all"]), max_reads=1)
    answer = await memory.ask("What?")
    assert (answer.text, str(answer), len(answer.steps)) == (None, "", 2)
    for question in (" ", None):
        with pytest.raises(ConfigError, match="nothing to ask"):
            await memory.ask(question)  # type: ignore[arg-type]


async def test_pieces_are_chunks_unless_they_are_too_long() -> None:
    policy = NotePolicy()
    memory = make(policy)
    reading = await memory.read(["one", "two three", " ", "four five six seven"], questions=["A?", "B?"])
    assert reading.chunks == 4
    assert texts(memory) == ["one", "two three", "four five six", "seven"]
    assert "1. A?\n2. B?" in policy.prompts[0]
    assert "Part 4 of 4" in policy.prompts[-1]


async def test_questions_that_are_not_known_and_a_goal() -> None:
    policy = NotePolicy()
    memory = make(policy)
    await memory.read("one")
    assert "The questions are not known yet" in policy.prompts[0]
    await memory.read("two", goal="Find numbers")
    assert "Question:\nFind numbers" in policy.prompts[1]
    with pytest.raises(ConfigError, match="a goal"):
        await memory.read("two", goal="Find numbers", questions="What?")


async def test_reading_and_asking_take_turns_on_one_memory() -> None:
    memory = make()
    await asyncio.gather(memory.read("one two", name="a"), memory.ask("What?"), memory.read("three", name="b"))
    assert [(r.name, r.steps) for r in memory.readings] == [("a", (0,)), ("b", (2,))]
    assert texts(memory) == ["one two", "three"]
    assert [entry.source.piece for entry in memory.entries() if entry.source] == ["a, chunk 1/1", "b, chunk 1/1"]
    steps = [operation.step for operation in memory.history()]
    assert steps == sorted(steps)


async def test_asking_without_keeping_leaves_the_memory_as_it_is_and_goes_on_side_by_side() -> None:
    policy = NotePolicy()
    memory = make(policy)
    await memory.read(TEXT)
    before = memory.history(), memory.steps, memory.entries()
    policy.most, policy.seconds = 0, 0.1
    answers = await asyncio.gather(*(memory.ask(f"What {n}?", keep=False) for n in range(4)))
    assert [answer.text for answer in answers] == ["42"] * 4
    assert policy.most == 4
    assert (memory.history(), memory.steps, memory.entries()) == before
    await memory.ask("What?")
    assert memory.steps == before[1] + 1


async def test_forks_and_as_it_was() -> None:
    memory = make()
    await memory.read(TEXT, name="t")
    fork = await memory.fork()
    await fork.read("eight")
    assert (texts(fork)[-1], texts(memory)[-1]) == ("eight", "seven")
    earlier = await memory.at(2)
    assert texts(earlier) == ["one two three", "four five six"]
    assert earlier.history() == tuple(o for o in memory.history() if o.step < 2)
    assert (earlier.steps, earlier.readings[0].steps, earlier.readings[0].complete) == (2, (0, 1), False)
    # Reading the same text goes on where it stood then.
    await earlier.read(TEXT, name="t")
    assert (texts(earlier), earlier.steps) == (texts(memory), 3)
    empty = await memory.at(0)
    assert (empty.entries(), empty.history(), empty.readings) == ([], (), ())
    for step in (-1, 4):
        with pytest.raises(ConfigError, match=f"step is {step}.*0 to 3"):
            await memory.at(step)


async def test_an_interrupted_reading_goes_on_where_it_stopped() -> None:
    policy = NotePolicy()
    memory = make(policy)
    policy.fail_at = 3
    seen: list[tuple[int, int]] = []
    with pytest.raises(OutageError, match="server gone"):
        await memory.read(TEXT, progress=lambda done, chunks: seen.append((done, chunks)))
    assert (texts(memory), seen) == (["one two three", "four five six"], [(1, 3), (2, 3)])
    reading = await memory.read(TEXT)
    assert (texts(memory), reading.steps) == (["one two three", "four five six", "seven"], (0, 1, 2))
    assert len(policy.prompts) == 4
    assert await memory.read(TEXT, again=False) == reading
    assert len(policy.prompts) == 4
    assert (await memory.read(TEXT)).steps == (3, 4, 5)


async def test_a_cancelled_reading_leaves_the_memory_as_after_the_last_step() -> None:
    policy = NotePolicy()
    memory = make(policy)
    await memory.read("one")
    policy.hang = True
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(memory.read("two"), 0.05)
    policy.hang = False
    assert (texts(memory), memory.steps) == (["one"], 1)
    assert (await memory.ask("What?")).text == "42"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "the text is empty"),
        (" \n", "the text is empty"),
        ([], "nothing to read"),
        (["a", 3], "piece 2 to be read is a int"),
        (b"raw", "decode them"),
        (Path("nowhere.txt"), "cannot read nowhere.txt: No such file"),
    ],
)
async def test_what_cannot_be_read(source: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        await make().read(source)


async def test_files(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one two")
    memory = make()
    assert (await memory.read(path)).name == "a.txt"
    assert texts(memory) == ["one two"]
    with pytest.raises(DataError, match="is the path of a file"):
        await memory.read(str(path))
    path.write_bytes("drei vier".encode("utf-16"))
    await memory.read(path)
    assert texts(memory)[-1] == "drei vier"
    for raw, message in ((b"\x89PNG\xff", "no utf-8 text"), (b"a\0b", "a binary file"), (b"\n", "is empty")):
        path.write_bytes(raw)
        with pytest.raises(DataError, match=message):
            await memory.read(path)
    with pytest.raises(DataError, match="Is a directory"):
        await memory.read(tmp_path)


async def test_closing_frees_policy_and_embedder() -> None:
    policy = NotePolicy()
    async with make(policy) as memory:
        await memory.read("one")
        assert not policy.closed
    assert policy.closed
    for late in (memory.ask("What?"), memory.read("two")):
        with pytest.raises(ConfigError, match="is closed"):
            await late


def test_settings_that_are_none() -> None:
    with pytest.raises(ConfigError, match="no setting 'chunk_token': did you mean chunk_tokens"):
        make(chunk_token=3)
    with pytest.raises(ConfigError, match="chunk_tokens is 0"):
        make(chunk_tokens=0)
    with pytest.raises(ConfigError, match="policy is a int"):
        AsyncMemory(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"ChatOnly has no tokenizer"):
        AsyncMemory(type("ChatOnly", (), {"complete_chat": None})(), embedder="hashing")
    with pytest.raises(ConfigError, match=r"give the tokenizer.*api=chat"):
        AsyncMemory("http://localhost:1")


async def test_a_text_is_forgotten_by_its_name_and_may_be_read_again() -> None:
    memory = make()
    await memory.read("one two three", name="bad.txt")
    await memory.read("four five six seven", name="good.txt")
    operations = await memory.forget("bad.txt")
    assert [(operation.kind, operation.actor) for operation in operations[:2]] == [("delete", "user"), ("read", "user")]
    assert texts(memory) == ["four five six", "seven"]
    assert [reading.name for reading in memory.readings] == ["good.txt"]
    assert memory.history()[-2].reason == "forget bad.txt"
    assert [entry.text for entry in (await memory.at(memory.steps)).entries()] == [e.text for e in memory.entries()]
    assert len((await memory.at(memory.steps - 1)).entries()) == 2, "as it was before"
    assert await memory.forget("bad.txt") == ()
    await memory.read("one two three", name="bad.txt", again=False)
    assert len(texts(memory)) == 3
