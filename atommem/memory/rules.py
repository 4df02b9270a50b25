"""What admission and retention rules see, and how one is found by its name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from atommem.embedding.embedder import Vectors
from atommem.errors import ConfigError
from atommem.memory.columns import Columns, Numbers
from atommem.memory.entries import Entry, Source
from atommem.memory.index import Ids, VectorIndex
from atommem.plugins import find

_DIGITS = 5


@dataclass(frozen=True, eq=False)
class Candidate:
    """A new entry that a create asks for.

    Attributes:
        text: Cut at its limit.
        vector: The text's, shape (dim,).
        source: Where it comes from.
        score: What the rule rated it with (`RetentionRule.rate`, or the score of `Accepted`), None before that.
        replaces: The entry whose text it will be; None of a create.
        outcome: Of a record of a bank: how its task ended.
        details: Of a record of a bank (`Entry.details`).
    """

    text: str
    vector: Vectors
    source: Source
    score: float | None = None
    replaces: int | None = None
    outcome: float | None = None
    details: Mapping[str, Any] | None = None


class StoreState:
    """A store as a rule sees it: an episode's memory before a create, or an experience bank. It is not to be changed.

    Everything that comes as an array, or as rows of one, has the order of `ids`, which is no order of age.

    Attributes:
        step: The step whose completion is being applied; in a bank, the number of the task.
        capacity: Most entries; None is unlimited.
        entries: All entries with their statistics by id, oldest first.
    """

    def __init__(
        self,
        entries: Mapping[int, Entry],
        index: VectorIndex,
        columns: Callable[[], Columns],
        step: int,
        capacity: int | None,
        seed: tuple[int, ...],
    ) -> None:
        self.step = step
        self.capacity = capacity
        self.entries: Mapping[int, Entry] = MappingProxyType(entries)
        self._index, self._columns, self._seed = index, columns, seed

    @property
    def ids(self) -> Ids:
        """The ids of the entries, shape (n,)."""
        return self._index.ids

    @cached_property
    def vectors(self) -> Vectors:
        """The entries' vectors: shape (n, dim), float32, unit norm (a copy)."""
        return self._index.rows()

    @cached_property
    def rng(self) -> np.random.Generator:
        """Random numbers that depend on the memory's seed and its place in the log: the same after a restore.

        The seed is the episode's own (`session.Agent.new_memory`).
        """
        return np.random.default_rng(self._seed)

    def column(self, name: str) -> Numbers:
        """A numeric field of the entries (`created`, `last_shown`, ...): shape (n,), NaN for None."""
        return self._columns().column(name)

    def computed(self, function: Callable[[Entry], float]) -> Numbers:
        """What a function says of each entry alone: shape (n,). It is kept until the entry changes, as long as the
        same function asks: give a function of a module, or a method of the rule."""
        return self._columns().computed(function)

    def nearest(self) -> Vectors:
        """The highest cosine of each entry to another: shape (n,), -1 where there is no other; rounded as `cosines`."""
        return self._columns().neighbours.nearest().round(_DIGITS)

    def mean_cosines(self) -> Numbers:
        """The mean cosine of each entry to the others: shape (n,), 0 where there is no other; rounded as `cosines`."""
        return self._columns().neighbours.mean().round(_DIGITS)

    def cosines(self, vector: Vectors) -> Vectors:
        """The cosine of a vector (dim,) to every entry: shape (n,), rounded: last bits depend on the order of rows."""
        return self._index.cosines(vector).round(_DIGITS)

    def search(self, vector: Vectors, k: int) -> list[tuple[Entry, float]]:
        """The `k` entries most similar to a vector (dim,), best first, with their cosines."""
        return [
            (self.entries[entry_id], score) for entry_id, score in self._index.search(vector, k)
        ]


def make_rule(setting: str, name: str, method: str) -> Any:
    """The rule that a setting names: an entry point of the group ``atommem.SETTING``, or a dotted path.

    Args:
        setting: ``retention`` or ``admission``.
        name: What the setting says: ``NAME``, or with options ``NAME(option=value, ...)``.
        method: What the rule must have.

    Raises:
        ConfigError: There is no such rule (the message lists those that there are), it lacks the method, or it does
            not take the options.
    """
    found = _OPTIONS.fullmatch(name.strip())
    plain, written = (found["name"], found["options"]) if found else (name, "")
    rule_class = _rule_class(setting, plain, method)
    options = [part.strip() for part in written.split(",") if part.strip()]
    names = [part.partition("=")[0].strip() for part in options]
    if len(set(names)) < len(names) or not all("=" in part for part in options):
        raise ConfigError(
            f"{setting}={name}: write options as NAME(option=value, option=value), each once."
        )
    from atommem.arguments import Parser

    parser = Parser(f"{setting}={name}")
    parser.add_class_arguments(rule_class, fail_untyped=False)
    values = [part.partition("=")[2].strip() for part in options]
    flags = [f"--{key}={value}" for key, value in zip(names, values, strict=True)]
    try:
        return rule_class(**vars(parser.parse_args(flags)))
    except ConfigError as error:
        known = ", ".join(inspect.signature(rule_class).parameters) or "none"
        raise ConfigError(f"{setting}={name}: {error} Its options: {known}.") from error


_OPTIONS = re.compile(r"(?P<name>[^()]+)\((?P<options>[^()]*)\)")


@cache
def _rule_class(setting: str, name: str, method: str) -> Any:
    found = find(f"atommem.{setting}", name)
    if not callable(getattr(found, method, None)):
        raise ConfigError(
            f"{setting} is {name!r}, which is {found!r}: give a class with a method {method!r}."
        )
    return found
