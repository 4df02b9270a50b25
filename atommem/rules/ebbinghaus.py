"""Forgetting by a curve: what was not used for long, and seldom before, goes first."""

from __future__ import annotations

import numpy as np

from atommem.memory.retention import Eviction
from atommem.memory.rules import Candidate, StoreState
from atommem.rules.lru import last_used
from atommem.rules.rule import lowest


class Ebbinghaus:
    """Give up the entry with the lowest retention exp(-(t - last use) / (1 + uses)).

    No paper gives the strength's formula; this is MemoryBank's curve with a strength that grows by one with every use.
    """

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        """Compares exponents: their exponentials run out of digits."""
        exponents = (last_used(store) - store.step) / (1 + store.column("shown"))
        chosen, exponent = lowest(store, exponents)
        retained = float(np.exp(exponent))
        return Eviction(chosen, f"retention {retained:.3g}", retained)
