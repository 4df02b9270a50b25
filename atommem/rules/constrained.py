"""Deletion under a limit (arXiv 2505.16067, section 5.2)."""

from __future__ import annotations

import numpy as np

from atommem.memory.retention import Eviction
from atommem.memory.rules import Candidate, StoreState
from atommem.rules.periodic import Periodic
from atommem.rules.rule import lowest


class Constrained(Periodic):
    """Periodic deletion; above the limit, the record with the lowest mean utility. Options are those of `Periodic`.

    Records that no task was shown have no utility and are the last to go, the oldest of them first, as in the authors'
    code. The limit is the bank's capacity; it is kept before a new record, which they do after it.
    """

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        """One record."""
        means = store.column("mean_outcome")
        chosen, mean = lowest(store, np.where(np.isnan(means), np.inf, means))
        return Eviction(
            chosen,
            "never used" if mean == np.inf else f"mean utility {mean:.2f}",
            None if mean == np.inf else mean,
        )
