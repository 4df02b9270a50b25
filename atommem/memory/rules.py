"""What admission and retention rules see, and how one is found by its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from atommem.embedding.embedder import Vectors
from atommem.errors import ConfigError
from atommem.memory.contents import Contents
from atommem.memory.entries import Entry, Source
from atommem.memory.index import VectorIndex
from atommem.plugins import find


@dataclass(frozen=True, eq=False)
class Candidate:
    """A new entry that a create asks for: its text (cut at its limit), the text's vector (dim,), and its source."""

    text: str
    vector: Vectors
    source: Source


class StoreState:
    """The store as a rule sees it, before the create. Nothing of it is to be changed.

    Attributes:
        step: The step whose completion is being applied.
        capacity: Most entries; None is unlimited.
        entries: All entries with their statistics by id, oldest first.
    """

    def __init__(self, contents: Contents, index: VectorIndex, step: int, capacity: int | None, seed: int) -> None:
        self.step = step
        self.capacity = capacity
        self.entries: Mapping[int, Entry] = MappingProxyType(contents.entries)
        self._index = index
        self._seed = (seed, contents.position)

    @cached_property
    def vectors(self) -> Vectors:
        """The entries' vectors in the order of `entries`: shape (n, dim), float32, unit norm (a copy)."""
        return self._index.vectors(self.entries)

    @cached_property
    def rng(self) -> np.random.Generator:
        """Random numbers that depend on the memory's seed and its place in the log: the same after a restore."""
        return np.random.default_rng(self._seed)

    def search(self, vector: Vectors, k: int) -> list[tuple[Entry, float]]:
        """The `k` entries most similar to a vector (dim,), best first, with their cosines."""
        return [(self.entries[entry_id], score) for entry_id, score in self._index.search(vector, k)]


@cache
def rule_class(setting: str, name: str, ours: tuple[tuple[str, str], ...], method: str) -> Any:
    """The class of a rule: one of `ours`, an entry point of the group ``atommem.SETTING``, or a dotted path.

    Args:
        setting: ``retention`` or ``admission``.
        name: What the setting says.
        ours: Names and dotted paths of the rules that we bring.
        method: What the rule must have.

    Raises:
        ConfigError: There is no such rule (the message lists those that there are), or it lacks the method.
    """
    found = find(f"atommem.{setting}", name, dict(ours))
    if not callable(getattr(found, method, None)):
        raise ConfigError(f"{setting} is {name!r}, which is {found!r}: give a class with a method {method!r}.")
    return found
