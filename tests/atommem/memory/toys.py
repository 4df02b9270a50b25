"""Shared by the tests of the memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from atommem.config import MemoryConfig
from atommem.memory.log import POLICY, Operation
from atommem.memory.memory import WorkingMemory
from tests.fakes import WordEmbedder, WordTokenizer

CREATE, READ, UPDATE = "create", "read", "update"
DELETE, SCRATCHPAD = "delete", "scratchpad"
CUT_MARKER = " [cut]"


def memory(embedder: Any = None, **settings: Any) -> WorkingMemory:
    """Return a memory with its own word embedder, unless one is given."""
    config = MemoryConfig(**settings)
    return WorkingMemory(embedder or WordEmbedder(), WordTokenizer(), config, CUT_MARKER)


def texts(m: WorkingMemory) -> dict[int, str]:
    """Return the entries' texts by id."""
    return {entry.id: entry.text for entry in m.entries()}


def shown(m: WorkingMemory) -> list[tuple[int, str]]:
    """Return handles and texts of the view."""
    return [(item.handle, item.text) for item in m.view().retrieved]


def by_policy(operations: Iterable[Operation]) -> list[Operation]:
    """Return the operations of the policy."""
    return [operation for operation in operations if operation.actor == POLICY]


def state(m: WorkingMemory) -> Any:
    """Return everything that a memory holds, for comparison."""
    return m.contents.copy(), m.view(), m.log, m.vectors().rows.tolist()
