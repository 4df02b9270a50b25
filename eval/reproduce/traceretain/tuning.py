"""The cross-entropy method over the weights of the linear score."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def cross_entropy(value: Callable[[Array], float], start: Array, settings: Mapping[str, int], seed: int) -> Array:
    """The mean of the last elite.

    Args:
        value: Of a weight vector; higher is better.
        start: Mean of the first population, which has a standard deviation of 1.
        settings: ``population``, ``elite``, ``iterations``.
        seed: Of the populations.
    """
    rng = np.random.default_rng(seed)
    mean, spread = start.copy(), np.ones_like(start)
    for _ in range(settings["iterations"]):
        drawn = mean + spread * rng.normal(size=(settings["population"], len(start)))
        values = np.array([value(weights) for weights in drawn])
        elite = drawn[np.argsort(-values, kind="stable")[: settings["elite"]]]
        mean, spread = elite.mean(axis=0), elite.std(axis=0) + 1e-3
    return mean
