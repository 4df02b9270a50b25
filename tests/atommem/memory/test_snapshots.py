"""One mechanism: snapshot, restore, fork, undo, and the memory as it was."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atommem.actions import Action
from atommem.config import MemoryConfig
from atommem.embedding.hashing import HashingEmbedder
from atommem.errors import ConfigError, OutageError, TraceError
from atommem.memory.contents import Snapshot
from atommem.memory.operations import operation_from_json, to_json
from atommem.memory.vectors import TextVectors
from atommem.memory.working import WorkingMemory
from tests.atommem.memory.toys import CREATE, CUT_MARKER, DELETE, READ, SCRATCHPAD, UPDATE, memory, shown, texts
from tests.fakes import WordEmbedder, WordTokenizer

CONFIG = MemoryConfig(capacity=6, retention="lru", retrieve_k=3)


def random_turn(rng: random.Random, step: int) -> list[Action]:
    kinds = rng.choices((CREATE, READ, UPDATE, DELETE, SCRATCHPAD), (6, 2, 3, 2, 1), k=rng.randrange(5))
    return [
        Action(kind, f"fact {rng.randrange(9)} at {step} {number}", rng.randrange(1, 5))
        for number, kind in enumerate(kinds)
    ]


async def restored(snapshot: Snapshot, embedder: Any = None, **settings: Any) -> WorkingMemory:
    embedder = embedder or HashingEmbedder(32)
    return await WorkingMemory.restore(snapshot, embedder, WordTokenizer(), CONFIG, CUT_MARKER, **settings)


async def played(turns: list[list[Action]], pause: str = "") -> WorkingMemory:
    """A memory after `turns`, put down and taken up in between in one of several ways."""
    m = WorkingMemory(HashingEmbedder(32), WordTokenizer(), CONFIG, CUT_MARKER)
    for step, turn in enumerate(turns):
        await m.apply(turn, step)
        if pause == "snapshot":
            m = await restored(Snapshot.from_json(json.loads(json.dumps(m.snapshot().to_json()))))
        elif pause == "vectors":
            m = await restored(m.snapshot(), vectors=m.vectors())
        elif pause == "log":
            log = [operation_from_json(json.loads(json.dumps(to_json(operation)))) for operation in m.log]
            m = await restored(m.at(0), operations=log)
        elif pause == "fork":
            m = m.fork()
        elif pause == "undo":
            await m.apply(random_turn(random.Random(step), step + 1), step + 1)
            await m.undo(step + 1)
    return m


@pytest.mark.parametrize("pause", ["snapshot", "vectors", "log", "fork", "undo"])
async def test_a_memory_that_was_put_down_goes_on_as_if_it_had_not_been(pause: str) -> None:
    for seed in range(6):
        rng = random.Random(seed)
        turns = [random_turn(rng, step) for step in range(8)]
        one, other = await played(turns), await played(turns, pause)
        assert other.contents == one.contents
        assert other.view() == one.view()
        held = len(one.entries())
        assert np.allclose(one.vectors().rows[:held], other.vectors().rows[:held])
        if pause in ("log", "fork", "undo"):
            assert other.log == one.log
            assert all(other.at(step) == one.at(step) for step in range(9))


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


async def test_given_vectors_spare_the_embedder_and_what_is_missing_is_embedded(tmp_path: Path) -> None:
    m = memory()
    await m.apply([Action(CREATE, "ann"), Action(CREATE, "bob"), Action(READ, "ann")], 0)
    start, early = m.snapshot(), m.vectors()
    log = await m.apply([Action(UPDATE, "eve", 1), Action(CREATE, "dan")], 1)
    none = TextVectors(early.embedder, early.digests[:0], early.rows[:0])
    for given, missing in (
        (m.vectors(), []),
        (TextVectors.load(m.vectors().save(tmp_path / "vectors")), []),
        (early, ["eve", "dan"]),
        (none, ["eve", "bob", "dan"]),
        (replace(m.vectors(), embedder="words/65"), ["eve", "bob", "dan"]),
    ):
        embedder = WordEmbedder()
        embedder._axes = m._resources.embedder._axes  # type: ignore[attr-defined]
        again = await restored(start, embedder, vectors=given, operations=log)
        assert embedder.calls == ([("entry", *missing)] if missing else [])
        assert again.vectors().rows[:3] == pytest.approx(m.vectors().rows[:3])
        embedder.calls.clear()
        await again.apply([Action(DELETE, handle=2)], 2)
        # The query's vector is there, too, where it was given.
        assert embedder.calls == ([("query", "ann")] if len(missing) == 3 else [])


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


async def test_another_embedder_is_refused_unless_asked_to_embed_anew() -> None:
    m = memory()
    await m.apply([Action(CREATE, "ann"), Action(READ, "ann")], 0)
    snapshot = m.snapshot()
    assert snapshot.embedder == "words/64"
    with pytest.raises(ConfigError, match="'words/64', this one is 'hashing/8/32'"):
        await restored(snapshot)
    again = await restored(snapshot, reembed=True, vectors=m.vectors())
    assert shown(again) == shown(m)
    assert again.vectors().rows.shape == (1, 32)
    assert again.snapshot().embedder == "hashing/8/32"


async def test_an_outage_leaves_a_memory_where_it_was() -> None:
    m = memory()
    await m.apply([Action(CREATE, "ann"), Action(READ, "ann")], 0)
    await m.apply([Action(UPDATE, "eve", 1)], 1)
    m._resources.embedder.fail = OutageError("gone")  # type: ignore[attr-defined]
    with pytest.raises(OutageError):
        await m.undo(1)
    assert (texts(m), len(m.log)) == ({1: "eve"}, 5)
