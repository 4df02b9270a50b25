"""Every retention rule at every capacity; scorers are fitted on other streams."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from atommem.errors import ConfigError
from atommem.files import write_text
from atommem.memory.rules import Numbers
from papers.retention.rules import FEATURES, RULE_PATHS, GreedyOracle, text_features
from papers.retention.streams import Embedded, Scores, keep, score

CAPACITIES = (20, 50, 100, 200)
RULES = ("fifo", "reject", "random", "type_prior", "redundancy", "novelty", "length")
LEARNED: dict[str, dict[str, Any]] = {"linear": {}, "linear + embedding": {"embedding": True}}
"""Scorers, and how they are fitted."""
ORACLE, UNLIMITED = "oracle", "unlimited"
ALL_READ = "novelty of all read", "linear + embedding, of all read"
"""Rankings of all texts at the end; their novelty sees texts that no store kept."""
RANDOM, SEEDS = "random", 5
"""The random rule's row is the mean of several seeds."""
Weights = dict[str, Any]


def features_of(item: Embedded) -> Numbers:
    """Return the features of all texts in the order of `FEATURES`: shape (n, 6).

    Novelty compares with all earlier texts; a rule at work sees only its store.
    """
    cosines = item.texts @ item.texts.T
    rows = []
    for place, text in enumerate(item.stream.texts):
        novelty = 1.0 - float(cosines[place, :place].max()) if place else 1.0
        rows.append([{**text_features(text), "novelty": novelty}[name] for name in FEATURES])
    return np.array(rows)


def fit(
    streams: Sequence[Embedded],
    *,
    embedding: bool = False,
    ridge: float = 1.0,
    standardise: bool = False,
) -> Weights:
    """Fit weights of the rule `linear`: ridge logistic regression of whether a text is needed.

    Args:
        streams: Labelled texts, without those that the scorer is tested on.
        embedding: Weigh the numbers of the text's vector too.
        ridge: L2 penalty on all weights but the bias (of standardised features).
        standardise: Also standardise the numbers of the vector.

    Raises:
        ConfigError: All texts are needed, or none.
    """
    from sklearn.linear_model import LogisticRegression

    inputs = np.concatenate([features_of(item) for item in streams])
    needed = np.concatenate([np.array(item.stream.needs()) > 0 for item in streams]).astype(float)
    if needed.min() == needed.max():
        raise ConfigError("fit: every text is needed, or none. Give texts of both kinds.")
    if embedding:
        vectors = np.concatenate([item.texts for item in streams])
        inputs = np.concatenate([inputs, vectors], axis=1)
    mean, spread = inputs.mean(axis=0), inputs.std(axis=0) + 1e-9
    if not standardise:
        mean[len(FEATURES) :], spread[len(FEATURES) :] = 0.0, 1.0
    model = LogisticRegression(C=1 / ridge, solver="newton-cholesky", tol=1e-8)
    model.fit((inputs - mean) / spread, needed)
    weights = model.coef_[0] / spread
    named = dict(zip(FEATURES, map(float, weights[: len(FEATURES)]), strict=True))
    return {
        "weights": {"bias": float(model.intercept_[0] - weights @ mean), **named},
        "vector": weights[len(FEATURES) :].tolist() if embedding else None,
        "fitted_on": {"streams": [item.stream.name for item in streams], "texts": len(needed)},
        "needed": int(needed.sum()),
    }


def save(weights: Weights, path: Path) -> Path:
    """Write weights for `Linear(weights=PATH)`."""
    write_text(path, json.dumps(weights, indent=1) + "\n")
    return path


class NeedsOfTurns(GreedyOracle):
    """The oracle for the streams that `fill` evaluates."""

    needs: ClassVar[dict[str, int]] = {}

    def __init__(self) -> None:
        super().__init__(self.needs)


@dataclass(frozen=True)
class Cell:
    """Means over all questions of all streams.

    Attributes:
        all_kept, any_kept: Questions whose evidence was kept, all of it or any.
        recall: Evidence recall among the entries shown.
        references: Evidence references kept, of all questions together.
    """

    all_kept: float
    any_kept: float
    recall: float
    references: float

    @classmethod
    def of(cls, runs: Sequence[Sequence[Scores]]) -> Cell:
        """Average scores by run and stream."""
        flat = [one for run in runs for one in run]
        values = {
            name: np.concatenate([getattr(one, name) for one in flat])
            for name in ("all_kept", "any_kept", "recall")
        }
        means = {name: float(of.mean()) if len(of) else 0.0 for name, of in values.items()}
        return cls(**means, references=sum(one.references for one in flat) / len(runs))


