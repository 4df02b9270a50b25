"""A memory used turn by turn: handles, views, limits, what is shown and what is logged."""

from __future__ import annotations

import asyncio
import json
import threading
import time

import pytest

from atommem.actions import Action
from atommem.errors import OutageError, TraceError
from atommem.memory import index as index_module
from atommem.memory.admission import Accepted
from atommem.memory.contents import Contents, Snapshot, replay
from atommem.memory.entries import Entry, MemoryView, Source
from atommem.memory.operations import Operation, Outcome, operation_from_json, to_json
from atommem.memory.rules import Candidate, StoreState
from atommem.memory.shared_map import SharedMap
from atommem.memory.threads import THREADS, share
from atommem.memory.working import WorkingMemory
from tests.atommem.memory.toys import (
    CREATE,
    DELETE,
    READ,
    SCRATCHPAD,
    UPDATE,
    by_policy,
    memory,
    shown,
    texts,
)


async def test_a_read_is_shown_in_the_next_view_and_changes_nothing() -> None:
    m = memory()
    await m.apply([Action(CREATE, "ann lives here"), Action(CREATE, "bob flies")], 0)
    assert shown(m) == []
    before = texts(m)
    operation, retrieval = await m.apply([Action(READ, "ann")], 1)
    assert (operation.kind, operation.before, operation.after) == ("read", None, "ann")
    assert (retrieval.kind, retrieval.actor, retrieval.before, retrieval.after) == (
        "retrieve",
        "memory",
        None,
        None,
    )
    assert [(item.entry_id, item.score) for item in m.view().retrieved] == list(retrieval.scores)
    assert shown(m)[0] == (1, "ann lives here")
    assert texts(m) == before
    assert m.view().query == "ann"
    # One call of the embedder for all that a completion writes.
    assert m._resources.embedder.calls == [
        ("entry", "ann lives here", "bob flies"),
        ("query", "ann"),
    ]  # type: ignore[attr-defined]


async def test_results_stay_until_query_or_entries_change() -> None:
    m = memory(retrieve_k=1)
    await m.apply([Action(CREATE, "ann old"), Action(READ, "ann")], 0)
    assert shown(m) == [(1, "ann old")]
    await m.apply([Action(SCRATCHPAD, "one"), Action(SCRATCHPAD, "two")], 1)
    assert (shown(m), m.view().scratchpad) == ([(1, "ann old")], "two")
    await m.apply([Action(CREATE, "ann")], 2)
    assert shown(m) == [(1, "ann")]
    await m.apply([Action(CREATE, "bob"), Action(READ, "bob")], 3)
    assert shown(m) == [(1, "bob")]
    # What is written empty is empty: a scratchpad, and no query.
    cleared, *_ = await m.apply([Action(SCRATCHPAD, ""), Action(READ, "")], 4)
    assert (cleared.before, cleared.after) == ("two", "")
    assert m.view() == MemoryView(size=3)
    assert MemoryView(query="") == MemoryView(query=None)


async def test_handles_are_those_of_the_view_that_the_model_saw() -> None:
    m = memory(retrieve_k=2)
    created = [Action(CREATE, text) for text in ("ann one", "bob two", "cid three")]
    await m.apply([*created, Action(READ, "bob")], 0)
    assert shown(m) == [(1, "bob two"), (2, "ann one")]
    # The read in the same completion must not shift the handles.
    turn = [
        Action(READ, "ann"),
        Action(UPDATE, "bob three", 1),
        Action(DELETE, handle=2),
        Action(DELETE, handle=2),
    ]
    not_shown = [Action(UPDATE, "gone", handle) for handle in (0, 3, 99, None)]
    operations = by_policy(await m.apply([*turn, *not_shown, Action(CREATE, "new")], 1))
    assert [(o.outcome, o.entry_id, o.before, o.after) for o in operations[1:4]] == [
        (Outcome.APPLIED, 2, "bob two", "bob three"),
        (Outcome.APPLIED, 1, "ann one", None),
        (Outcome.UNKNOWN_HANDLE, None, None, None),
    ]
    assert [o.outcome for o in operations[4:]] == [*[Outcome.UNKNOWN_HANDLE] * 4, Outcome.APPLIED]
    assert texts(m) == {2: "bob three", 3: "cid three", 4: "new"}


