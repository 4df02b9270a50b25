"""`atommem.AsyncMemory` and the blocking `atommem.Memory`: reading, asking, saving."""

import asyncio
import os
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atommem import AsyncMemory, Memory
from atommem.config import SHIPPED, PolicyConfig
from atommem.envs.task import Question, Task
from atommem.errors import ConfigError, DataError, OutageError
from atommem.files import load_beside
from atommem.policy.contract import Completion, Sampling
from atommem.saved_memory import MEMORY_FILE
from tests import fakes
from tests.fakes import ScriptedPolicy, WordEmbedder, WordTokenizer, list_policy

TEXT = "one two three four five six seven"
ANSWERED = "<final_answer>\\boxed{six}</final_answer>"


class NotePolicy(ScriptedPolicy):
    """Create an entry of every chunk, read it, and answer ``42``."""

    fail_at: int | None = None
    hang = closed = False
    running = most = 0
    seconds = 0.001

    def __init__(self) -> None:
        super().__init__(WordTokenizer(), self.note, eos_token_id=0)

    def note(self, prompt: str) -> str | Exception:
        if self.fail_at == len(self.prompts):
            return OutageError("server gone")
        chunk = re.search(r"of the text:\n(.*?)\n", prompt)
        if chunk is None:
            return "<final_answer>\\boxed{42}</final_answer>"
        return f"<create_memory>{chunk[1]}</create_memory><read_memory>{chunk[1]}</read_memory>"

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        self.running += 1
        self.most = max(self.most, self.running)
        await (asyncio.Event().wait() if self.hang else asyncio.sleep(self.seconds))
        self.running -= 1
        return await super().complete(prompt_ids, sampling)

    async def close(self) -> None:
        self.closed = True


async def make(policy: Any = None, **settings: Any) -> AsyncMemory:
    settings = {"embedder": WordEmbedder(), "chunk_tokens": 3, **settings}
    return await AsyncMemory.open(NotePolicy() if policy is None else policy, **settings)


def texts(memory: AsyncMemory | Memory) -> list[str]:
    return [entry.text.strip() for entry in memory.entries()]


# Reading and asking ---


async def test_reading_counts_what_limits_cut():
    whole = await (await make()).read(TEXT)
    cut = await (await make(entry_tokens=2)).read(TEXT)
    assert whole.cut == 0 < cut.cut < cut.written == whole.written


@pytest.mark.parametrize(("completion", "text", "note"), load_beside(__file__, "api.yaml"))
async def test_ask_takes_unboxed_answer_and_explains_none(completion, text, note):
    note_and_look = "<create_memory>a</create_memory><read_memory>a</read_memory>"
    replies = [note_and_look, "", "", *[completion] * 4]
    memory = await make(list_policy(WordTokenizer(), replies), max_reads=0)
    await memory.read(TEXT, questions="Which?")
    answer = await memory.ask("Which?")
    assert (answer.text, bool(answer.note)) == (text, bool(note))
    assert note in answer.note
    assert "no entry was shown" not in answer.note
    assert repr(answer).startswith(f"Answer({text!r}, entries shown: 1")
    assert "Which?" in memory.prompt(answer.steps[0])
    assert memory.prompt(answer.steps[0]).startswith("[system]")


@pytest.mark.parametrize(
    "note",
    ["", "<update_scratchpad>It may be six.</update_scratchpad>", "<read_memory>six</read_memory>"],
)
async def test_answer_from_an_empty_memory_says_so(note):
    memory = await make(list_policy(WordTokenizer(), [note, "", "", ANSWERED]), max_reads=0)
    reading = await memory.read(TEXT)
    answer = await memory.ask("Which?")
    kept = "scratchpad" in note
    assert (answer.text, bool(reading.written)) == ("six", kept)
    assert answer.note == ("" if kept else "no entry was shown: this is not from the memory")


async def test_read_warns_after_three_chunks_without_action():
    memory = await make(list_policy(WordTokenizer(), ["", "", "", *["Dear me!"] * 3]))
    await memory.read(TEXT)  # it chose to write nothing
    with pytest.warns(UserWarning, match="3 chunks in a row led to no action.*'Dear me!'"):
        await memory.read(TEXT)


async def test_read_warns_of_words_that_the_policy_has_no_tokens_for():
    policy = NotePolicy()
    memory = await make(policy)
    policy.tokenizer.unk_token_id = policy.tokenizer.encode("six", add_special_tokens=False)[0]
    with pytest.warns(UserWarning, match="% of the text's words are not in the policy's vocabul"):
        await memory.read("six or six")


async def test_entries_of_a_folder_name_their_file(tmp_path):
    for name, text in {"a.txt": "one two three", "b.txt": "four", "c.txt": "five"}.items():
        (tmp_path / name).write_text(text)
    parts = {5: ["a.txt", "a.txt to b.txt"], 99: ["a.txt to c.txt"]}
    for size, files in parts.items():
        memory = await make(chunk_tokens=size)
        await memory.read(tmp_path)
        found = [entry.source.piece.partition(", chunk ")[0] for entry in memory.entries()]
        assert found == [f"{tmp_path.name}, document {file}" for file in files]
        assert await memory.forget(tmp_path.name)
        assert memory.entries() == []


