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


OURS = (
    ("reject", "atommem.rules.reject:Reject"),
    ("fifo", "atommem.rules.fifo:FirstInFirstOut"),
    ("lru", "atommem.rules.lru:LeastRecentlyUsed"),
    ("lfu", "atommem.rules.lfu:LeastFrequentlyUsed"),
    ("random", "atommem.rules.chance:Chance"),
    ("ebbinghaus", "atommem.rules.ebbinghaus:Ebbinghaus"),
    ("redundancy", "atommem.rules.redundancy:Redundancy"),
    ("novelty", "atommem.rules.novelty:Novelty"),
    ("length", "atommem.rules.length:Length"),
    ("type_prior", "atommem.rules.type_prior:TypePrior"),
    ("linear", "atommem.rules.linear:Linear"),
    ("oracle", "atommem.rules.oracle:GreedyOracle"),
    ("failures_first", "atommem.rules.failures_first:FailuresFirst"),
    ("periodic", "atommem.rules.periodic:Periodic"),
    ("history", "atommem.rules.history:History"),
    ("combined", "atommem.rules.combined:Combined"),
    ("constrained", "atommem.rules.constrained:Constrained"),
    ("traceretain", "atommem.rules.traceretain:TraceRetain"),
    ("memobank", "atommem.rules.memobank:MemoBank"),
)


def make_retention(name: str) -> RetentionRule:
    """The rule called `name`: one of `OURS`, another's entry point, or ``package.module:Class``; see `make_rule`.

    Raises:
        ConfigError: There is no such rule.
    """
    rule: RetentionRule = make_rule("retention", name, OURS, "evict")
    return rule
