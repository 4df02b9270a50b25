"""Admission and retention rules: what they see, what they decide, and how one is found by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from inspect import signature
from math import nan
from typing import Any

import numpy as np
import numpy.typing as npt

from atommem.arguments import Parser
from atommem.embedding.embedder import Vectors
from atommem.errors import ConfigError
from atommem.memory.log import Entry, Operation, Source
from atommem.memory.store import Ids, VectorStore, best
from atommem.plugins import find

Numbers = npt.NDArray[np.float64]

_DIGITS = 5


@dataclass(frozen=True, eq=False)
class Candidate:
    """A text that is about to become an entry."""

    text: str
    vector: Vectors
    source: Source
    score: float | None = None  # its rating by `Rule.rate` or `Accepted.score`
    replaces: int | None = None  # for an update, the id of the entry
    outcome: float | None = None  # of a record of an experience bank
    details: Mapping[str, Any] | None = None  # of such a record


@dataclass(frozen=True, slots=True)
class Accepted:
    """The candidate becomes an entry with this score, if the retention rule finds room."""

    reason: str = ""
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The candidate is discarded."""

    reason: str
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Merged:
    """The candidate replaces the text of an entry."""

    entry_id: int
    reason: str
    score: float | None = None


Admission = Accepted | Refused | Merged


@dataclass(frozen=True, slots=True)
class Eviction:
    """The entry to delete; None keeps all entries and refuses the candidate."""

    entry_id: int | None
    reason: str
    score: float | None = None


@dataclass(frozen=True, eq=False)
class StoreState:
    """A store as a rule sees it: read-only, with arrays in the order of `ids`."""

    entries: Mapping[int, Entry]  # by id, oldest first
    store: VectorStore  # their vectors, but for the `changes` that are not applied yet
    step: int  # that is being applied; in a bank, the number of the task
    capacity: int | None  # most entries; None is unlimited
    seed: tuple[int, ...]  # of `rng`: the memory's seed and its position in the log
    changes: Mapping[int, Vectors | None] = field(default_factory=dict)

    @cached_property
    def ids(self) -> Ids:
        """The ids of the entries, oldest first: shape (n,)."""
        return np.fromiter(self.entries, dtype=np.int64, count=len(self.entries))

    @cached_property
    def vectors(self) -> Vectors:
        """The entries' unit vectors, shape (n, dim)."""
        rows = np.empty((len(self.ids), self.store.dim), dtype=np.float32)
        new = np.isin(self.ids, np.fromiter(self.changes, np.int64))
        rows[~new] = self.store.rows(self.ids[~new])
        for place in np.flatnonzero(new):
            rows[place] = self.changes[int(self.ids[place])]
        return rows

    @cached_property
    def rng(self) -> np.random.Generator:
        """Seeded random numbers."""
        return np.random.default_rng(self.seed)

    def column(self, name: str) -> Numbers:
        """Return a numeric field of the entries, shape (n,), NaN for None."""
        return np.array([getattr(entry, name) for entry in self.entries.values()], dtype=float)

    def cosines(self, vector: Vectors) -> Vectors:
        """Return the cosine of a vector (dim,) to each entry, shape (n,), rounded to 5 digits."""
        return (self.vectors @ vector).round(_DIGITS)

    def search(self, vector: Vectors, k: int) -> list[tuple[Entry, float]]:
        """Return the `k` entries most similar to a vector (dim,) with their cosines."""
        hits = best(self.vectors @ vector, self.ids, k)
        return [(self.entries[entry_id], score) for entry_id, score in hits]


class Rule:
    """Base class of admission and retention rules; override what the rule does.

    As it is, it admits every entry (``accept``) and keeps every entry (``reject``, the paper's).
    A memory makes one object of each rule. A rule keeps only state that follows from the log: when
    a memory is restored, its rules are made anew and `observe` is called for the log's outcomes.
    """

    async def prepare(self, texts: Sequence[str]) -> None:
        """Ask a service about the texts of a completion's creates, before `admit`."""

    def admit(self, candidate: Candidate, store: StoreState) -> Admission:
        """Admit, refuse or merge a new entry. The store may be full."""
        return Accepted()

    def rate(self, candidate: Candidate, store: StoreState) -> float | None:
        """Return the value of a text for `Entry.score`; called for every create and update."""
        return None

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        """Choose the entry of a full store that makes room for the candidate."""
        return Eviction(None, "the store is full")

    def sweep(self, store: StoreState) -> Sequence[Eviction]:
        """Choose entries to delete at the end of a step (in a bank: a task)."""
        return ()

    def observe(self, shown: Sequence[int], outcome: float, step: int) -> None:
        """Note the outcome of a task that entries were shown for; NaN if it is unknown."""


def lowest(store: StoreState, scores: npt.NDArray[Any]) -> tuple[int, float]:
    """Return the id with the lowest of `scores` (n,), the oldest of several, and that score."""
    place = int(scores.argmin())
    return int(store.ids[place]), float(scores[place])


class RuleSet:
    """The admission and the retention rule of one store; see `make_rule`."""

    def __init__(self, admission: str, retention: str) -> None:
        self._names = admission, retention
        self.admission = make_rule("admission", admission)
        self.retention = make_rule("retention", retention)
        self.admission_actor = f"admission:{admission}"
        self.retention_actor = f"retention:{retention}"

    def renewed(self, log: Iterable[Operation] = ()) -> RuleSet:
        """Return new rules of the same names that have observed `log`."""
        rules = RuleSet(*self._names)
        for operation in log:
            rules.observe(operation)
        return rules

    def observe(self, operation: Operation) -> None:
        """Pass an ``observe`` operation to the retention rule."""
        if operation.kind == "observe" and operation.scores:
            shown = [entry_id for entry_id, _ in operation.scores]
            self.retention.observe(shown, operation.scores[0][1], operation.step)
        elif operation.kind == "observe" and operation.details:
            self.retention.observe(operation.details["shown"], nan, operation.step)


def make_rule(setting: str, name: str) -> Rule:
    """Make the rule that the setting ``retention`` or ``admission`` names.

    An entry point of ``atommem.SETTING`` or ``package.module:Class``, then ``(option=value)``.
    """
    return _rule_of(setting, name)()


@cache  # every memory makes its rules
def _rule_of(setting: str, name: str) -> Callable[[], Rule]:
    plain, _, written = name.strip().removesuffix(")").partition("(")
    kind = find(f"atommem.{setting}", plain)
    if not (isinstance(kind, type) and issubclass(kind, Rule)):
        raise ConfigError(f"{setting}={name}: not a rule. Subclass {Rule.__module__}.Rule.")
    parser = Parser(f"{setting}={name}")
    parser.add_class_arguments(kind, fail_untyped=False)
    flags = [f"--{''.join(part.split())}" for part in written.split(",") if part.strip()]
    try:
        return partial(kind, **vars(parser.parse_args(flags)))
    except ConfigError as error:
        known = ", ".join(signature(kind).parameters) or "none"
        raise ConfigError(f"{setting}={name}: {error} Options: {known}.") from error
