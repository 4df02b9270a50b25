"""`ConversationLog`: durable, whole, and one winner among writers."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atommem.errors import ConfigError, DataError
from atommem.memory.log import Operation, Outcome, Source, replay, to_json
from atommem.memory.store import TextVectors, digests_of
from atommem.serve.conversation_log import ConversationLog
from atommem.serve.schema import ConflictError, Event, NotFoundError, open_database, schema_version

SOURCE = Source(0, "a, chunk 1/1", 2, 5)
OPERATIONS = [
    Operation(0, "create", entry_id=1, after="", source=SOURCE, details={"type": "note"}),
    Operation(0, "update", Outcome.UNKNOWN_HANDLE, handle=9),
    Operation(0, "create", entry_id=2, after="é\u2028☃", score=0.1, reason="cut"),
    Operation(0, "read", after="who?"),
    Operation(0, "retrieve", actor="memory", scores=((1, 0.123456789012345678), (2, -1e-9))),
]


@pytest.fixture
def log(tmp_path: Path) -> ConversationLog:
    return ConversationLog(open_database(f"sqlite:///{tmp_path / 'log.db'}"))


def commit(
    log: ConversationLog, name: str, version: int, written: Sequence[Operation] = (), **more: Any
) -> None:
    operations = [to_json(operation) for operation in written]
    event = Event("step", step=version - 1, version=version, operations=operations, tokens=7)
    log.commit(name, [replace(event, embedder="words/4")], **more).result()


def test_load_after_commit_returns_operations_and_vectors_exactly(log):
    name = log.create("ann", {"goal": "x"}).id
    rows = np.array([[0.5, 0.25, 0, 0], [0.1, 0.2, 0.3, 0.4]], dtype=np.float32)
    cached = TextVectors("words/4", digests_of(["", "é\u2028☃"], "entry"), rows)
    commit(log, name, 1, OPERATIONS, cached=cached)
    state, found = log.load(name, "ann", "words/4")
    assert found.operations == tuple(OPERATIONS)
    assert (state.version, state.embedder, found.steps, found.sampled) == (1, "words/4", 1, 7)
    assert found.vectors is not None
    places = np.argsort(found.vectors.digests)
    assert np.array_equal(found.vectors.digests[places], np.sort(cached.digests))
    assert np.array_equal(found.vectors.rows[places], rows[np.argsort(cached.digests)])
    assert log.load(name, "ann", "others/4")[1].vectors is None


def test_concurrent_commits_of_one_version_have_one_winner(log):
    names = [log.create("ann", {}).id for _ in range(12)]

    def write(number: int) -> str:
        try:
            commit(log, names[number % 12], 1, OPERATIONS)
        except ConflictError:
            return "lost"
        return "won"

    with ThreadPoolExecutor(16) as threads:
        assert sorted(threads.map(write, range(16))) == ["lost"] * 4 + ["won"] * 12
    assert all(len(log.operations(name)) == 5 for name in names)


def test_memory_at_and_fork_take_any_number_of_operations(log):
    name = log.create("ann", {}).id
    commit(log, name, 1, OPERATIONS)
    more = [Operation(1, "delete", entry_id=1, before="")]
    commit(log, name, 2, more)
    for length in range(7):
        expected = replay((OPERATIONS + more)[:length])
        assert log.memory_at(name, length) == (expected, 6)
        assert log.memory_at(log.fork(name, "ann", length).id) == (expected, length)
    for call in (log.memory_at, lambda name, at: log.fork(name, "ann", at)):
        with pytest.raises(DataError, match="at=7: this conversation has 6 operations"):
            call(name, 7)


def test_erase_leaves_no_byte_and_other_owners_see_nothing(log, tmp_path):
    name = log.create("ann", {}).id
    commit(log, name, 1, [replace(OPERATIONS[0], after="the vault opens with 7151")])
    for call in (log.info, log.erase):
        with pytest.raises(NotFoundError):
            call(name, "bob")
    log.erase(name, "ann")
    with pytest.raises(NotFoundError):
        log.info(name, "ann")
    with pytest.raises(ConflictError):
        commit(log, name, 2)
    log.engine.dispose()
    assert all(b"7151" not in path.read_bytes() for path in tmp_path.iterdir())


def test_open_database_of_an_earlier_version_leaves_the_file(log, tmp_path):
    with log.engine.begin() as connection:
        schema_version.drop(connection)
    log.engine.dispose()
    before = (tmp_path / "log.db").read_bytes()
    with pytest.raises(ConfigError, match="Give a new database"):
        open_database(f"sqlite:///{tmp_path / 'log.db'}")
    assert (tmp_path / "log.db").read_bytes() == before