async def test_capacity_reject_and_the_room_that_a_delete_makes() -> None:
    m = memory(capacity=1)
    operations = await m.apply(
        [Action(CREATE, "one"), Action(CREATE, "two"), Action(READ, "one")], 0
    )
    assert [o.outcome for o in operations[:2]] == [Outcome.APPLIED, Outcome.REJECTED]
    assert (operations[1].actor, operations[1].reason) == (
        "policy",
        "retention:reject: the store is full",
    )
    assert (m.view().size, m.view().capacity) == (1, 1)
    await m.apply([Action(DELETE, handle=1), Action(CREATE, "three")], 1)
    assert list(texts(m).values()) == ["three"]


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        (SCRATCHPAD, "scratchpad_tokens"),
        (READ, "query_tokens"),
        (CREATE, "entry_tokens"),
        (UPDATE, "entry_tokens"),
    ],
)
async def test_every_text_has_a_limit_and_is_cut_with_a_marker(kind: str, setting: str) -> None:
    m = memory(**{setting: 3})
    await m.apply([Action(CREATE, "ann"), Action(READ, "ann")], 0)
    operation, *_ = await m.apply([Action(kind, "a b c d e", 1)], 1)
    assert (operation.after, operation.reason) == ("a b [cut]", "cut")
    assert "a b [cut]" in (m.view().scratchpad, m.view().query, *texts(m).values())
    assert not any("d e" in text for call in m._resources.embedder.calls for text in call)  # type: ignore[attr-defined]
    fits, *_ = await m.apply([Action(kind, "a b c", 1)], 2)
    assert (fits.after, fits.reason) == ("a b c", "")


@pytest.mark.parametrize("kind", [CREATE, READ, UPDATE, DELETE, SCRATCHPAD])
async def test_a_disabled_action_does_nothing_and_is_recorded(kind: str) -> None:
    m = memory(disabled_actions=[str(kind)])
    await m.apply([Action(CREATE, "ann"), Action(READ, "ann"), Action(SCRATCHPAD, "pad")], 0)
    before = (texts(m), m.contents.scratchpad, m.contents.query)
    (operation,) = by_policy(await m.apply([Action(kind, "changed", 1)], 1))
    assert operation.outcome is Outcome.DISABLED
    assert (texts(m), m.contents.scratchpad, m.contents.query) == before


async def test_entries_know_when_and_how_well_they_were_shown() -> None:
    m = memory(retrieve_k=1)
    span = Source(0, "chunk 1", 5, 9)
    await m.apply(
        [Action(CREATE, "ann"), Action(CREATE, "bob"), Action(READ, "ann bob ann")], 0, span
    )
    await m.apply([], 1)
    await m.apply([Action(READ, "ann")], 2)
    await m.apply([Action(UPDATE, "ann sings", 1)], 3)
    ann, bob = m.entries()
    first, _, second, third = (
        operation.scores[0][1] for operation in m.log if operation.kind == "retrieve"
    )
    assert first < second > third
    assert (ann.created, ann.updated, ann.shown, ann.last_shown) == (0, 3, 4, 4)
    assert (ann.last_similarity, ann.best_similarity) == (third, second)
    assert (ann.source, bob.source) == (Source(3), span)
    assert (bob.shown, bob.last_shown, bob.last_similarity, bob.best_similarity) == (
        0,
        None,
        None,
        None,
    )