async def test_several_questions_to_the_shipped_policy_warn(recwarn):
    memory = await make()
    await memory.read(TEXT, questions=["Who?", "Where?"])
    memory._runtime.run = replace(memory._runtime.run, policy=PolicyConfig([SHIPPED]))
    await memory.read(TEXT, questions=["Who?"])
    assert not recwarn
    with pytest.warns(UserWarning, match="smollm2 was trained on one question at a time"):
        await memory.read(TEXT, questions=["Who?", "Where?"])


async def test_memory_asks_policy_as_training_episode_does():
    read = "<read_memory>{}</read_memory>"
    replies = ["<create_memory>a</create_memory>", read.format("a"), "", read.format("b"), ANSWERED]
    trained, served = (list_policy(WordTokenizer(), replies) for _ in range(2))
    runner = fakes.make_episode_runner(
        policy=trained,
        tokenizer=trained.tokenizer,
        factory=fakes.longdoc(trained.tokenizer, chunking="tokens", chunk_tokens=3),
    )
    episode = await runner.run(Task("t", (Question("What?", ()),), context=TEXT))
    memory = await make(served)
    await memory.read(TEXT, questions="What?")
    answer = await memory.ask("What?")
    assert served.prompts == trained.prompts
    assert episode.answers == (answer.text,) == ("six",)


async def test_ask_without_keep_runs_concurrently_and_changes_nothing():
    policy = NotePolicy()
    memory = await make(policy)
    await memory.read(TEXT)
    before = memory.history(), memory.steps, memory.entries()
    policy.most, policy.seconds = 0, 0.1
    answers = await asyncio.gather(*(memory.ask(f"What {n}?", keep=False) for n in range(4)))
    assert [answer.text for answer in answers] == ["42"] * 4
    assert policy.most == 4
    assert (memory.history(), memory.steps, memory.entries()) == before


async def test_user_edits_and_deletes_an_entry():
    memory = await make()
    await memory.read(TEXT)
    first, second, _ = memory.entries()
    changed, *_ = await memory.edit(first, "1 2 3")
    assert (changed.actor, changed.before, changed.after) == ("user", first.text, "1 2 3")
    await memory.edit(second.id, None)
    assert texts(memory) == ["1 2 3", "seven"]
    with pytest.raises(ConfigError, match="entry 2 does not exist in this memory"):
        await memory.edit(second, "again")


async def test_fork_and_at_return_independent_memories():
    memory = await make()
    await memory.read(TEXT, name="t")
    memory._readings[0] = replace(memory._readings[0], stopped=True)  # by the policy, at its end
    fork = await memory.fork()
    await fork.read("eight")
    assert (texts(fork)[-1], texts(memory)[-1]) == ("eight", "seven")
    earlier = await memory.at(2)
    assert texts(earlier) == ["one two three", "four five six"]
    assert earlier.history() == tuple(o for o in memory.history() if o.step < 2)
    # Reading the same text goes on where it stood then.
    await earlier.read(TEXT, name="t")
    assert (texts(earlier), earlier.steps) == (texts(memory), 3)


async def test_read_after_outage_continues_at_failed_chunk():
    policy = NotePolicy()
    memory = await make(policy)
    policy.fail_at = 3
    seen: list[tuple[int, int]] = []
    with pytest.raises(OutageError, match="server gone"):
        await memory.read(TEXT, progress=lambda done, chunks: seen.append((done, chunks)))
    assert (texts(memory), seen) == (["one two three", "four five six"], [(0, 3), (1, 3), (2, 3)])
    reading = await memory.read(TEXT)
    assert (texts(memory)[2:], reading.steps) == (["seven"], (0, 1, 2))
    assert await memory.read(TEXT, again=False) == reading
    assert len(policy.prompts) == 4
    assert (await memory.read(TEXT)).steps == (3, 4, 5)


