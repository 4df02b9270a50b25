"""The regression world: an agent predicts y = w.x from examples, w unknown to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class World:
    """One seed's task stream.

    Attributes:
        weights: w, shape (dim,).
        known, known_outputs: The initial memory: shape (m, dim) and (m,), outputs with noise.
        inputs: The stream: shape (n, dim).
        draws: A standard normal number for each task, the same under every rule.
        components: Which of the Gaussians each task comes from.
    """

    weights: Array
    known: Array
    known_outputs: Array
    inputs: Array
    draws: Array
    components: npt.NDArray[np.int64]

    @cached_property
    def truths(self) -> Array:
        """The stream's outputs without noise: shape (n,)."""
        return self.inputs @ self.weights

    def in_order(self) -> World:
        """The stream component after component (the paper's distribution shift)."""
        order = np.argsort(self.components, kind="stable")
        return replace(self, inputs=self.inputs[order], components=self.components[order])

    def fresh(self, seed: int, n: int, scales: Mapping[str, Any]) -> World:
        """`n` new tasks of the same w."""
        rng = np.random.default_rng([seed, 1])
        inputs, components = _inputs(rng, n, scales)
        return replace(self, inputs=inputs, components=components, draws=rng.normal(size=n))


def make_world(seed: int, scales: Mapping[str, Any], initial: int, n: int) -> World:
    """Draw one: inputs from Gaussians of unit variance, one of them for each.

    Args:
        seed: Of everything.
        scales: ``weight_norm`` (length of w) or ``weight_sd`` (w from N(0, sd^2 I)), ``means``
            of the Gaussians, ``dim``, and ``noise``, the most by which an initial output is off.
        initial, n: Records to start with, and tasks.
    """
    rng = np.random.default_rng(seed)
    direction = rng.normal(size=scales["dim"])
    if (sd := scales.get("weight_sd")) is not None:
        weights = sd * direction
    else:
        weights = scales["weight_norm"] * direction / np.linalg.norm(direction)
    inputs, components = _inputs(rng, initial + n, scales)
    outputs = inputs[:initial] @ weights + rng.uniform(-scales["noise"], scales["noise"], initial)
    return World(
        weights,
        inputs[:initial],
        outputs,
        inputs[initial:],
        rng.normal(size=n),
        components[initial:],
    )


def _inputs(
    rng: np.random.Generator, n: int, scales: Mapping[str, Any]
) -> tuple[Array, npt.NDArray[np.int64]]:
    components = rng.integers(0, len(scales["means"]), n)
    return rng.normal(size=(n, scales["dim"])) + np.array(scales["means"])[
        components, None
    ], components
