"""The cross-entropy method: weights that do best on a tuning stream (TraceRetain's CEM)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from atommem.memory.rules import Numbers


def cross_entropy(
    objective: Callable[[Numbers], float],
    start: Numbers,
    *,
    spread: float = 1.0,
    population: int = 32,
    elite: int = 8,
    iterations: int = 10,
    seed: int = 0,
) -> tuple[Numbers, float]:
    """Search for the weights with the highest objective.

    Each iteration draws a population from a normal distribution, including the best weights so
    far, and fits the distribution to its elite.

    Args:
        objective: What a vector of weights is worth; called population x iterations times.
        start: Mean of the first population, shape (n,).
        spread: Its standard deviation, for each weight.
        population, elite, iterations: Sizes (the paper gives none).
        seed: Of the draws.

    Returns:
        The best weights that were tried, and their objective.
    """
    rng = np.random.default_rng(seed)
    mean, deviation = np.asarray(start, dtype=float), np.full(len(start), spread)
    best, best_value = mean, objective(mean)
    for _ in range(iterations):
        drawn = rng.normal(mean, deviation, (population, len(mean)))
        drawn[0] = best
        values = np.array([best_value, *(objective(weights) for weights in drawn[1:])])
        order = np.argsort(-values, kind="stable")
        if values[order[0]] > best_value:
            best, best_value = drawn[order[0]], float(values[order[0]])
        chosen = drawn[order[:elite]]
        mean, deviation = chosen.mean(axis=0), chosen.std(axis=0) + 1e-3
    return best, best_value
