"""Similarities of inputs for the agents of arXiv 2505.16067, as `Bank.retrieve` takes them.

Queries of these two are JSON objects.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from atommem.errors import DataError
from atommem.memory.rules import Numbers, StoreState
from papers.experience import Similarity

KEYS = {"ego": 1.0, "goal": 10.0, "history": 1.0}
"""AgentDriver's, with the weights of its code."""


def relative_change(a: Mapping[str, Any], b: Mapping[str, Any]) -> float:
    """Return CIC-IoT's: 1 - the mean relative change; texts are equal or not."""
    changes = []
    for name, value in a.items():
        if isinstance(value, str):
            changes.append(float(value != b[name]))
        else:
            most = max(abs(value), abs(b[name]))
            changes.append(abs(value - b[name]) / most if most else 0.0)
    return 1 - float(np.mean(changes))


def three_keys(a: Mapping[str, Any], b: Mapping[str, Any]) -> float:
    """AgentDriver's: exp(-sum over keys of weight x squared distance)."""
    distances = (
        w * float(np.sum((np.asarray(a[k]) - np.asarray(b[k])) ** 2)) for k, w in KEYS.items()
    )
    return float(np.exp(-sum(distances)))


def _of(one: Callable[[Mapping[str, Any], Mapping[str, Any]], float]) -> Similarity:
    def similarity(query: str, store: StoreState) -> Numbers:
        asked = _numbers(query)
        try:
            return np.array([one(asked, _numbers(store.entries[int(i)].text)) for i in store.ids])
        except (KeyError, TypeError) as error:
            raise DataError(
                f"inputs of the stream do not have the same fields ({error}): {query[:200]}"
            ) from error

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


SIMILARITIES: Mapping[str, Similarity | None] = {
    "text": None,
    "keys": _of(three_keys),
    "relative": _of(relative_change),
}
"""EHRAgent's is the cosine of text embeddings: the bank's own."""
