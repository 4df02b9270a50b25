"""Replaying an operation log that was written by hand; sessions do it with those of memories that are used."""

from __future__ import annotations

import json

import pytest

from atommem.errors import TraceError
from atommem.memory.contents import Contents, Snapshot, replay
from atommem.memory.entries import Entry, Source
from atommem.memory.operations import Operation, Outcome, operation_from_json, to_json
from atommem.memory.shared_map import SharedMap

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
    Operation(2, "create", Outcome.REJECTED, after="lost", reason="admission:strict: too short", score=0.1),
    Operation(2, "delete", entry_id=1, before="uno", actor="retention:fifo", reason="oldest", score=0.0),
    Operation(2, "create", entry_id=3, after="three"),
    Operation(2, "create", Outcome.MERGED, after="trois"),
    Operation(2, "update", entry_id=3, before="three", after="trois", actor="admission:merge", score=0.5),
    Operation(2, "delete", Outcome.DISABLED, handle=1),
    Operation(2, "retrieve", actor="memory", scores=((2, 0.25),)),
    Operation(3, "outcome", actor="user", scores=((2, 1.0),)),
    Operation(3, "observe", scores=((2, 1.0), (3, 1.0))),
    Operation(3, "observe", scores=((2, 0.5),)),
]


def test_a_log_is_replayed_with_all_that_rules_need_to_know() -> None:
    two = Entry(2, "two", 0, 0, 3, 3, 0.25, 0.5, SPAN, 1.0, 0.5 - 0.25 / 3, uses=2, mean_outcome=0.75)
    three = Entry(3, "trois", 2, 2, source=Source(2), score=0.5, uses=1, mean_outcome=1.0)
    assert replay(LOG) == Contents(SharedMap([(2, two), (3, three)]), "plan", "query", ((2, 0.25),), 3, len(LOG), 4)
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
