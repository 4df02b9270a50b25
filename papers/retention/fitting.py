"""Fit the linear scorer: logistic regression of whether a text will be needed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from atommem.envs.task_files import write_text
from atommem.errors import ConfigError
from atommem.memory.rules import Numbers
from atommem.rules.eviction import FEATURES, text_features
from papers.retention.streams import Embedded


def features_of(given: Embedded) -> Numbers:
    """Return the features of all texts in the order of `FEATURES`: shape (n, 6).

    Novelty compares with all earlier texts; a rule at work sees only its store.
    """
    cosines = given.texts @ given.texts.T
    rows = []
    for place, text in enumerate(given.stream.texts):
        novelty = 1.0 - float(cosines[place, :place].max()) if place else 1.0
        rows.append([{**text_features(text), "novelty": novelty}[name] for name in FEATURES])
    return np.array(rows)


def fit(
    streams: Sequence[Embedded],
    *,
    embedding: bool = False,
    ridge: float = 1.0,
    standardise: bool = False,
) -> dict[str, Any]:
    """Weights as `atommem.rules.linear.Linear` reads them.

    Args:
        streams: Labelled texts, without those that the scorer is tested on.
        embedding: Weigh the numbers of the text's vector too.
        ridge: Strength of the L2 penalty, on all weights but the bias (of standardised features).
        standardise: Also standardise the numbers of the vector.

    Raises:
        ConfigError: No text is needed, or each is: there is nothing to progress apart.
    """
    inputs = np.concatenate([features_of(given) for given in streams])
    needed = np.concatenate([np.array(given.stream.needs()) > 0 for given in streams]).astype(float)
    if needed.min() == needed.max():
        raise ConfigError("retention fit: every text is needed, or none: give texts of both kinds.")
    if embedding:
        inputs = np.concatenate(
            [inputs, np.concatenate([given.texts for given in streams])], axis=1
        )
    mean, spread = inputs.mean(axis=0), inputs.std(axis=0) + 1e-9
    if not standardise:
        mean[len(FEATURES) :], spread[len(FEATURES) :] = 0.0, 1.0
    found = logistic(
        np.concatenate([np.ones((len(inputs), 1)), (inputs - mean) / spread], axis=1), needed, ridge
    )
    weights = found[1:] / spread
    named = dict(zip(FEATURES, map(float, weights[: len(FEATURES)]), strict=True))
    return {
        "weights": {"bias": float(found[0] - weights @ mean), **named},
        "vector": weights[len(FEATURES) :].tolist() if embedding else None,
        "fitted_on": {"streams": [given.stream.name for given in streams], "texts": len(needed)},
        "needed": int(needed.sum()),
    }


def logistic(inputs: Numbers, labels: Numbers, ridge: float, steps: int = 50) -> Numbers:
    """Return ridge logistic weights by Newton's method; the first has no penalty."""
    weights = np.zeros(inputs.shape[1])
    penalty = np.full(len(weights), ridge)
    penalty[0] = 1e-9
    for _ in range(steps):
        chances = 1.0 / (1.0 + np.exp(-np.clip(inputs @ weights, -30, 30)))
        gradient = inputs.T @ (chances - labels) + penalty * weights
        curvature = (inputs.T * (chances * (1 - chances))) @ inputs + np.diag(penalty)
        step = np.linalg.solve(curvature, gradient)
        weights = weights - step
        if np.abs(step).max() < 1e-8:
            break
    return weights


def save(weights: dict[str, Any], path: str | Path) -> Path:
    """Write them where `linear(weights=PATH)` finds them."""
    path = Path(path)
    write_text(path, json.dumps(weights, indent=1) + "\n")
    return path
