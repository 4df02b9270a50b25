"""Every retention rule at every capacity; scorers are fitted on other streams."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from atommem.errors import ConfigError
from atommem.files import write_json, write_text
from atommem.memory.rules import Numbers
from papers import experiment
from papers.amac.admission import novelties
from papers.retention.rules import FEATURES, RULE_PATHS, text_features
from papers.retention.streams import Embedded, Scores, keep, score

CAPACITIES = (20, 50, 100, 200)
RULES = ("fifo", "reject", "random", "type_prior", "redundancy", "novelty", "length")
LEARNED = {"linear": False, "linear + embedding": True}
"""Scorers, and whether they weigh vectors."""
ORACLE, UNLIMITED = "oracle", "unlimited"
RANDOM, SEEDS = "random", 5
"""The random rule's row is the mean of several seeds."""
Weights = dict[str, Any]


def features_of(item: Embedded) -> Numbers:
    """Return the features of all texts in the order of `FEATURES`: shape (n, 6).

    Novelty compares with all earlier texts; a rule at work sees only its store.
    """
    rows = [
        [{**text_features(text), "novelty": novelty}[name] for name in FEATURES]
        for text, novelty in zip(item.stream.texts, novelties(item.texts), strict=True)
    ]
    return np.array(rows)


def fit(streams: Sequence[Embedded], *, embedding: bool = False) -> Weights:
    """Fit weights of the rule `linear`: ridge logistic regression of whether a text is needed.

    With `embedding`, the numbers of the text's vector are weighed too.

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
    mean[len(FEATURES) :], spread[len(FEATURES) :] = 0.0, 1.0
    model = LogisticRegression(C=1.0, solver="newton-cholesky", tol=1e-8)
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


@dataclass(frozen=True)
class Cell:
    """Means over all questions of all streams."""

    all_kept: float  # questions whose evidence was kept
    any_kept: float  # or any of it
    recall: float  # of evidence among the entries shown
    references: float  # evidence references kept, of all questions together

    @property
    def figures(self) -> tuple[float, float, float]:
        """All and any evidence kept, and recall."""
        return self.all_kept, self.any_kept, self.recall

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
    """Fill the table. Learned scorers are fitted on the other streams."""
    table: Table = {}
    needs = {
        f"{item.stream.name} {place}": count
        for item in streams
        for place, count in enumerate(item.stream.needs())
        if count
    }
    with tempfile.TemporaryDirectory() as folder:
        names = {name: [name] * len(streams) for name in rules}
        for name, embedding in LEARNED.items() if len(streams) > 1 else ():
            names[name] = []
            for left, item in enumerate(streams):
                others = [other for other in streams if other is not item]
                path = Path(folder, f"{embedding}-{left}.json")
                save(fit(others, embedding=embedding), path)
                names[name].append(f"{RULE_PATHS['linear']}(weights={path})")
        write_json(Path(folder, "needs.json"), needs)
        names[ORACLE] = [f"{RULE_PATHS['oracle']}(needs={folder}/needs.json)"] * len(streams)
        for name, of_streams in names.items():
            table[name] = {}
            for capacity in capacities:
                runs = []
                for seed in range(SEEDS if name == RANDOM else 1):
                    pairs = zip(streams, of_streams, strict=True)
                    kept = [await keep(*pair, capacity, seed) for pair in pairs]
                    runs.append([score(*pair) for pair in zip(streams, kept, strict=True)])
                table[name][str(capacity)] = Cell.of(runs)
    everything = [score(item, range(len(item.stream.texts))) for item in streams]
    table[UNLIMITED] = {"all": Cell.of([everything])}
    return table


def markdown(table: Table) -> str:
    """Render all / any evidence kept / evidence recall."""
    columns = list(next(iter(table.values())))
    rows = []
    for name, row in table.items():
        cells = [
            "/".join(f"{value:.3f}" for value in one.figures) if one else None
            for one in map(row.get, columns)
        ]
        if "all" in row:
            cells[-1] = f"recall {row['all'].recall:.3f}"
        rows.append([name, *cells])
    return experiment.Table("Evidence kept: all/any/recall", ["kept", *columns], rows).markdown()
