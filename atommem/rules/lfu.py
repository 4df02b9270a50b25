"""Least frequently used."""

from __future__ import annotations

from atommem.memory.retention import Eviction
from atommem.memory.rules import Candidate, StoreState
from atommem.rules.rule import lowest


class LeastFrequentlyUsed:
    """Give up the entry that was shown at the fewest steps; of several, the oldest."""

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        """The entry with the smallest `Entry.shown`."""
        chosen, shown = lowest(store, store.column("shown"))
        return Eviction(chosen, f"shown {shown:.0f} times", shown)
