"""Agents without a language model: they answer from the outputs of the retrieved records alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from atommem.eval.reproduce.regagent.world import Array

Follower = Callable[[Array, Array, Array, Array, float], float]
"""Input (dim,), the records' inputs (k, dim), outputs (k,), cosines (k,; best first), a standard normal number."""


def similarity_follower(settings: Mapping[str, Any]) -> Follower:
    """Copies the first record the more, the more similar it is; else a softmax mean of all. Fitted to Table 1."""
    start, over, noise, sharpness = (settings[n] for n in ("copy_from", "copy_over", "noise", "sharpness"))

    def answer(x: Array, inputs: Array, outputs: Array, cosines: Array, draw: float) -> float:
        copy = min(1.0, max(0.0, (cosines[0] - start) / over))
        return copy * outputs[0] + (1 - copy) * _mean(cosines, outputs, sharpness) + noise * draw

    return answer


def copying_follower(settings: Mapping[str, Any], strength: float) -> Follower:
    """Copies the first record by `strength` whatever its similarity: 1 is the nearest neighbour, 0 the mean."""
    noise, sharpness = settings["noise"], settings["sharpness"]

    def answer(x: Array, inputs: Array, outputs: Array, cosines: Array, draw: float) -> float:
        return strength * outputs[0] + (1 - strength) * _mean(cosines, outputs, sharpness) + noise * draw

    return answer


def ridge_follower(settings: Mapping[str, Any], penalty: float = 1.0) -> Follower:
    """Fits w to the retrieved records: an agent that understands the task, and copies nothing."""
    noise = settings["noise"]

    def answer(x: Array, inputs: Array, outputs: Array, cosines: Array, draw: float) -> float:
        gram = inputs.T @ inputs + penalty * np.eye(inputs.shape[1])
        return float(x @ np.linalg.solve(gram, inputs.T @ outputs)) + noise * draw

    return answer


def _mean(cosines: Array, outputs: Array, sharpness: float) -> float:
    weights = np.exp(sharpness * (cosines - cosines[0]))
    return float(weights @ outputs / weights.sum())
