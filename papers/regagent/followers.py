"""Agents without a language model: they answer from the outputs of the retrieved records alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from papers.regagent.world import Array

Follower = Callable[[Array, Array, Array, Array, float], float]
"""Input (dim,), records' inputs (k, dim), outputs (k,), cosines (k,), a normal draw."""


def similarity_follower(settings: Mapping[str, Any]) -> Follower:
    """Copy the first record by its similarity, else a softmax mean; fitted to Table 1."""
    start, over = settings["copy_from"], settings["copy_over"]
    return _copier(settings, lambda cosine: min(1.0, max(0.0, (cosine - start) / over)))


def copying_follower(settings: Mapping[str, Any], strength: float) -> Follower:
    """Copy the first record by `strength`: 1 is the nearest neighbour, 0 the mean."""
    return _copier(settings, lambda cosine: strength)


def _copier(settings: Mapping[str, Any], strength: Callable[[float], float]) -> Follower:
    noise, sharpness = settings["noise"], settings["sharpness"]

    def answer(x: Array, inputs: Array, outputs: Array, cosines: Array, draw: float) -> float:
        weights = np.exp(sharpness * (cosines - cosines[0]))
        copy, mean = strength(cosines[0]), float(weights @ outputs / weights.sum())
        return copy * outputs[0] + (1 - copy) * mean + noise * draw

    return answer


def ridge_follower(settings: Mapping[str, Any]) -> Follower:
    """Fits w to the retrieved records: an agent that understands the task, and copies nothing."""
    noise = settings["noise"]

    def answer(x: Array, inputs: Array, outputs: Array, cosines: Array, draw: float) -> float:
        gram = inputs.T @ inputs + np.eye(inputs.shape[1])
        return float(x @ np.linalg.solve(gram, inputs.T @ outputs)) + noise * draw

    return answer
