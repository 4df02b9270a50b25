"""Retention rules against hand-made stores."""

from __future__ import annotations

import pytest

from atommem.config import RETENTION_RULES
from atommem.episode import Entry
from atommem.errors import ConfigError
from atommem.memory.retention import make_retention


def entry(entry_id: int, used: int) -> Entry:
    return Entry(entry_id, "text", created=0, updated=0, used=used)


@pytest.mark.parametrize(
    ("name", "used", "evicted"),
    [
        ("reject", [5, 1, 3], None),
        ("fifo", [5, 1, 3], 10),
        ("lru", [5, 1, 3], 11),
        ("lru", [5, 3, 3], 11),
        ("lru", [2, 2, 2], 10),
    ],
)
def test_rules(name: str, used: list[int], evicted: int | None) -> None:
    entries = [entry(10 + index, step) for index, step in enumerate(used)]
    assert make_retention(name).evict(entries) == evicted


def test_every_configurable_rule_can_be_made() -> None:
    for name in RETENTION_RULES:
        make_retention(name)


def test_an_unknown_rule_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="'random': give one of reject, fifo, lru"):
        make_retention("random")
