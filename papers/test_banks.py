"""The rules of the papers' banks, by hand; the goldens hold what they do in episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from atommem.memory.log import Entry, Source
from atommem.memory.rules import Accepted, Candidate, Refused, StoreState, make_rule
from atommem.memory.store import VectorStore

UNIT = np.array([1, 0], dtype=np.float32)
NEW = Candidate("new", UNIT, Source(9))


def store(entries: Sequence[Entry], vectors: Any = None, step: int = 9) -> StoreState:
    held = VectorStore(2)
    rows = np.tile(UNIT, (len(entries), 1)) if vectors is None else np.array(vectors)
    held.add([entry.id for entry in entries], rows.astype(np.float32))
    return StoreState({entry.id: entry for entry in entries}, held, step, len(entries), (0,))


def entries(**columns: Sequence[Any]) -> list[Entry]:
    """Entries 10, 11, ... of steps 0, 1, ... with these fields."""
    rows = zip(*columns.values(), strict=True)
    return [
        Entry(10 + i, "text", i, i, **dict(zip(columns, row, strict=True)))
        for i, row in enumerate(rows)
    ]


def test_sweep_deletes_by_use_and_utility() -> None:
    held = entries(uses=[6, 6, 0], mean_outcome=[0.5, 0.6, None])
    seen = store(held, step=4)
    periodic = make_rule("retention", "papers.banks:Periodic(period=4)")
    for step in (1, 5):
        periodic.observe([11], 1.0, step)
    assert periodic.sweep(store(held, step=5)) == ()
    # The second period began with step 5; entry 10 came before it and was not shown in it.
    assert [eviction.entry_id for eviction in periodic.sweep(store(held, step=8))] == [10, 12]
    assert make_rule("retention", "papers.banks:History(n=6)").sweep(seen) == []
    for name in (
        "papers.banks:History",
        "papers.banks:History(n=6, at_least=true)",
        "papers.banks:Combined(period=4)",
    ):
        assert [e.entry_id for e in make_rule("retention", name).sweep(seen)] == [10]


def test_memobank_refuses_duplicates_and_prunes_by_utility() -> None:
    rule = make_rule("admission", "papers.banks:MemoBank")
    held = store(entries(outcome=[1.0, 0.0, 1.0, 0.0]))
    assert rule.admit(NEW, held) == Refused("duplicate", 1.0)
    other = replace(NEW, vector=np.array([0, 1], np.float32))
    assert rule.admit(other, held) == Accepted("no duplicate", 0.0)
    failed = replace(NEW, text="a long query", outcome=0.0, details={"execution": "no"})
    assert rule.admit(failed, store([])) == Refused("invalid failure: its plan is not JSON")
    rule = make_rule("retention", "papers.banks:MemoBank(keep=.25, least_positive=2)")
    assert [eviction.entry_id for eviction in rule.sweep(held)] == [11, 13]
