"""One mechanism: snapshot, restore, fork, undo, and the memory as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atommem.actions import Action
from atommem.config import MemoryConfig
from atommem.embedding.hashing import HashingEmbedder
from atommem.errors import ConfigError, OutageError, TraceError
from atommem.memory.contents import Snapshot
from atommem.memory.vectors import TextVectors
from atommem.memory.working import WorkingMemory
from tests.atommem.memory.toys import CREATE, CUT_MARKER, READ, UPDATE, memory, shown, texts
from tests.fakes import WordEmbedder, WordTokenizer

CONFIG = MemoryConfig(capacity=6, retention="lru", retrieve_k=3)


async def restored(snapshot: Snapshot, embedder: Any = None, **settings: Any) -> WorkingMemory:
    embedder = embedder or HashingEmbedder(32)
    return await WorkingMemory.restore(snapshot, embedder, WordTokenizer(), CONFIG, CUT_MARKER, **settings)


async def test_undo_embeds_only_what_was_lost() -> None:
    m = memory()
    await m.apply([Action(CREATE, "ann"), Action(CREATE, "bob"), Action(READ, "ann")], 0)
    await m.apply([Action(UPDATE, "eve", 2), Action(CREATE, "dan"), Action(READ, "dan")], 1)
    embedder = m._resources.embedder
    embedder.calls.clear()  # type: ignore[attr-defined]
    await m.undo(1)
    assert embedder.calls == [("entry", "bob")]  # type: ignore[attr-defined]
    assert (texts(m), shown(m), m.contents.newest_id) == ({1: "ann", 2: "bob"}, [(1, "ann"), (2, "bob")], 2)
    # The query's own vector is made again when something is searched for.
    await m.apply([Action(CREATE, "ann too")], 1)
    assert embedder.calls[1:] == [("entry", "ann too"), ("query", "ann")]  # type: ignore[attr-defined]
    assert [text for _, text in shown(m)] == ["ann", "ann too", "bob"]


@pytest.mark.parametrize("damage", [b"", b"PK", b"\x93NUMPY", b"[1, 2]"])
def test_a_file_that_holds_no_vectors_is_said_to_be_one(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "vectors").write_bytes(damage)
    with pytest.raises(TraceError, match=r"vectors holds no vectors .*delete it"):
        TextVectors.load(tmp_path / "vectors")
    np.savez(tmp_path / "other.npz", embedder=np.array("x"), digests=np.zeros(3), rows=np.zeros((2, 2)))
    with pytest.raises(TraceError, match="holds no vectors of texts"):
        TextVectors.load(tmp_path / "other.npz")


async def test_what_was_before_the_log_is_not_made_up() -> None:
    m = memory()
    for step in range(3):
        await m.apply([Action(CREATE, f"at {step}")], step)
    later = await restored(m.snapshot(), WordEmbedder())
    await later.apply([], 3)
    assert len(later.at(3).contents.entries) == 3
    for refused in (lambda: later.at(2), lambda: later.undo(2)):
        with pytest.raises(ConfigError, match="begins at step 3, what was before step 2"):  # noqa: PT012
            found = refused()
            await found  # type: ignore[misc]


async def test_an_outage_leaves_a_memory_where_it_was() -> None:
    m = memory()
    await m.apply([Action(CREATE, "ann"), Action(READ, "ann")], 0)
    await m.apply([Action(UPDATE, "eve", 1)], 1)
    m._resources.embedder.fail = OutageError("gone")  # type: ignore[attr-defined]
    with pytest.raises(OutageError):
        await m.undo(1)
    assert (texts(m), len(m.log)) == ({1: "eve"}, 5)
