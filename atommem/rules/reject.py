"""Refuse what is new."""

from __future__ import annotations

from atommem.memory.retention import Eviction
from atommem.memory.rules import Candidate, StoreState


class Reject:
    """Discard the new entry (the paper's rule): the policy has to delete before it can create."""

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        """None, always."""
        return Eviction(None, "the store is full")
