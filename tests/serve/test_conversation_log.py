"""The log of conversations by itself: what is committed is there, whole; who comes second loses."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from atommem.errors import ConfigError
from atommem.memory.log import Contents, Operation, Outcome, Snapshot, Source, replay
from atommem.memory.store import TextVectors, digests_of
from atommem.serve.conversation_log import ConversationLog
from atommem.serve.log_rows import ConflictError, Event, NotFoundError
from atommem.serve.schema import metadata, open_database, requests

MADE = {"checkpoint": "c1", "embedder": "words/4"}
WRITTEN = [
    Operation(
        0,
        "create",
        entry_id=1,
        after="",
        source=Source(0, "a, chunk 1/1", 2, 5),
        details={"type": "note"},
    ),
    Operation(0, "update", Outcome.UNKNOWN_HANDLE, handle=9),
    Operation(0, "create", entry_id=2, after="é\u2028☃", score=0.1, reason="cut"),
    Operation(0, "read", after="who?"),
    Operation(0, "retrieve", actor="memory", scores=((1, 0.123456789012345678), (2, -1e-9))),
]


@pytest.fixture
def log(tmp_path: Path) -> ConversationLog:
    return ConversationLog(open_database(f"sqlite:///{tmp_path / 'log.db'}"))


def test_operations_come_back_as_they_were_bit_for_bit(log: ConversationLog) -> None:
    about = log.create("ann", {"goal": "x"})
    rows = np.array([[0.5, 0.25, 0, 0], [0.1, 0.2, 0.3, 0.4]], dtype=np.float32)
    cached = TextVectors("words/4", digests_of(["", "é\u2028☃"], "entry"), rows)
    log.commit(
        about.id, 0, 0, [Event("step", {"a": 1}, step=0, tokens=7)], WRITTEN, cached=cached, **MADE
    ).result()
    found = log.load(about.id, "ann", "words/4")
    assert found.operations == WRITTEN
    assert (found.version, found.seq, found.turns, found.sampled) == (1, 5, 1, 7)
    assert (found.checkpoint, found.embedder) == ("c1", "words/4")
    assert found.vectors is not None
    places = found.vectors.find(["é\u2028☃", ""], "entry")
    assert np.array_equal(
        found.vectors.rows[places], rows[::-1].astype(np.float16).astype(np.float32)
    )
    assert log.load(about.id, "ann", "others/4").vectors is None
    assert log.load(log.create("ann", {}).id, "ann", "words/4").vectors is None


def test_who_commits_second_loses_and_nothing_of_it_is_there(log: ConversationLog) -> None:
    about = log.create("ann", {})
    log.commit(about.id, 0, 0, [Event("step", step=0)], WRITTEN, **MADE).result()
    for seq, step in ((0, 0), (5, 1), (0, 1)):
        with pytest.raises(ConflictError):
            log.commit(about.id, 0, seq, [Event("step", step=step)], WRITTEN[:1], **MADE).result()
    with pytest.raises(ConflictError):  # the events would fit
        log.commit(about.id, 1, 4, [Event("step", step=1)], WRITTEN[:1], **MADE).result()
    assert len(log.events(about.id)) == 1
    assert log.length(about.id) == 5


def test_a_snapshot_spares_the_operations_before_it(log: ConversationLog) -> None:
    about = log.create("ann", {})
    snapshot = Snapshot("words/4", replay(WRITTEN))
    log.commit(about.id, 0, 0, [Event("step", step=0)], WRITTEN, snapshot=snapshot, **MADE).result()
    more = [Operation(1, "delete", entry_id=1, before="")]
    log.commit(about.id, 1, 5, [Event("step", step=1)], more, **MADE).result()
    found = log.load(about.id, "ann", "words/4")
    assert (found.start, found.operations) == (snapshot, more)
    assert log.load(about.id, "ann", "words/4", whole=True).operations == WRITTEN + more
    assert log.memory_at(about.id) == replay(WRITTEN + more)
    assert log.memory_at(about.id, 3) == replay(WRITTEN[:3])
    assert log.memory_at(about.id, 0) == Contents()


def test_another_s_conversation_is_not_there_and_an_erased_one_leaves_nothing(
    log: ConversationLog, tmp_path: Path
) -> None:
    about = log.create("ann", {})
    secret = replace(WRITTEN[0], after="the vault opens with 7151")
    log.commit(about.id, 0, 0, [Event("step", step=0)], [secret], **MADE).result()
    for call in (log.about, log.erase):
        with pytest.raises(NotFoundError):
            call(about.id, "bob")
    log.erase(about.id, "ann")
    with pytest.raises(NotFoundError):
        log.about(about.id, "ann")
    with pytest.raises(ConflictError):
        log.commit(about.id, 1, 1, [Event("step", step=1)], **MADE).result()
    log.engine.dispose()
    assert all(b"7151" not in path.read_bytes() for path in tmp_path.iterdir())


@pytest.mark.parametrize("revision", ["0001", "0002"])
def test_an_older_database_gets_the_tables_that_the_code_reads(
    revision: str, log: ConversationLog
) -> None:
    name = log.create("ann", {}).id
    with log.engine.begin() as connection:
        connection.execute(sa.text(f"UPDATE alembic_version SET version_num = '{revision}'"))
        if revision == "0001":
            requests.drop(connection)
    again = ConversationLog(open_database(log.engine.url.render_as_string()))
    assert again.about(name, "ann").id == name
    with again.engine.begin() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        assert connection.scalar(sa.text("SELECT version_num FROM alembic_version")) == "0002"
        assert connection.scalar(sa.text("PRAGMA journal_mode")) == "wal"


def test_another_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a text of somebody's")
    for url in (
        "nonsense",
        "mysql+nothing://x/y",
        "postgresql://127.0.0.1:1/none",
        f"sqlite:///{tmp_path / 'text'}",
    ):
        with pytest.raises(ConfigError, match="database"):
            open_database(url)


def test_writers_that_wait_share_a_commit_and_fail_by_themselves(log: ConversationLog) -> None:
    """Sixteen threads, every fourth of which comes second: what it writes is not there, all else is."""
    names = [log.create("ann", {}).id for _ in range(12)]

    def write(number: int) -> str:
        try:
            log.commit(names[number % 12], 0, 0, [Event("step", step=0)], WRITTEN, **MADE).result()
        except ConflictError:
            return "lost"
        return "there"

    with ThreadPoolExecutor(16) as threads:
        assert sorted(threads.map(write, range(16))) == ["lost"] * 4 + ["there"] * 12
    assert all(log.length(name) == 5 for name in names)
