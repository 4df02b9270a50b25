"""Long texts stay."""

from __future__ import annotations

from atommem.memory.rules import Candidate, StoreState
from atommem.rules.rated import Rated


class Length(Rated):
    """Keep the texts of most words: the control that published admission scores do not beat."""

    what = "words"

    def rate(self, candidate: Candidate, store: StoreState) -> float:
        """Words between white space."""
        return len(candidate.text.split())