async def test_the_outcome_of_the_writer_is_noted_until_another_writes() -> None:
    m = memory()
    await m.apply([Action(CREATE, "ann"), Action(CREATE, "bob"), Action(READ, "ann")], 0)
    m.record_outcome(0.5, 0, [2])
    operation = m.record_outcome(1.0, 0)
    assert operation.scores == ((1, 1.0),)
    assert [entry.outcome for entry in m.entries()] == [1.0, 0.5]
    await m.apply([Action(UPDATE, "ann sings", 1)], 1)
    assert [entry.outcome for entry in m.entries()] == [None, 0.5]
    before, log = m.entries(), m.log
    with pytest.raises(TraceError, match="there is no entry 99"):
        m.record_outcome(1.0, 1, [1, 99])
    assert (m.entries(), m.log) == (before, log)


# Undo, and taking out what a page has left in it ----------------------------------------------------------------


async def test_undo_embeds_only_what_was_lost() -> None:
    m = memory()
    await m.apply([Action(CREATE, "ann"), Action(CREATE, "bob"), Action(READ, "ann")], 0)
    await m.apply([Action(UPDATE, "eve", 2), Action(CREATE, "dan"), Action(READ, "dan")], 1)
    embedder = m._resources.embedder
    before, embedder.fail = (m.contents.copy(), m.log), OutageError("gone")  # type: ignore[attr-defined]
    with pytest.raises(OutageError):
        await m.undo(1)
    assert (m.contents, m.log) == before
    embedder.fail = None  # type: ignore[attr-defined]
    embedder.calls.clear()  # type: ignore[attr-defined]
    await m.undo(1)
    assert embedder.calls == [("entry", "bob")]  # type: ignore[attr-defined]
    assert (texts(m), shown(m), m.contents.newest_id) == (
        {1: "ann", 2: "bob"},
        [(1, "ann"), (2, "bob")],
        2,
    )
    # The query's own vector is made again when something is searched for.
    await m.apply([Action(CREATE, "ann too")], 1)
    assert embedder.calls[1:] == [("entry", "ann too"), ("query", "ann")]  # type: ignore[attr-defined]
    assert [text for _, text in shown(m)] == ["ann", "ann too", "bob"]


BAD, GOOD = "https://bad.test/", "https://good.test/"


async def filled() -> WorkingMemory:
    m = memory()
    await m.apply([Action(CREATE, "ann lives here"), Action(READ, "ann")], 0, Source(0, GOOD))
    await m.apply(
        [Action(CREATE, "bob flies"), Action(UPDATE, "ann moved", 1)],
        1,
        Source(1, f"{BAD}, part 2/3"),
    )
    await m.apply([Action(UPDATE, "ann lives", 1), Action(CREATE, "cid sings")], 2, Source(2, GOOD))
    return m


async def test_entries_with_any_text_from_there_go_and_others_stay() -> None:
    m = await filled()
    held = texts(m)
    for nowhere in ("https://bad.test", "https://bad.test/, part 1/3", "https://other.test/", ""):
        assert await m.forget(nowhere, 2) == ()
    assert texts(m) == held
    operations = await m.forget(BAD, 2)
    assert [(o.kind, o.entry_id, o.actor, o.reason) for o in operations[:-1]] == [
        ("delete", 1, "user", f"forget {BAD}"),
        ("delete", 2, "user", f"forget {BAD}"),
    ], "the first was rewritten since, by who had read it"
    assert texts(m) == {3: "cid sings"}
    assert shown(m) == [(1, "cid sings")]
    assert m.log[-len(operations) :] == operations
    assert await m.forget(BAD, 2) == ()
    await m.apply(
        [Action(CREATE, "dan digs")], 3, Source(3, f"search dan | {GOOD} | {BAD}, part 1/2")
    )
    assert await m.forget(BAD, 3), "a search showed it among others"
    # The log still holds it all.
    assert replay(m.log) == m.contents
    await m.undo(2)
    await m.apply([Action(UPDATE, "ann lives", 1), Action(CREATE, "cid sings")], 2, Source(2, GOOD))
    assert texts(m) == held


