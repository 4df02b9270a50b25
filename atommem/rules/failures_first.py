"""Failures go first: the control for scores learned on streams with failures in them."""

from __future__ import annotations

import numpy as np

from atommem.memory.retention import Eviction
from atommem.memory.rules import Candidate, StoreState
from atommem.rules.rule import lowest


class FailuresFirst:
    """Give up the oldest record of a task that failed; where there is none, the oldest.

    Args:
        below: A task failed if its outcome is less; one that is not known is no failure.
    """

    def __init__(self, below: float = 0.5) -> None:
        self._below = below

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        """The new record always comes in: it may be given up by the next one."""
        outcomes = store.column("outcome")
        failed = outcomes < self._below
        age = (
            np.where(failed, -np.inf, store.column("created"))
            if failed.any()
            else store.column("created")
        )
        chosen, _ = lowest(store, age)
        entry = store.entries[chosen]
        return Eviction(
            chosen, "oldest failure" if failed.any() else "oldest, no failures", entry.created
        )
