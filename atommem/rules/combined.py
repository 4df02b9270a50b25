"""Deletion by use or by utility (arXiv 2505.16067, section 4)."""

from __future__ import annotations

from collections.abc import Sequence

from atommem.memory.retention import Eviction
from atommem.memory.rules import StoreState
from atommem.rules.history import History
from atommem.rules.periodic import Periodic


class Combined(Periodic):
    """What `Periodic` or `History` would give up; options are theirs."""

    def __init__(
        self,
        period: int = 500,
        alpha: int = 0,
        n: int = 5,
        beta: float = 0.5,
        at_least: bool = False,
    ) -> None:
        super().__init__(period, alpha)
        self._history = History(n, beta, at_least)

    def sweep(self, store: StoreState) -> Sequence[Eviction]:
        """Each record once."""
        harmful = self._history.sweep(store)
        gone = {eviction.entry_id for eviction in harmful}
        return [
            *harmful,
            *(eviction for eviction in super().sweep(store) if eviction.entry_id not in gone),
        ]
