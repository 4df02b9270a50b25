"""Operations: the lines of the log from which a memory follows, and their JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from atommem.memory.entries import Entry, Source

POLICY, MEMORY, USER = "policy", "memory", "user"
"""Actors; a rule's is ``retention:NAME`` or ``admission:NAME``."""


class Outcome(StrEnum):
    """What became of one memory action."""

    APPLIED = "applied"
    REJECTED = "rejected"
    """A rule kept the new entry out: the store was full, or admission refused it. The reason names the rule."""
    MERGED = "merged"
    """An admission rule put the new entry into another one: the update that follows."""
    UNKNOWN_HANDLE = "unknown_handle"
    """The handle was not shown in the observation, or its entry is already gone."""
    DISABLED = "disabled"
    """The action is switched off."""


@dataclass(frozen=True, slots=True)
class Operation:
    """A line of the operation log: a change of the memory, an action that changed nothing, or a retrieval.

    Every memory action of a completion has exactly one line with the actor ``policy``. What rules did stands in lines
    of its own: an eviction is a delete before its create, a merge an update after it.

    Attributes:
        step: The step whose completion led to it.
        kind: ``create``, ``read``, ``update``, ``delete``, ``scratchpad``; ``retrieve``: what the next step shows;
            ``outcome``: how the writers of entries ended; ``observe``: how a question or task ended that entries were
            shown for.
        outcome: What became of it; everything but APPLIED changed nothing.
        entry_id: The entry that it created, changed or deleted.
        handle: The number under which the policy addressed the entry.
        before, after: The text that it replaced and wrote: an entry's, the scratchpad's, or (read) the query's.
        actor: Who did it: ``policy``, ``user``, ``memory`` (retrievals), ``retention:NAME``, ``admission:NAME``.
        reason: Why, in words: a rule's reason, or ``cut`` where the text was cut at its limit.
        score: The number on which a rule decided; of a create, what the entry was rated with.
        scores: Pairs of an entry's id and a number. Retrieve: cosine to the query, in the order of the handles;
            outcome: the reward of what wrote it; observe: of what it was shown for.
        source: Where the text came from, where the session said more than the step.
        details: Of the entry that a create makes, or an update changes, in an experience bank (`Entry.details`).
    """

    step: int
    kind: str
    outcome: Outcome = Outcome.APPLIED
    entry_id: int | None = None
    handle: int | None = None
    before: str | None = None
    after: str | None = None
    actor: str = POLICY
    reason: str = ""
    score: float | None = None
    scores: tuple[tuple[int, float], ...] = ()
    source: Source | None = None
    details: Mapping[str, Any] | None = None


def to_json(record: Operation | Entry | Source) -> dict[str, Any]:
    """The fields that differ from their defaults, as JSON values."""
    found: dict[str, Any] = {}
    for name, default in _DEFAULTS[type(record)]:
        value = getattr(record, name)
        if value != default:
            found[name] = to_json(value) if isinstance(value, Source) else value
    return found


def operation_from_json(record: Mapping[str, Any]) -> Operation:
    """The inverse of `to_json`. Raises TypeError, KeyError or ValueError where `record` is no operation."""
    values = _with_source(record)
    if "outcome" in values:
        values["outcome"] = Outcome(values["outcome"])
    if "scores" in values:
        values["scores"] = tuple(
            (int(entry_id), float(score)) for entry_id, score in values["scores"]
        )
    return Operation(**values)


def entry_from_json(record: Mapping[str, Any]) -> Entry:
    """The inverse of `to_json`, for an entry. Raises as `operation_from_json` does."""
    return Entry(**_with_source(record))


def _with_source(record: Mapping[str, Any]) -> dict[str, Any]:
    return {**record, "source": Source(**record["source"])} if "source" in record else dict(record)


_DEFAULTS = {
    kind: [(item.name, item.default) for item in fields(kind)]
    for kind in (Operation, Entry, Source)
}