async def test_scratchpad_and_query_are_emptied_if_any_of_their_texts_is_from_there() -> None:
    m = memory()
    await m.apply(
        [Action(SCRATCHPAD, "bad"), Action(READ, "bad"), Action(CREATE, "x")], 0, Source(0, BAD)
    )
    await m.apply([Action(SCRATCHPAD, "bad and good")], 1, Source(1, GOOD))
    await m.forget(BAD, 1)
    assert (m.view().scratchpad, m.view().query, m.view().retrieved) == ("", None, ())
    await m.apply([Action(SCRATCHPAD, "good"), Action(READ, "good")], 2, Source(2, GOOD))
    assert await m.forget(BAD, 2) == ()
    assert m.view().scratchpad == "good"


# A large store's turn leaves the event loop, and is at rest before anything else happens to it --------------------


class Slow:
    """Admits after a fifth of a second, and notes in which thread."""

    threads: list[str] = []  # noqa: RUF012

    def admit(self, candidate: Candidate, store: StoreState) -> Accepted:
        self.threads.append(threading.current_thread().name)
        time.sleep(0.2)
        return Accepted()


@pytest.fixture
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_ENTRIES_ON_LOOP", 0)


@pytest.mark.usefixtures("everything_is_large")
async def test_the_loop_goes_on_while_a_large_store_works() -> None:
    m = memory()
    await m.apply([Action(CREATE, "ann"), Action(CREATE, "bob"), Action(READ, "ann")], 0)
    slow = memory(m._resources.embedder, admission=f"{Slow.__module__}:Slow")
    slow._state = m._state
    task = asyncio.create_task(slow.apply([Action(CREATE, "carol"), Action(READ, "carol")], 1))
    late, Slow.threads[:] = 0.0, []
    while not task.done():
        started = time.perf_counter()
        await asyncio.sleep(0.001)
        late = max(late, time.perf_counter() - started)
    assert late < 0.15
    assert Slow.threads[0].startswith("atommem-memory")
    assert shown(slow)[0] == (1, "carol")


@pytest.mark.usefixtures("everything_is_large")
async def test_a_turn_that_is_cancelled_in_its_thread_is_taken_back() -> None:
    m = memory(admission=f"{Slow.__module__}:Slow")
    await m.apply([Action(CREATE, "ann"), Action(READ, "ann")], 0)  # empty yet, and on the loop
    before, vectors = (m.contents.copy(), m.view(), m.log), m.vectors().rows.tolist()
    turn = [
        Action(UPDATE, "eve", 1),
        Action(CREATE, "bob"),
        Action(DELETE, handle=1),
        Action(CREATE, "dan"),
    ]
    turn.append(Action(READ, "bob"))
    task = asyncio.create_task(m.apply(turn, 1))
    await asyncio.sleep(0.1)  # in the first of its two creates
    task.cancel()
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ((m.contents, m.view(), m.log), m.vectors().rows.tolist()) == (before, vectors)
    await m.apply([Action(CREATE, "carol")], 1)
    assert list(texts(m).values()) == ["ann", "carol"]


def test_shared_work_is_all_done_whether_or_not_threads_are_free() -> None:
    done: list[int] = []
    jobs = [lambda number=number: done.append(number) for number in range(3 * THREADS)]
    share(jobs)
    assert sorted(done) == list(range(3 * THREADS))

    def fail() -> None:
        raise ValueError("in another thread")

    with pytest.raises(ValueError, match="in another thread"):
        share([lambda: time.sleep(0.05), fail])


# Replaying an operation log that was written by hand ----------------------------------------------