async def test_read_path_as_text_or_unknown_setting_is_refused(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one two")
    memory = await make()
    assert (await memory.read(path)).name == "a.txt"
    with pytest.raises(DataError, match="is the path of a file"):
        await memory.read(str(path))
    with pytest.raises(DataError, match="piece 2 is PosixPath"):
        await memory.read(["one", path])
    with pytest.raises(ConfigError, match=r"unknown setting \(did you mean chunk_tokens"):
        await make(chunk_token=3)


async def test_wrong_arguments_are_refused_and_change_nothing():
    memory = await make()
    await memory.read("one \ud800 two", questions=None)
    for method, arguments, settings, message in (
        ("read", [None], {}, "piece 1 is NoneType"),
        ("read", [TEXT], {"name": Path("a.txt")}, "questions and name are texts"),
        ("read", [TEXT], {"questions": [None]}, "None: questions and name are texts"),
        ("ask", [None], {}, "question=None: nothing to ask"),
        ("edit", ["0", "x"], {}, "entry 0 does not exist"),
        ("forget", [""], {}, "nothing in this memory came from it"),
        ("at", [0.5], {}, "step=0.5: must be between 0 and 1"),
    ):
        with pytest.raises((ConfigError, DataError), match=message):
            await getattr(memory, method)(*arguments, **settings)
    assert (len(memory.readings), memory.steps) == (1, 1)


# Memory, which waits ---


async def test_blocking_memory_works_inside_running_loop(tmp_path):
    policy = NotePolicy()
    with Memory(policy, embedder=WordEmbedder(), chunk_tokens=3) as memory:
        with pytest.raises(ConfigError, match="from its own progress callback"):
            memory.read(TEXT, name="t", progress=lambda done, chunks: memory.close())
        assert memory.read(TEXT, name="t").complete
        assert memory.ask("What?").text == "42"
        assert len(memory.at(1).entries()) == 1
        assert memory.fork().entries() == memory.entries()
        memory.save(tmp_path)
        assert Memory.load(tmp_path, policy, embedder=WordEmbedder()).history() == memory.history()
    assert policy.closed
    with pytest.raises(ConfigError, match="is closed"):
        memory.ask("What?")
    assert asyncio.get_running_loop().is_running()


def test_blocking_read_interrupted_keeps_finished_chunks():
    policy = NotePolicy()
    memory = Memory(policy, embedder=WordEmbedder(), chunk_tokens=3)

    def interrupt(done: int, chunks: int) -> None:
        policy.hang = done == 2
        if policy.hang:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        memory.read(TEXT, progress=interrupt)
    policy.hang = False
    assert len(memory.entries()) == 2
    assert memory.read(TEXT).steps == (0, 1, 2)


# Saved memories ---


async def load(folder: Path, **settings: Any) -> AsyncMemory:
    return await AsyncMemory.load(folder, NotePolicy(), **{"embedder": WordEmbedder(), **settings})


async def saved(folder: Path, **settings: Any) -> AsyncMemory:
    memory = await make(capacity=9, **settings)
    await memory.read(TEXT, name="t")
    await memory.save(folder)
    return memory


async def test_load_returns_the_saved_memory(tmp_path):
    embedder, folder, file = WordEmbedder(), tmp_path / "a" / "m", tmp_path / "a.txt"
    file.touch()
    memory = await saved(folder, embedder=embedder)
    with pytest.raises(ConfigError, match=r"folder=.*a\.txt: not a folder"):
        await memory.save(file)
    embedder.calls.clear()
    again = await load(folder, embedder=embedder)
    assert embedder.calls == []  # the vectors were saved
    assert (again.entries(), again.history()) == (memory.entries(), memory.history())
    assert (again.readings, again.steps) == (memory.readings, memory.steps)
    assert (again.settings["chunk_tokens"], again.settings["capacity"]) == (3, 9)
    for one in (memory, again):
        await one.read("five six")
    assert again.history() == memory.history()


async def test_scopes_are_apart_searched_together_and_saved(tmp_path):
    memory = await make(entry_tokens=5)
    ann = memory.scope(user="ann", session="1")
    await ann.read("one two three", name="n")
    await memory.scope(user="ann", session="2").read("four")
    await memory.scope(user="b/o,b").read("six")
    assert (memory.scope(session="1", user="ann"), memory.entries()) == (ann, [])
    for no in (ann.save(tmp_path / "a"), ann.search("one", agent="x")):
        with pytest.raises(ConfigError, match="this is a scope"):
            await no
    await (await memory.at(0)).save(tmp_path / "m")
    for one in (memory, await memory.fork(), await load(tmp_path / "m")):
        (first, _), _ = await one.search("four", user="ann")
        assert "four" in first.text
        assert len(await one.search("six", user="b/o,b")) == 1
        assert await one.search("six", user="cid") == []
    for wrong in ({"usr": "ann"}, {"user": None}, {"user": ""}, {"user": "京" * 28}):
        with pytest.raises(ConfigError, match=r"give texts for|too long"):
            await memory.search("six", **wrong)
        with pytest.raises(ConfigError):
            memory.scope(**wrong)
    await (await make(entry_tokens=5)).save(tmp_path / "m")
    assert await (await load(tmp_path / "m")).search("six", user="b/o,b") == [], "replaced"
    with pytest.raises(DataError, match="nothing in this memory came from it"):
        await ann.forget("x")
    assert await ann.forget("n")


async def test_load_damaged_folder_is_refused(tmp_path):
    await saved(tmp_path)
    # A log that contradicts itself, and a file that is not JSON.
    path = tmp_path / MEMORY_FILE
    for old, new in (('"create"', '"delete"'), ("{", "{{")):
        path.write_text(path.read_text().replace(old, new))
        with pytest.raises(DataError, match="damaged"):
            await load(tmp_path)


async def test_save_that_fails_leaves_previous_save(tmp_path, monkeypatch):
    memory = await saved(tmp_path)
    await memory.read("eight")
    replace = os.replace

    def fail(source: Path, target: Path) -> None:
        replace(source, target) if target.name != MEMORY_FILE else 1 / 0

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(ZeroDivisionError):
        await memory.save(tmp_path)
    monkeypatch.undo()
    found = await load(tmp_path)
    assert (texts(found), found.readings) == (texts(memory)[:-1], memory.readings[:-1])
