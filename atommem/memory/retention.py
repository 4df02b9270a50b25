"""Retention rules: what a create does when the store is full."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from atommem.memory.rules import Candidate, StoreState, make_rule


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
    """Decides which entry makes room for a new one: a class, one object a memory. Only `evict` is needed.

    What a rule has to remember belongs in the log: a restored memory makes its rule anew. When the store is large,
    rules are asked in a thread. It may have more methods (`atommem.rules.rule.Rule` has all of them, to derive from):

    - ``rate(candidate, store) -> float``: what the candidate is worth, asked at every create. It stands in the log with
      the create, and in the entry (`Entry.score`) until that is rewritten.
    - ``sweep(store) -> Sequence[Eviction]``: entries to give up at the end of a step (in a bank: a task), full or not.
    - ``observe(shown, outcome, step) -> None``: a question or task for which the entries `shown` were shown has ended
      so (in a bank NaN where nobody can tell how). Entries count it (`Entry.uses`, `Entry.mean_outcome`). Of what it
      keeps beyond that it is told again when a log is replayed.
    """

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        """Choose from a full store."""
        ...


def make_retention(name: str) -> RetentionRule:
    """The rule called `name`: an entry point of ``atommem.retention``, or ``package.module:Class``; see `make_rule`.

    Raises:
        ConfigError: There is no such rule.
    """
    rule: RetentionRule = make_rule("retention", name, "evict")
    return rule