SPAN = Source(0, "https://example.org", 3, 9)
LOG = [
    Operation(0, "create", entry_id=1, after="one"),
    Operation(0, "create", entry_id=2, after="two", source=SPAN),
    Operation(0, "read", before=None, after="query"),
    Operation(0, "retrieve", actor="memory", scores=((2, 0.5), (1, 0.25))),
    Operation(1, "update", entry_id=1, handle=2, before="one", after="uno", reason="cut"),
    Operation(1, "update", Outcome.UNKNOWN_HANDLE, handle=9),
    Operation(1, "scratchpad", before="", after="plan"),
    Operation(1, "retrieve", actor="memory", scores=((2, 0.5), (1, 0.75))),
    Operation(
        2, "create", Outcome.REJECTED, after="lost", reason="admission:strict: too short", score=0.1
    ),
    Operation(
        2, "delete", entry_id=1, before="uno", actor="retention:fifo", reason="oldest", score=0.0
    ),
    Operation(2, "create", entry_id=3, after="three"),
    Operation(2, "create", Outcome.MERGED, after="trois"),
    Operation(
        2, "update", entry_id=3, before="three", after="trois", actor="admission:merge", score=0.5
    ),
    Operation(2, "delete", Outcome.DISABLED, handle=1),
    Operation(2, "retrieve", actor="memory", scores=((2, 0.25),)),
    Operation(3, "outcome", actor="user", scores=((2, 1.0),)),
    Operation(3, "observe", scores=((2, 1.0), (3, 1.0))),
    Operation(3, "observe", scores=((2, 0.5),)),
]


def test_a_log_is_replayed_with_all_that_rules_need_to_know() -> None:
    two = Entry(
        2, "two", 0, 0, 3, 3, 0.25, 0.5, SPAN, 1.0, 0.5 - 0.25 / 3, uses=2, mean_outcome=0.75
    )
    three = Entry(3, "trois", 2, 2, source=Source(2), score=0.5, uses=1, mean_outcome=1.0)
    assert replay(LOG) == Contents(
        SharedMap([(2, two), (3, three)]), "plan", "query", ((2, 0.25),), 3, len(LOG), 4
    )
    uno = Entry(1, "uno", 0, 1, 1, 1, 0.25, 0.25, Source(1), mean_similarity=0.25)
    assert replay(LOG[:5]).entries[1] == uno
    assert replay([]) == Contents()


def test_operations_and_snapshots_go_through_json() -> None:
    for operation in LOG:
        assert operation_from_json(json.loads(json.dumps(to_json(operation)))) == operation
    assert to_json(LOG[0]) == {"step": 0, "kind": "create", "entry_id": 1, "after": "one"}
    snapshot = Snapshot("words/64", replay(LOG), seed=7)
    assert Snapshot.from_json(json.loads(json.dumps(snapshot.to_json()))) == snapshot
    for change, message in (
        ({"format": 9}, "its format is 9"),
        ({"entries": [{"id": 1}]}, "broken: TypeError"),
        ({"shown": 3}, "broken"),
    ):
        with pytest.raises(TraceError, match=message):
            Snapshot.from_json({**snapshot.to_json(), **change})
    with pytest.raises(TraceError, match="its format is 'list'"):
        Snapshot.from_json([])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (Operation(5, "create", entry_id=3, after="x"), "its new id is 3, after 3"),
        (Operation(5, "create", entry_id=4), "what it wrote"),
        (Operation(5, "update", entry_id=1, before="uno", after="x"), "no entry 1"),
        (Operation(5, "scratchpad", before="", after="x"), "the scratchpad is 'plan'"),
        (Operation(5, "read", before=None, after="x"), "the query is 'query'"),
        (Operation(5, "retrieve", scores=((1, 0.5),)), "no entry 1"),
        (Operation(5, "answer", after="x"), "answer is no memory operation"),
    ],
)
def test_a_log_that_contradicts_itself_is_refused(operation: Operation, message: str) -> None:
    with pytest.raises(TraceError, match=message) as raised:
        replay([*LOG, operation])
    assert "step 5" in str(raised.value)
