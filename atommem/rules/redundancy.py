"""What says the same as another goes first."""

from __future__ import annotations

from atommem.memory.retention import Eviction
from atommem.memory.rules import Candidate, StoreState
from atommem.rules.rule import lowest


class Redundancy:
    """Give up the entry with the highest cosine to another one: of such a pair, the older."""

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        """The new entry stands for what is like it: it always comes in."""
        chosen, score = lowest(store, -store.nearest().astype(float))
        return Eviction(chosen, f"cosine {-score:.3f} to another entry", -score)
