"""The retention table: every rule at every capacity; scorers are fitted on other streams."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from atommem.memory.rules import Numbers
from atommem.rules.eviction import FEATURES, GreedyOracle
from papers.journal import Journal
from papers.retention.fitting import features_of, fit, save
from papers.retention.streams import Embedded, Scores, keep, score

CAPACITIES = (20, 50, 100, 200)
RULES = ("fifo", "reject", "random", "type_prior", "redundancy", "novelty", "length")
LEARNED: dict[str, dict[str, Any]] = {
    "linear": {},
    "linear + embedding": {"embedding": True},
}
"""Scorers and how they are fitted."""
ORACLE, UNLIMITED = "oracle", "unlimited"
ALL_READ = "novelty of all read", "linear + embedding, of all read"
"""Rankings of all texts at the end; their novelty sees texts that no store kept."""
_PENALTY = 60.0
_TRIES = 2
"""Corrections of a keeper's number of entries towards equal words."""
SEEDS = 5
"""Of the random keeper, whose row is their mean."""


class NeedsOfTurns(GreedyOracle):
    """The oracle for the streams that are being evaluated; see `Table.fill`."""

    needs: ClassVar[dict[str, int]] = {}

    def __init__(self) -> None:
        super().__init__(self.needs)


@dataclass(frozen=True)
class Cell:
    """Means over all questions of all streams.

    Attributes:
        all_kept, any_kept: Questions of which all, or any, evidence was kept.
        recall: Evidence recall among the entries shown.
        references: Evidence references kept, of all questions together.
    """

    all_kept: float
    any_kept: float
    recall: float
    references: float


def cell(scores: Sequence[Sequence[Scores]]) -> Cell:
    """Of one keeper: its scores by run and stream."""
    flat = [one for run in scores for one in run]

    def mean(name: str) -> float:
        values = np.concatenate([getattr(one, name) for one in flat])
        return float(values.mean()) if len(values) else 0.0

    return Cell(
        mean("all_kept"),
        mean("any_kept"),
        mean("recall"),
        sum(one.references for one in flat) / len(scores),
    )


async def fill(
    streams: Sequence[Embedded],
    capacities: Iterable[int] = CAPACITIES,
    rules: Sequence[str] = RULES,
    *,
    equal: str = "entries",
    journal: Journal | None = None,
) -> dict[str, dict[str, Cell]]:
    """The table, keeper -> capacity (as text; ``all`` for an unlimited store) -> figures.

    The learned scorers are fitted on the other streams, never on the one that they keep.

    Args:
        streams: With their vectors.
        capacities: Entries of a store.
        rules: Keepers beside the learned ones and the oracle.
        equal: ``entries``, or ``words``: each rule gets as many entries as hold the words of that
            many texts of mean length, to within a few percent.
        journal: Keeps the figures as they come; what it has of these streams is not computed again.
    """
    keep_texts = keep if equal == "entries" else _keep_words
    journal = Journal() if journal is None else journal
    table: dict[str, dict[str, Cell]] = {}
    NeedsOfTurns.needs = {
        f"{given.stream.name} {place}": count
        for given in streams
        for place, count in enumerate(given.stream.needs())
        if count
    }
    with tempfile.TemporaryDirectory() as folder:
        learned = {(ORACLE, left): f"{__name__}:NeedsOfTurns" for left in range(len(streams))}
        for number, (name, settings) in enumerate(LEARNED.items()):
            for left, given in enumerate(streams):
                others = [other for other in streams if other.stream.name != given.stream.name]
                if others:
                    path = save(fit(others, **settings), Path(folder) / f"{left}-{number}.json")
                    learned[name, left] = f"linear(weights={path})"

        def rules_of(name: str) -> list[tuple[Embedded, str]]:
            return [(given, learned.get((name, left), name)) for left, given in enumerate(streams)]

        names = [*rules, *(name for name in LEARNED if (name, 0) in learned), ORACLE]
        for name in names:
            table[name] = {}
            for capacity in capacities:
                key = f"{name}, {capacity}"
                if (known := journal.get(key)) is None:
                    runs = [
                        [
                            score(given, await keep_texts(given, rule, capacity, seed))
                            for given, rule in rules_of(name)
                        ]
                        for seed in range(SEEDS if name == "random" else 1)
                    ]
                    known = journal.add(key, asdict(cell(runs)))
                table[name][str(capacity)] = Cell(**known)
    for name, worth in zip(ALL_READ, (_novelty, _fitted), strict=True):
        ranked = [np.argsort(-worth(given, streams), kind="stable") for given in streams]
        table[name] = {}
        for capacity in capacities:
            run = [
                score(
                    given,
                    order[
                        : capacity if equal == "entries" else _fits(given, order, capacity)
                    ].tolist(),
                )
                for given, order in zip(streams, ranked, strict=True)
            ]
            table[name][str(capacity)] = cell([run])
    table[UNLIMITED] = {
        "all": cell([[score(given, range(len(given.stream.texts))) for given in streams]])
    }
    return table


