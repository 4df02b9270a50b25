"""Deletion by how the tasks went that a record was shown to (arXiv 2505.16067, section 4)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atommem.memory.retention import Eviction
from atommem.memory.rules import StoreState
from atommem.rules.rule import Rule


class History(Rule):
    """Give up what more than `n` tasks were shown, when their mean utility is at most `beta`.

    Args:
        n: The formula says more than n, the text and the code at least n: `at_least` chooses.
        beta: Highest mean utility of what goes.
        at_least: n tasks are enough.
    """

    def __init__(self, n: int = 5, beta: float = 0.5, at_least: bool = False) -> None:
        self._least, self._beta = n if at_least else n + 1, beta

    def sweep(self, store: StoreState) -> Sequence[Eviction]:
        """After every task, oldest first."""
        means = store.column("mean_outcome")
        # A running mean of 4 in 8 may be 0.5000000000000001.
        bad = (store.column("uses") >= self._least) & (means <= self._beta + 1e-9)
        places = np.flatnonzero(bad)
        harmful = sorted(zip(store.ids[places].tolist(), means[places].tolist(), strict=True))
        return [Eviction(entry_id, f"mean utility {mean:.2f}", mean) for entry_id, mean in harmful]
