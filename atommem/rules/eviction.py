"""Retention rules that go by age, use or similarity; of ties the oldest entry goes."""

from __future__ import annotations

import numpy as np

from atommem.memory.log import Entry
from atommem.memory.rules import Candidate, Eviction, Numbers, Rule, StoreState, lowest


class Reject(Rule):
    """Refuse the new entry (the paper's rule): the policy must delete before it creates."""

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        return Eviction(None, "the store is full")


class FirstInFirstOut(Rule):
    """Evict the oldest entry; an update does not make it younger."""

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        oldest = next(iter(store.entries.values()))
        return Eviction(oldest.id, f"oldest, of step {oldest.created}", oldest.created)


def step_of_last_use(entry: Entry) -> int:
    """Return the step at which an entry was last shown, or else created."""
    return entry.created if entry.last_shown is None else entry.last_shown


def steps_of_last_use(store: StoreState) -> Numbers:
    """Return `step_of_last_use` of each entry, shape (n,)."""
    return np.array([step_of_last_use(entry) for entry in store.entries.values()], dtype=float)


class LeastRecentlyUsed(Rule):
    """Evict the entry that has not been shown for the longest time."""

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        chosen, step = lowest(store, steps_of_last_use(store))
        return Eviction(chosen, f"unused since step {step:.0f}", step)


class LeastFrequentlyUsed(Rule):
    """Evict the entry that was shown at the fewest steps."""

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        chosen, shown = lowest(store, store.column("shown"))
        return Eviction(chosen, f"shown {shown:.0f} times", shown)


class Ebbinghaus(Rule):
    """Evict the entry with the lowest retention exp(-(t - last use) / (1 + uses)).

    This is MemoryBank's curve. No paper gives the strength's formula; here it grows by one a use.
    """

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        # Exponents are compared, because their exponentials run out of digits.
        exponents = (steps_of_last_use(store) - store.step) / (1 + store.column("shown"))
        chosen, exponent = lowest(store, exponents)
        retained = float(np.exp(exponent))
        return Eviction(chosen, f"retention {retained:.3g}", retained)


class RandomEviction(Rule):
    """Evict at random, the new entry included: the baseline of every rule."""

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        place = int(store.rng.integers(len(store.ids) + 1))
        chosen = None if place == len(store.ids) else int(store.ids[place])
        return Eviction(chosen, "by chance")


class Redundancy(Rule):
    """Evict the entry with the highest cosine to another one, the older of such a pair."""

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        chosen, score = lowest(store, -store.nearest().astype(float))
        return Eviction(chosen, f"cosine {-score:.3f} to another entry", -score)


class FailuresFirst(Rule):
    """Evict the oldest record of a failed task, or else the oldest.

    A control for scores that were learned on streams with failures.

    Args:
        below: A task with a lower outcome failed; an unknown outcome is not a failure.
    """

    def __init__(self, below: float = 0.5) -> None:
        self._below = below

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        failed = store.column("outcome") < self._below
        age = store.column("created")
        chosen, _ = lowest(store, np.where(failed, -np.inf, age))
        reason = "oldest failure" if failed.any() else "oldest, no failures"
        return Eviction(chosen, reason, store.entries[chosen].created)
