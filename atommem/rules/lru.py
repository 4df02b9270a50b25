"""Least recently used."""

from __future__ import annotations

from atommem.memory.columns import Numbers
from atommem.memory.entries import Entry
from atommem.memory.retention import Eviction
from atommem.memory.rules import Candidate, StoreState
from atommem.rules.rule import lowest


def last_used(store: StoreState) -> Numbers:
    """`when_used` of each entry, shape (n,)."""
    return store.computed(when_used)


def when_used(entry: Entry) -> int:
    """The step at which an entry was shown last; one that was never shown counts from its creation."""
    return entry.created if entry.last_shown is None else entry.last_shown


class LeastRecentlyUsed:
    """Give up the entry that has gone longest without being shown; of several, the oldest."""

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        """The entry with the smallest `last_used`."""
        chosen, step = lowest(store, last_used(store))
        return Eviction(chosen, f"unused since step {step:.0f}", step)
