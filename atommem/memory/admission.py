"""Admission rules: what stands before every create."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from atommem.memory.rules import Candidate, StoreState, make_rule


@dataclass(frozen=True, slots=True)
class Accepted:
    """The candidate becomes an entry, if the store has room or retention makes some.

    Reason and score go to the operation log, and the score to the entry (`Entry.score`), unless the retention rule
    rates entries itself.
    """

    reason: str = ""
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The candidate is discarded; reason and score go to the operation log."""

    reason: str
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Merged:
    """The candidate becomes part of an entry; reason and score go to the operation log.

    Attributes:
        entry_id: The entry that is updated.
        reason: Why, in a few words.
        text: What the entry says afterwards; None is the candidate's text.
        score: The number that decided, where there is one.
    """

    entry_id: int
    reason: str
    text: str | None = None
    score: float | None = None


Admission = Accepted | Refused | Merged


class AdmissionRule(Protocol):
    """Decides on every create: a class, one object a memory (see `RetentionRule`).

    A rule that has to ask somebody else has ``async def prepare(self, texts)`` as well: it is awaited before the
    actions of a completion are applied, with the texts of all their creates, and keeps what it learns for `admit`.
    """

    def admit(self, candidate: Candidate, store: StoreState) -> Admission:
        """Choose; the store may be full, which is retention's business."""
        ...


class AcceptAll:
    """Every create stands: what is kept is the policy's decision."""

    def admit(self, candidate: Candidate, store: StoreState) -> Admission:
        """`Accepted`, always."""
        return Accepted()


def make_admission(name: str) -> AdmissionRule:
    """The rule called `name`: an entry point of ``atommem.admission``, or ``package.module:Class``; see `make_rule`.

    Raises:
        ConfigError: There is no such rule.
    """
    rule: AdmissionRule = make_rule("admission", name, "admit")
    return rule
