"""By chance: what every rule has to beat."""

from __future__ import annotations

import numpy as np

from atommem.memory.retention import Eviction
from atommem.memory.rules import Candidate, StoreState


class Chance:
    """Give up an entry by chance, the new one among them."""

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        """One of them, each with the same chance."""
        place = int(store.rng.integers(len(store.ids) + 1))
        if place == len(store.ids):
            return Eviction(None, "by chance")
        return Eviction(int(np.sort(store.ids)[place]), "by chance")
