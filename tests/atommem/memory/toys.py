"""What the tests of the memory share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from atommem.config import MemoryConfig
from atommem.memory.operations import POLICY, Operation
from atommem.memory.working import WorkingMemory
from tests.fakes import WordEmbedder, WordTokenizer

CREATE, READ, UPDATE = "create", "read", "update"
DELETE, SCRATCHPAD = "delete", "scratchpad"
CUT_MARKER = " [cut]"


def memory(embedder: Any = None, **settings: Any) -> WorkingMemory:
    """A memory with an embedder of its own, unless one is given."""
    return WorkingMemory(
        embedder or WordEmbedder(), WordTokenizer(), MemoryConfig(**settings), CUT_MARKER
    )


def texts(m: WorkingMemory) -> dict[int, str]:
    """The entries' texts by id."""
    return {entry.id: entry.text for entry in m.entries()}


def shown(m: WorkingMemory) -> list[tuple[int, str]]:
    """Handles and texts of the view."""
    return [(item.handle, item.text) for item in m.view().retrieved]


def by_policy(operations: Iterable[Operation]) -> list[Operation]:
    """What the policy itself did."""
    return [operation for operation in operations if operation.actor == POLICY]
