"""How like two inputs are, for the agents of arXiv 2505.16067; each is what `Bank.retrieve` takes, or None for vectors.

A query is what the row says: for these two a JSON object of numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from atommem.errors import DataError
from atommem.experience.bank import Similarity
from atommem.memory.columns import Numbers
from atommem.memory.rules import StoreState

KEYS = {"ego": 1.0, "goal": 10.0, "history": 1.0}
"""AgentDriver's, with the weights of its code."""


def relative_change(discrete: frozenset[str] = frozenset()) -> Similarity:
    """CIC-IoT's: 1 - the mean over features of |a - b| / max(|a|, |b|); of discrete ones 0 if equal, else 1."""

    def one(a: Mapping[str, Any], b: Mapping[str, Any]) -> float:
        changes = []
        for name, value in a.items():
            other = b[name]
            if name in discrete:
                changes.append(float(value != other))
            else:
                most = max(abs(value), abs(other))
                changes.append(abs(value - other) / most if most else 0.0)
        return 1 - float(np.mean(changes))

    return _of(one)


def three_keys(weights: Mapping[str, float] | None = None) -> Similarity:
    """AgentDriver's: exp(-sum over keys of weight x squared distance)."""
    weighed = weights or KEYS

    def one(a: Mapping[str, Any], b: Mapping[str, Any]) -> float:
        distances = (w * float(np.sum((np.asarray(a[k]) - np.asarray(b[k])) ** 2)) for k, w in weighed.items())
        return float(np.exp(-sum(distances)))

    return _of(one)


SIMILARITIES: dict[str, Callable[[], Similarity | None]] = {
    "text": lambda: None,
    "keys": three_keys,
    "relative": relative_change,
}
"""EHRAgent's is the cosine of text embeddings: the bank's own."""


def _of(one: Callable[[Mapping[str, Any], Mapping[str, Any]], float]) -> Similarity:
    def similarity(query: str, store: StoreState) -> Numbers:
        asked = _numbers(query)
        try:
            return np.array([one(asked, _numbers(store.entries[int(i)].text)) for i in store.ids])
        except (KeyError, TypeError) as error:
            raise DataError(f"inputs of the stream do not have the same fields ({error}): {query[:200]}") from error

    return similarity


@lru_cache(maxsize=100_000)
def _numbers(query: str) -> Mapping[str, Any]:
    try:
        found = json.loads(query)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise DataError(f"this similarity needs inputs that are JSON objects: {query[:200]!r}")
    return found