Table = dict[str, dict[str, Cell]]
"""Rule -> capacity as text (``all`` for an unlimited store) -> figures."""


async def fill(
    streams: Sequence[Embedded],
    capacities: Iterable[int] = CAPACITIES,
    rules: Sequence[str] = RULES,
) -> Table:
    """Fill the table. Learned scorers are fitted on the other streams.

    Args:
        streams: With their vectors.
        capacities: Entries of a store.
        rules: Rules beside the learned ones and the oracle.
    """
    table: Table = {}
    NeedsOfTurns.needs = {
        f"{item.stream.name} {place}": count
        for item in streams
        for place, count in enumerate(item.stream.needs())
        if count
    }
    with tempfile.TemporaryDirectory() as folder:
        names = {name: [name] * len(streams) for name in rules}
        for name, settings in LEARNED.items() if len(streams) > 1 else ():
            paths = [
                save(
                    fit(_others(item, streams), **settings),
                    Path(folder, f"{name.count('+')}-{left}.json"),
                )
                for left, item in enumerate(streams)
            ]
            names[name] = [f"{RULE_PATHS['linear']}(weights={path})" for path in paths]
        names[ORACLE] = [f"{__name__}:NeedsOfTurns"] * len(streams)
        for name, of_streams in names.items():
            table[name] = {}
            for capacity in capacities:
                runs = []
                for seed in range(SEEDS if name == RANDOM else 1):
                    pairs = zip(streams, of_streams, strict=True)
                    kept = [await keep(*pair, capacity, seed) for pair in pairs]
                    runs.append([score(*pair) for pair in zip(streams, kept, strict=True)])
                table[name][str(capacity)] = Cell.of(runs)
    for name, rank in zip(ALL_READ, (_novelty, _fitted), strict=True):
        ranked = [np.argsort(-rank(item, streams), kind="stable") for item in streams]
        table[name] = {}
        for capacity in capacities:
            first = [order[:capacity].tolist() for order in ranked]
            run = [score(*pair) for pair in zip(streams, first, strict=True)]
            table[name][str(capacity)] = Cell.of([run])
    everything = [score(item, range(len(item.stream.texts))) for item in streams]
    table[UNLIMITED] = {"all": Cell.of([everything])}
    return table


def _others(item: Embedded, streams: Sequence[Embedded]) -> list[Embedded]:
    return [other for other in streams if other.stream.name != item.stream.name]


def draw_random(streams: Sequence[Embedded], capacity: int, count: int) -> list[Cell]:
    """Draw `count` random choices of `capacity` texts at the end.

    The rule `random` differs: it drops one at every create, so old texts are rare.
    """
    rng = np.random.default_rng(0)
    cells = []
    for _ in range(count):
        drawn = [rng.permutation(len(item.texts))[:capacity].tolist() for item in streams]
        cells.append(Cell.of([[score(*pair) for pair in zip(streams, drawn, strict=True)]]))
    return cells


def _novelty(item: Embedded, streams: Sequence[Embedded]) -> Numbers:
    return features_of(item)[:, FEATURES.index("novelty")]


def _fitted(item: Embedded, streams: Sequence[Embedded]) -> Numbers:
    """Return scores with standardised vectors, fitted on other streams; 0 without any."""
    others = _others(item, streams)
    if not others:
        return np.zeros(len(item.texts))
    found = fit(others, embedding=True, standardise=True, ridge=60.0)
    weights = np.array([found["weights"][name] for name in FEATURES])
    scores: Numbers = features_of(item) @ weights + item.texts @ np.array(found["vector"])
    return scores


def markdown(table: Table) -> str:
    """Render all / any evidence kept / evidence recall."""
    columns = list(next(iter(table.values())))
    lines = [f"| kept | {' | '.join(columns)} |", f"| --- |{' --- |' * len(columns)}"]
    for name, row in table.items():
        cells = [""] * len(columns)
        for place, column in enumerate(columns):
            if one := row.get(column):
                cells[place] = f"{one.all_kept:.3f}/{one.any_kept:.3f}/{one.recall:.3f}"
        if "all" in row:
            cells[-1] = f"recall {row['all'].recall:.3f}"
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)
