"""What a memory holds and shows: entries with their statistics, where they came from, and the view of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

BETWEEN = " | "
"""Of names of pieces: no address has it."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where an entry's text came from.

    Attributes:
        step: The step whose completion wrote it.
        piece: What the policy was reading then (a chunk's name, a URL), where the session says so. Of a
            search, the call and the addresses of what it found, with `BETWEEN` between them.
        start, end: Its span of characters in the text that was read in pieces, where the session says so.
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
        last_similarity, best_similarity, mean_similarity: Cosine to the query of its last showing, the highest of all
            showings, and their mean.
        source: Where its present text came from.
        outcome: How the episode that wrote its present text ended (its reward), None where that is not known.
        score: What its rule rated its present text with when it was written, None where no rule did.
        uses, mean_outcome: After how many questions or tasks that it was shown for it was told how they ended, and the
            mean of that.
        details: Of a record in an experience bank: JSON values beside its text (what was done, steps, ...).
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
    mean_similarity: float | None = None
    score: float | None = None
    uses: int = 0
    mean_outcome: float | None = None
    details: Mapping[str, Any] | None = None

    def shown_again(self, score: float, step: int) -> Self:
        """It after one more showing, at `step`, with a cosine of `score`."""
        best, mean = self.best_similarity, self.mean_similarity
        return replace(
            self,
            shown=self.shown + 1,
            last_shown=step,
            last_similarity=score,
            best_similarity=score if best is None else max(score, best),
            mean_similarity=score if mean is None else mean + (score - mean) / (self.shown + 1),
        )

    def used_again(self, outcome: float) -> Self:
        """It after one more question or task that it was shown for has ended so."""
        mean = 0.0 if self.mean_outcome is None else self.mean_outcome
        return replace(
            self, uses=self.uses + 1, mean_outcome=mean + (outcome - mean) / (self.uses + 1)
        )


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