def words_of(given: Embedded) -> Numbers:
    """Of each text, shape (n,)."""
    return np.array([float(len(text.split())) for text in given.stream.texts])


async def _keep_words(given: Embedded, rule: str, capacity: int, seed: int) -> list[int]:
    """Return the kept texts at equal words: as many as `capacity` texts of mean length."""
    words = words_of(given)
    entries, places = capacity, await keep(given, rule, capacity, seed=seed)
    for _ in range(_TRIES):
        entries = max(1, round(entries * capacity * words.mean() / max(1.0, words[places].sum())))
        places = await keep(given, rule, entries, seed=seed)
    return places


def _fits(given: Embedded, order: npt.NDArray[np.intp], capacity: int) -> int:
    """How many of the first in `order` have no more words than `capacity` texts of mean length."""
    words = words_of(given)
    return int(np.searchsorted(np.cumsum(words[order]), capacity * words.mean(), side="right"))


def draw_random(streams: Sequence[Embedded], capacity: int, count: int) -> list[Cell]:
    """Draw `count` random choices of `capacity` texts at the end.

    The rule `random` differs: it drops one at every create, so old texts are rare.
    """
    rng = np.random.default_rng(0)
    every = (
        [rng.permutation(len(given.texts))[:capacity] for given in streams] for _ in range(count)
    )
    return [
        cell([[score(given, some.tolist()) for given, some in zip(streams, drawn, strict=True)]])
        for drawn in every
    ]


def _novelty(given: Embedded, streams: Sequence[Embedded]) -> Numbers:
    return features_of(given)[:, FEATURES.index("novelty")]


def _fitted(given: Embedded, streams: Sequence[Embedded]) -> Numbers:
    """Return scores with standardised vectors, fitted on other streams; 0 without any."""
    others = [other for other in streams if other.stream.name != given.stream.name]
    if not others:
        return np.zeros(len(given.texts))
    found = fit(others, embedding=True, standardise=True, ridge=_PENALTY)
    weights = np.array([found["weights"][name] for name in FEATURES])
    scores: Numbers = features_of(given) @ weights + given.texts @ np.array(found["vector"])
    return scores


def markdown(table: dict[str, dict[str, Cell]]) -> str:
    """As it stands in docs/bounded_memory.md: all / any evidence kept / evidence recall."""
    columns = list(next(iter(table.values())))
    lines = [f"| kept | {' | '.join(columns)} |", f"| --- |{' --- |' * len(columns)}"]
    for name, row in table.items():
        shown = [
            f"{one.all_kept:.3f}/{one.any_kept:.3f}/{one.recall:.3f}"
            if (one := row.get(column))
            else ""
            for column in columns
        ]
        if "all" in row:
            shown[-1] = f"recall {row['all'].recall:.3f}"
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return "\n".join(lines)
