"""What a memory holds and shows: entries with their statistics, where they came from, and the view of a step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Source:
    """Where an entry's text came from.

    Attributes:
        step: The step whose completion wrote it.
        piece: What the policy was reading then (a chunk's name, a URL), where the session says so.
        start, end: Span of characters in that piece.
    """

    step: int
    piece: str | None = None
    start: int | None = None
    end: int | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One record of the store, with what admission and retention rules need to know of it.

    It is never changed, only replaced: snapshots and forks share it. All numbers follow from the operation log.

    Attributes:
        id: Never changes and is never reused in its memory.
        text: What it says.
        created, updated: Steps at which it was created, and last written.
        shown: At how many steps it was shown to the policy.
        last_shown: The last of them, None before the first.
        last_similarity, best_similarity: Cosine to the query of its last showing, and the highest of all showings.
        source: Where its present text came from.
        outcome: How the episode that wrote its present text ended (its reward), None where that is not known.
    """

    id: int
    text: str
    created: int
    updated: int
    shown: int = 0
    last_shown: int | None = None
    last_similarity: float | None = None
    best_similarity: float | None = None
    source: Source | None = None
    outcome: float | None = None


@dataclass(frozen=True, slots=True)
class Retrieved:
    """An entry as it is shown: under the number `handle` (1 is the best match)."""

    handle: int
    entry_id: int
    text: str
    score: float


@dataclass(frozen=True, slots=True)
class MemoryView:
    """All that the policy sees of its memory at one step. A query without text is None: there is one way to say it."""

    scratchpad: str = ""
    query: str | None = None
    retrieved: tuple[Retrieved, ...] = ()
    size: int = 0
    capacity: int | None = None

    def __post_init__(self) -> None:
        if self.query == "":
            object.__setattr__(self, "query", None)
