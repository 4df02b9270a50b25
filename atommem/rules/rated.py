"""Rules that rate a text once, when it is written, and give up the lowest rating."""

from __future__ import annotations

import numpy as np

from atommem.memory.retention import Eviction
from atommem.memory.rules import Candidate, StoreState
from atommem.rules.rule import lowest


class Rated:
    """Give up the entry with the lowest rating, or refuse the new one if its own is lower still.

    Of equal ratings the older entry goes. Entries that another rule let in are worth nothing until they are rewritten.
    """

    what = "rated"

    def rate(self, candidate: Candidate, store: StoreState) -> float:
        """What the text is worth."""
        raise NotImplementedError

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        """The lowest, by `Entry.score`."""
        ratings = store.column("score")
        chosen, rating = lowest(store, np.where(np.isnan(ratings), -np.inf, ratings))
        if candidate.score is not None and candidate.score < rating:
            return Eviction(
                None, f"{self.what} {candidate.score:.3g}, less than all entries", candidate.score
            )
        return Eviction(chosen, f"{self.what} {rating:.3g}", rating)
