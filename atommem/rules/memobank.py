"""MemoBankRL's case bank: duplicates and broken failures stay out, a full bank is pruned by utility."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from atommem.errors import ConfigError
from atommem.memory.admission import Accepted, Admission, Refused
from atommem.memory.columns import Numbers
from atommem.memory.retention import Eviction
from atommem.memory.rules import Candidate, StoreState
from atommem.rules.rule import Rule, lowest


class MemoBank(Rule):
    """Set it as admission and as retention: each does its part.

    Utility (its equation 1) is .7 c exp(-.02 a) / a + .3 r, with c retrievals, a = max(1, t - created) and r = 1 of a
    success. With no retrievals, as in the published run, that is the label: pruning sorts by it.

    Args:
        similarity: A query with a higher cosine to a record is a duplicate.
        sample: Records that it is compared with, drawn at random.
        keep: Share of the capacity that pruning leaves.
        least_positive: If fewer successes stay, so many come back, whatever the share.
        newest_first: Of equal utilities the newest stay, not the oldest (as in a stable sort; the paper is silent).
        prune_above: Prune when capacity is exceeded, not when it is reached.
    """

    def __init__(
        self,
        similarity: float = 0.85,
        sample: int = 200,
        keep: float = 0.75,
        least_positive: int = 200,
        newest_first: bool = False,
        prune_above: bool = False,
    ) -> None:
        if sample < 1 or not 0 <= keep <= 1:
            raise ConfigError(
                f"memobank: sample is {sample}, keep {keep}: give at least 1, and a share from 0 to 1."
            )
        self._similarity, self._sample, self._keep = similarity, sample, keep
        self._least_positive, self._newest_first, self._prune_above = (
            least_positive,
            newest_first,
            prune_above,
        )

    def admit(self, candidate: Candidate, store: StoreState) -> Admission:
        """Its algorithms 1 and 2."""
        if candidate.outcome == 0 and (
            problem := broken_failure(candidate.text, candidate.details or {})
        ):
            return Refused(f"invalid failure: {problem}")
        size = len(store.ids)
        if not size:
            return Accepted()
        # Places by age: rows move when records go, and would not be the same in a bank that was opened again.
        by_age = np.argsort(store.ids)
        places = by_age[store.rng.choice(size, min(self._sample, size), replace=False)]
        nearest = float(store.cosines(candidate.vector)[places].max())
        return (
            Refused("duplicate", nearest)
            if nearest > self._similarity
            else Accepted("no duplicate", nearest)
        )

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        """The lowest utility: for a bank that is full before it could be pruned."""
        chosen, utility = lowest(store, self._utilities(store))
        return Eviction(chosen, f"utility {utility:.3g}", utility)

    def sweep(self, store: StoreState) -> Sequence[Eviction]:
        """Prune a bank that has reached its capacity."""
        size, capacity = len(store.ids), store.capacity
        if capacity is None or size < capacity + self._prune_above:
            return ()
        utilities = self._utilities(store)
        age = -store.ids if self._newest_first else store.ids
        order = np.lexsort((age, -utilities))
        kept, pruned = order[: int(self._keep * capacity)], order[int(self._keep * capacity) :]
        positive = store.column("outcome") > 0
        missing = self._least_positive - int(positive[kept].sum())
        restored = {int(place) for place in pruned[positive[pruned]][: max(0, missing)]}
        return [
            Eviction(
                int(store.ids[place]), f"pruned: utility {utilities[place]:.3g}", utilities[place]
            )
            for place in pruned.tolist()
            if place not in restored
        ]

    def _utilities(self, store: StoreState) -> Numbers:
        age = np.maximum(1.0, store.step - store.column("created"))
        reward = np.nan_to_num(store.column("outcome")) > 0
        return 0.7 * store.column("shown") * np.exp(-0.02 * age) / age + 0.3 * reward


def broken_failure(query: str, details: Any) -> str:
    """Why a failed case teaches nothing, by algorithm 2; empty where it may."""
    if len(query.strip()) < 10:
        return "its query is shorter than 10 characters"
    try:
        plan = json.loads(details.get("execution", ""))
    except ValueError:
        return "its plan is no JSON"
    steps = plan.get("plan") if isinstance(plan, dict) else None
    if not isinstance(steps, list) or not steps:
        return "its plan has no steps"
    if not any(isinstance(step, dict) and "description" in step for step in steps):
        return "no step of its plan has a description"
    return ""
