"""TraceRetain: a weighted sum of eleven features of a record (arXiv 2606.29178); its lowest goes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from atommem.errors import ConfigError
from atommem.memory.columns import Numbers
from atommem.memory.retention import Eviction
from atommem.memory.rules import Candidate, StoreState
from atommem.rules.lru import last_used
from atommem.rules.rule import lowest

LINEAR = {
    "success": 2.0,
    "age": -0.5,
    "gap": -0.5,
    "frequency": 0.5,
    "specificity": 0.5,
    "redundancy": -1.0,
    "efficiency": 0.5,
    "utility": 1.0,
    "confidence": 0.25,
    "last_similarity": 0.25,
    "mean_similarity": 0.25,
}
"""Weights of the linear rule. The paper gives signs only: the sizes are ours."""
_MAY_LACK = (0, 6, 9, 10)
"""Features of which a record may have no number: its outcome, its steps, similarities before it was first shown."""


class TraceRetain:
    """Give up the record with the lowest score. The formulas of the features are ours: the paper gives none.

    Args:
        weights: A JSON file with weights by feature, as the cross-entropy method finds them
            (`atommem.experience.cross_entropy`); unset: `LINEAR`.
        most_steps: Of a task: a record of so many has a step efficiency of 0.
    """

    def __init__(self, weights: str | None = None, most_steps: int = 50) -> None:
        self._most_steps = most_steps
        found = dict(LINEAR)
        if weights is not None:
            try:
                found = json.loads(Path(weights).read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise ConfigError(f"traceretain: weights {weights!r} cannot be read ({error}).") from error
            if not isinstance(found, dict) or found.keys() != LINEAR.keys():
                raise ConfigError(f"traceretain: {weights} must have the weights {', '.join(LINEAR)}.")
        self._weights = np.array([float(found[name]) for name in LINEAR])

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        """The new record always comes in."""
        chosen, score = lowest(store, (self._weights @ features(store, self._most_steps)).round(9))
        return Eviction(chosen, f"score {score:.3g}", score)


def features(store: StoreState, most_steps: int = 50) -> Numbers:
    """The features of all records, shape (11, n), in the order of `LINEAR`."""
    now = max(1, store.step)
    shown, uses = store.column("shown"), store.column("uses")
    steps = store.column("steps")
    utility = store.column("mean_outcome")
    found = np.empty((len(LINEAR), len(store.ids)))
    found[0] = store.column("outcome")
    found[1] = (store.step - store.column("created")) / now
    found[2] = (store.step - last_used(store)) / now
    found[3] = np.log1p(shown) / np.log1p(now)
    found[4] = 1.0 - store.mean_cosines()
    found[5] = np.maximum(store.nearest(), 0.0)
    found[6] = 1.0 - steps / most_steps
    found[7] = np.where(np.isnan(utility), 0.5, utility)
    found[8] = uses / (uses + 3.0)
    found[9] = store.column("last_similarity")
    found[10] = store.column("mean_similarity")
    for row in _MAY_LACK:
        np.copyto(found[row], 0.0, where=np.isnan(found[row]))
    return found
