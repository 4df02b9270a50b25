"""What a rule may have, with what it is without it: to derive from."""

from __future__ import annotations

from collections.abc import Sequence

from atommem.memory.admission import Accepted, Admission
from atommem.memory.columns import Numbers
from atommem.memory.retention import Eviction
from atommem.memory.rules import Candidate, StoreState


class Rule:
    """Admits everything, gives up nothing: what a rule does otherwise, it overrides.

    See `atommem.memory.admission.AdmissionRule` and `atommem.memory.retention.RetentionRule`.
    """

    def admit(self, candidate: Candidate, store: StoreState) -> Admission:
        """Before every create."""
        return Accepted()

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        """The store is full."""
        return Eviction(None, "the store is full")

    def sweep(self, store: StoreState) -> Sequence[Eviction]:
        """At the end of a step or task."""
        return ()

    def observe(self, shown: Sequence[int], outcome: float, step: int) -> None:
        """A question or task ended."""


def lowest(store: StoreState, scores: Numbers) -> tuple[int, float]:
    """The id with the lowest score and that score; of equal ones the older entry.

    Args:
        store: What is chosen from.
        scores: One for each of `store.ids`.
    """
    least = float(scores.min())
    return int(store.ids[scores == least].min()), least
