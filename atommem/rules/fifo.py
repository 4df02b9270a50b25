"""First in, first out."""

from __future__ import annotations

from atommem.memory.retention import Eviction
from atommem.memory.rules import Candidate, StoreState


class FirstInFirstOut:
    """Give up the oldest entry. An update does not make it younger."""

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        """The first entry."""
        oldest = next(iter(store.entries.values()))
        return Eviction(oldest.id, f"oldest, of step {oldest.created}", oldest.created)
