"""Retention rules: what a create does when the store is full."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from atommem.memory.rules import Candidate, StoreState, rule_class


@dataclass(frozen=True, slots=True)
class Eviction:
    """What a retention rule decided; reason and score go to the operation log.

    Attributes:
        entry_id: The entry to give up; None keeps them all and refuses the candidate.
        reason: Why, in a few words.
        score: The number that decided, where there is one.
    """

    entry_id: int | None
    reason: str
    score: float | None = None


class RetentionRule(Protocol):
    """Decides which entry makes room for a new one: a class that is made without arguments, one object a memory.

    What a rule has to remember belongs in the log: a restored memory makes its rule anew. When the store is large,
    rules are asked in a thread.
    """

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        """Choose from a full store."""
        ...


class Reject:
    """Discard the new entry (the paper's rule): the policy has to delete before it can create."""

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        """None, always."""
        return Eviction(None, "the store is full")


class FirstInFirstOut:
    """Give up the oldest entry. An update does not make it younger."""

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        """The first entry."""
        oldest = next(iter(store.entries.values()))
        return Eviction(oldest.id, f"oldest, of step {oldest.created}", oldest.created)


class LeastRecentlyUsed:
    """Give up the entry that has gone longest without being shown; of several, the oldest."""

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        """The entry with the smallest `Entry.last_shown`; one that was never shown counts from its creation."""
        used = {
            entry.id: entry.created if entry.last_shown is None else entry.last_shown
            for entry in store.entries.values()
        }
        chosen = min(used, key=used.__getitem__)
        return Eviction(chosen, f"unused since step {used[chosen]}", used[chosen])


OURS = (
    ("reject", "atommem.memory.retention:Reject"),
    ("fifo", "atommem.memory.retention:FirstInFirstOut"),
    ("lru", "atommem.memory.retention:LeastRecentlyUsed"),
)


def make_retention(name: str) -> RetentionRule:
    """The rule called `name`: ``reject``, ``fifo``, ``lru``, another's entry point, or ``package.module:Class``.

    Raises:
        ConfigError: There is no such rule.
    """
    rule: RetentionRule = rule_class("retention", name, OURS, "evict")()
    return rule
