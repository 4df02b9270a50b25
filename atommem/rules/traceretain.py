"""TraceRetain: a weighted sum of eleven features of a record (arXiv 2606.29178); its lowest goes."""

from __future__ import annotations

import json
from math import isfinite, log1p
from pathlib import Path

import numpy as np

from atommem.errors import ConfigError
from atommem.memory.columns import Numbers, known_number
from atommem.memory.entries import Entry
from atommem.memory.retention import Eviction
from atommem.memory.rules import Candidate, StoreState
from atommem.rules.lru import when_used
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


class TraceRetain:
    """Give up the record with the lowest score. The formulas of the features are ours: the paper gives none.

    Args:
        weights: A JSON file with weights by feature, as the cross-entropy method finds them
            (`atommem.experience.cross_entropy`); unset: `LINEAR`.
        most_steps: Of a task: a record of so many has a step efficiency of 0.
    """

    def __init__(self, weights: str | None = None, most_steps: int = 50) -> None:
        if most_steps < 1:
            raise ConfigError(f"traceretain: most_steps is {most_steps}: give at least 1.")
        self._most_steps = most_steps
        found = dict(LINEAR)
        if weights is not None:
            try:
                found = json.loads(Path(weights).read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise ConfigError(
                    f"traceretain: weights {weights!r} cannot be read ({error})."
                ) from error
            if not isinstance(found, dict) or found.keys() != LINEAR.keys():
                raise ConfigError(
                    f"traceretain: {weights} must have the weights {', '.join(LINEAR)}."
                )
            if not all(
                isinstance(value, (int, float)) and isfinite(value) for value in found.values()
            ):
                raise ConfigError(
                    f"traceretain: {weights} has weights that are no numbers: {found}."
                )
        self._weights = {name: float(found[name]) for name in LINEAR}

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        """The new record always comes in."""
        chosen, score = lowest(store, self.scores(store))
        return Eviction(chosen, f"score {score:.3g}", score)

    def scores(self, store: StoreState) -> Numbers:
        """Weights times features of all records, shape (n,), rounded: sums in another order tie all the same."""
        weights, step, now = self._weights, store.step, max(1, store.step)
        found = store.computed(self._of_record) + (weights["age"] + weights["gap"]) * step / now
        found -= store.computed(self._steps) / now
        found += store.computed(_log_shown) * (weights["frequency"] / log1p(now))
        found += (1.0 - store.mean_cosines()) * weights["specificity"]
        found += np.maximum(store.nearest(), 0.0, dtype=float) * weights["redundancy"]
        return found.round(9)

    def _steps(self, record: Entry) -> float:
        """What age and gap subtract from the present step."""
        return self._weights["age"] * record.created + self._weights["gap"] * when_used(record)

    def _of_record(self, record: Entry) -> float:
        """The part of its score that depends on nothing else; what is not known of it counts 0, its utility .5."""
        weights = self._weights
        steps = known_number(record, "steps")
        return (
            weights["success"] * (record.outcome or 0.0)
            + weights["efficiency"] * (0.0 if steps is None else 1.0 - steps / self._most_steps)
            + weights["utility"] * (0.5 if record.mean_outcome is None else record.mean_outcome)
            + weights["confidence"] * (record.uses / (record.uses + 3.0))
            + weights["last_similarity"] * (record.last_similarity or 0.0)
            + weights["mean_similarity"] * (record.mean_similarity or 0.0)
        )


def _log_shown(record: Entry) -> float:
    return log1p(record.shown)
