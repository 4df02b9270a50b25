"""Deletion by how often a record was used in a period (arXiv 2505.16067, section 4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from atommem.errors import ConfigError
from atommem.memory.retention import Eviction
from atommem.memory.rules import StoreState
from atommem.rules.rule import Rule


class Periodic(Rule):
    """At the end of each period, give up what tasks were shown at most `alpha` times in it.

    Records that came within the period are spared (so does their code; the paper does not say).

    Args:
        period: Tasks.
        alpha: Most retrievals of what goes.
    """

    def __init__(self, period: int = 500, alpha: int = 0) -> None:
        if period < 1:
            raise ConfigError(f"periodic: period is {period}: give at least 1 task.")
        self._period, self._alpha = period, alpha
        self._number, self._shown = 0, Counter[int]()

    def observe(self, shown: Sequence[int], outcome: float, step: int) -> None:
        """Counts, and begins anew with each period."""
        self._begin((step - 1) // self._period)
        self._shown.update(shown)

    def sweep(self, store: StoreState) -> Sequence[Eviction]:
        """At the last task of a period."""
        if store.step < 1 or store.step % self._period:
            return ()
        self._begin((store.step - 1) // self._period)  # nothing may have been shown in all of it
        old = np.sort(store.ids[store.column("created") <= store.step - self._period])
        used = [(entry_id, self._shown[entry_id]) for entry_id in old.tolist()]
        return [
            Eviction(entry_id, f"used {times} times in {self._period} tasks", times)
            for entry_id, times in used
            if times <= self._alpha
        ]

    def _begin(self, number: int) -> None:
        if number != self._number:
            self._number, self._shown = number, Counter()
