from __future__ import annotations

import json

import pytest

from atommem.errors import TraceError
from atommem.memory.log import (
    Contents,
    Entry,
    Operation,
    Outcome,
    Snapshot,
    Source,
    operation_from_json,
    replay,
    to_json,
)

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
    Operation(2, "create", Outcome.REJECTED, after="lost", reason="admission:strict", score=0.1),
    Operation(2, "delete", entry_id=1, before="uno", actor="retention:fifo", score=0.0),
    Operation(2, "create", entry_id=3, after="three", details={"steps": 3}),
    Operation(2, "create", Outcome.MERGED, after="trois"),
    Operation(2, "update", entry_id=3, before="three", after="trois", actor="x", score=0.5),
    Operation(2, "retrieve", actor="memory", scores=((2, 0.25),)),
    Operation(3, "outcome", actor="user", scores=((2, 1.0),)),
    Operation(3, "observe", scores=((2, 1.0),)),
    Operation(3, "observe", scores=((2, 0.5),)),
]


def test_replay_returns_contents_with_statistics() -> None:
    counts = {"mean_similarity": 0.5 - 0.25 / 3, "uses": 2, "mean_outcome": 0.75}
    two = Entry(2, "two", 0, 0, 3, 3, 0.25, 0.5, SPAN, 1.0, **counts)
    three = Entry(3, "trois", 2, 2, source=Source(2), score=0.5, details={"steps": 3})
    expected = Contents({2: two, 3: three}, "plan", "query", ((2, 0.25),), 3, len(LOG), 4)
    assert replay(LOG) == expected
    snapshot = Snapshot("words/64", replay(LOG[:5]))
    assert replay(LOG[5:], snapshot) == expected
    assert snapshot.contents == replay(LOG[:5])  # unchanged


def test_operations_and_snapshots_round_trip_through_json() -> None:
    for operation in LOG:
        assert operation_from_json(json.loads(json.dumps(to_json(operation)))) == operation
    assert to_json(LOG[0]) == {"step": 0, "kind": "create", "entry_id": 1, "after": "one"}
    snapshot = Snapshot("words/64", replay(LOG), seed=7)
    assert Snapshot.from_json(json.loads(json.dumps(snapshot.to_json()))) == snapshot
    with pytest.raises(TraceError, match="memory snapshot"):
        Snapshot.from_json({**snapshot.to_json(), "format": 9})


def test_apply_contradicting_operation_is_refused() -> None:
    contents = replay(LOG)
    for operation, message in (
        (Operation(5, "create", entry_id=3, after="x"), "its new id is 3, after 3"),
        (Operation(5, "read", before=None, after="x"), "the query is 'query'"),
        (Operation(5, "retrieve", scores=((2, 0.5), (1, 0.5))), "entry 1 does not exist"),
    ):
        with pytest.raises(TraceError, match=f"step 5 .*{message}"):
            contents.apply(operation)
    assert contents == replay(LOG)
