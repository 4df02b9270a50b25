"""An upper reference for retention rules: keep the texts that most questions need."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from atommem.memory.rules import Candidate, StoreState
from atommem.rules.eviction import Rated


class GreedyOracle(Rated):
    """Keep the most evidence references that the store can hold.

    It is not a bound for questions that need several texts at once, which is maximum coverage.

    Args:
        needs: A JSON object or its file: text, or name of its source, to the number of questions
            that need it. Other texts are needed by none.
    """

    label = "needed by"

    def __init__(self, needs: str | Mapping[str, float]) -> None:
        if isinstance(needs, str):
            needs = json.loads(Path(needs).read_text(encoding="utf-8"))
        self._needs: Mapping[str, float] = needs  # type: ignore[assignment]

    def rate(self, candidate: Candidate, store: StoreState) -> float:
        needed = self._needs.get(candidate.text, 0.0)
        piece = candidate.source.piece
        return float(needed if piece is None else self._needs.get(piece, needed))
