"""Least recently used."""

from __future__ import annotations

import numpy as np

from atommem.memory.columns import Numbers
from atommem.memory.retention import Eviction
from atommem.memory.rules import Candidate, StoreState
from atommem.rules.rule import lowest


def last_used(store: StoreState) -> Numbers:
    """The step at which each entry was shown last, shape (n,); one that was never shown counts from its creation."""
    shown = store.column("last_shown")
    return np.where(np.isnan(shown), store.column("created"), shown)


class LeastRecentlyUsed:
    """Give up the entry that has gone longest without being shown; of several, the oldest."""

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        """The entry with the smallest `last_used`."""
        chosen, step = lowest(store, last_used(store))
        return Eviction(chosen, f"unused since step {step:.0f}", step)
