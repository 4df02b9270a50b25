"""A memory in a folder: saved, loaded, gone on with; and what may be wrong with the folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atommem import AsyncMemory
from atommem.api import MEMORY_FILE, SESSION_FILE
from atommem.errors import ConfigError, DataError
from tests.atommem.test_api import TEXT, NotePolicy, make, texts
from tests.fakes import WordEmbedder

VECTORS_FILE = f"{SESSION_FILE}.vectors"


async def load(folder: Path, policy: Any = None, **settings: Any) -> AsyncMemory:
    settings = {"embedder": WordEmbedder(), **settings}
    return await AsyncMemory.load(folder, NotePolicy() if policy is None else policy, **settings)


async def saved(folder: Path, **settings: Any) -> AsyncMemory:
    memory = make(capacity=9, **settings)
    await memory.read(TEXT, name="t")
    await memory.ask("What?")
    assert await memory.save(folder) == folder
    return memory


async def test_load_returns_the_saved_memory(tmp_path: Path) -> None:
    embedder, folder = WordEmbedder(), tmp_path / "a" / "m"
    memory = await saved(folder, embedder=embedder)
    embedder.calls.clear()
    again = await load(folder, embedder=embedder)
    assert embedder.calls == []  # the vectors were saved
    assert (again.entries(), again.history(), again.readings) == (
        memory.entries(),
        memory.history(),
        memory.readings,
    )
    assert (again.steps, again.scratchpad) == (memory.steps, memory.scratchpad)
    assert (again.settings["chunk_tokens"], again.settings["capacity"]) == (3, 9)
    assert texts(await again.at(1)) == ["one two three"]
    await again.read(TEXT, again=False)
    assert again.steps == memory.steps
    for one in (memory, again):
        await one.read("five six")
    await again.save(folder)
    assert (await load(folder)).history() == again.history() == memory.history()


async def test_load_without_usable_vectors_embeds_again(tmp_path: Path) -> None:
    memory = await saved(tmp_path)
    good = (tmp_path / VECTORS_FILE).read_bytes()
    empty = await memory.at(0)
    await empty.save(tmp_path / "other")
    stale = (tmp_path / "other" / VECTORS_FILE).read_bytes()
    for content in (None, b"no vectors", good[: len(good) // 2], stale):
        (tmp_path / VECTORS_FILE).unlink(missing_ok=True)
        if content is not None:
            (tmp_path / VECTORS_FILE).write_bytes(content)
        embedder = WordEmbedder()
        again = await load(tmp_path, embedder=embedder)
        assert len(embedder.calls) == 2
        assert again.entries() == memory.entries()


async def test_load_with_other_embedder_needs_reembed(tmp_path: Path) -> None:
    memory = await saved(tmp_path)
    with pytest.raises(ConfigError, match="made with embedder='words/64'"):
        await load(tmp_path, embedder="hashing")
    again = await load(tmp_path, embedder="hashing", embedder_dim=32, reembed=True)
    assert texts(again) == texts(memory)
    await again.save(tmp_path)
    # From now on it is the memory's.
    final = await AsyncMemory.load(tmp_path, NotePolicy())
    assert final.settings["embedder_dim"] == 32
    assert (await final.ask("seven")).text == "42"


async def test_load_without_policy_of_an_object_is_refused(tmp_path: Path) -> None:
    await make(NotePolicy(), embedder="hashing").save(tmp_path)
    with pytest.raises(ConfigError, match=r"made with a Policy object\. Give it"):
        await AsyncMemory.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        (MEMORY_FILE, lambda text: "{{" + text, "not a memory, or damaged"),
        (MEMORY_FILE, lambda text: text.replace('"format": 1', '"format": 9'), "has format 9"),
        (SESSION_FILE, lambda text: '{"type": "episode"}', "is damaged"),
        (
            SESSION_FILE,
            lambda text: text.replace('"create"', '"delete"'),
            "damaged",
        ),  # a log that contradicts itself
    ],
)
async def test_load_damaged_folder_is_refused(
    tmp_path: Path, name: str, damage: Callable[[str], str], message: str
) -> None:
    await saved(tmp_path)
    (tmp_path / name).write_text(damage((tmp_path / name).read_text()))
    with pytest.raises(DataError, match=message):
        await load(tmp_path)


async def test_save_and_load_wrong_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no memory"):
        await load(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        await make().save(tmp_path / "file")
    with pytest.raises(DataError, match="holds other files"):
        await make().save(tmp_path)


async def test_save_that_fails_leaves_previous_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = await saved(tmp_path)
    await memory.read("eight")
    monkeypatch.setattr("atommem.session_state.to_json", lambda operation: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        await memory.save(tmp_path)
    monkeypatch.undo()
    assert texts(await load(tmp_path)) == texts(memory)[:-1]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [MEMORY_FILE, SESSION_FILE, VECTORS_FILE]
    )
