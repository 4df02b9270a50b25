"""Retention rules: what a create does when the store is full."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from atommem.episode import Entry
from atommem.errors import ConfigError


class RetentionRule(Protocol):
    """Decides which entry makes room for a new one. `Store` takes any object with this method."""

    def evict(self, entries: Sequence[Entry]) -> int | None:
        """Choose from a full store.

        Args:
            entries: All entries, oldest first. They are not to be changed.

        Returns:
            The id of the entry to give up, or None to discard the new one.
        """
        ...


class Reject:
    """Discard the new entry (the paper's rule): the policy has to delete before it can create."""

    def evict(self, entries: Sequence[Entry]) -> int | None:
        """None, always."""
        return None


class FirstInFirstOut:
    """Give up the oldest entry. An update does not make it younger."""

    def evict(self, entries: Sequence[Entry]) -> int | None:
        """The id of the first entry."""
        return entries[0].id


class LeastRecentlyUsed:
    """Give up the entry that has gone longest without being shown; of several, the oldest."""

    def evict(self, entries: Sequence[Entry]) -> int | None:
        """The id with the smallest `Entry.used`."""
        return min(entries, key=lambda entry: (entry.used, entry.id)).id


_RULES: dict[str, type[RetentionRule]] = {
    "reject": Reject,
    "fifo": FirstInFirstOut,
    "lru": LeastRecentlyUsed,
}


def make_retention(name: str) -> RetentionRule:
    """The rule called `name`: ``reject``, ``fifo`` or ``lru``.

    Raises:
        ConfigError: There is no such rule.
    """
    if name not in _RULES:
        raise ConfigError(f"retention is {name!r}: give one of {', '.join(_RULES)}.")
    return _RULES[name]()
