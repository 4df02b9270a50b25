"""What was new when it came stays."""

from __future__ import annotations

from atommem.memory.rules import Candidate, StoreState
from atommem.rules.rated import Rated


class Novelty(Rated):
    """Keep what was least like anything in the store when it was written: 1 - its highest cosine."""

    what = "novelty"

    def rate(self, candidate: Candidate, store: StoreState) -> float:
        """1 where there is nothing to compare with."""
        return novelty(candidate, store)


def novelty(candidate: Candidate, store: StoreState) -> float:
    """1 - the highest cosine of a text to an entry that it does not replace; 1 where there is none."""
    others = store.cosines(candidate.vector)[store.ids != (candidate.replaces or 0)]
    return 1.0 - float(others.max()) if len(others) else 1.0
