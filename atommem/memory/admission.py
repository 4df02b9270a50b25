"""Admission rules: what stands before every create."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from atommem.memory.rules import Candidate, StoreState, rule_class


@dataclass(frozen=True, slots=True)
class Accepted:
    """The candidate becomes an entry, if the store has room or retention makes some."""


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
    """Decides on every create: a class that is made without arguments, one object a memory (see `RetentionRule`)."""

    def admit(self, candidate: Candidate, store: StoreState) -> Admission:
        """Choose; the store may be full, which is retention's business."""
        ...


class AcceptAll:
    """Every create stands: what is kept is the policy's decision."""

    def admit(self, candidate: Candidate, store: StoreState) -> Admission:
        """`Accepted`, always."""
        return Accepted()


OURS = (("accept", "atommem.memory.admission:AcceptAll"),)


def make_admission(name: str) -> AdmissionRule:
    """The rule called `name`: ``accept``, another's entry point, or ``package.module:Class``.

    Raises:
        ConfigError: There is no such rule.
    """
    rule: AdmissionRule = rule_class("admission", name, OURS, "admit")()
    return rule
