"""RegAgent as a simulation: a regression world, followers, records, and one run of the stream.

An agent predicts y = w.x from examples; w is unknown to it. The deletion rules are those of the
experience bank, written on arrays, because one reproduction applies them to a million tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Deletion = Literal["none", "periodic", "history", "combined"]
Limited = Literal["constrained", "fifo", "random", "failures_first"]


@dataclass(frozen=True)
class World:
    """One seed's task stream."""

    weights: Array  # w: (dim,)
    known: Array  # the initial memory: (m, dim)
    known_outputs: Array  # with noise: (m,)
    inputs: Array  # the stream: (n, dim)
    draws: Array  # a standard normal number a task, the same under every rule

    @cached_property
    def truths(self) -> Array:
        """The stream's outputs without noise: (n,)."""
        return self.inputs @ self.weights

    def fresh(self, seed: int, n: int, scales: Mapping[str, Any]) -> World:
        """Return `n` new tasks of the same w."""
        rng = np.random.default_rng([seed, 1])
        inputs = _draw_inputs(rng, n, scales)
        return replace(self, inputs=inputs, draws=rng.normal(size=n))


def make_world(seed: int, scales: Mapping[str, Any], initial: int, n: int) -> World:
    """Draw a world of initial records and tasks from Gaussians of unit variance.

    `scales` has ``weight_norm`` (length of w), ``means`` of the Gaussians, ``dim``, and ``noise``,
    the largest error of an initial output.
    """
    rng = np.random.default_rng(seed)
    direction = rng.normal(size=scales["dim"])
    weights = scales["weight_norm"] * direction / np.linalg.norm(direction)
    inputs = _draw_inputs(rng, initial + n, scales)
    noise = rng.uniform(-scales["noise"], scales["noise"], initial)
    outputs = inputs[:initial] @ weights + noise
    draws = rng.normal(size=n)
    return World(weights, inputs[:initial], outputs, inputs[initial:], draws)


def _draw_inputs(rng: np.random.Generator, n: int, scales: Mapping[str, Any]) -> Array:
    means = np.array(scales["means"])[rng.integers(0, len(scales["means"]), n), None]
    return rng.normal(size=(n, scales["dim"])) + means


Follower = Callable[[Array, Array, Array, Array, float], float]
"""Input (dim,), records' inputs (k, dim), outputs (k,), cosines (k,), a normal draw -> guess."""


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
    """Fit w to the retrieved records: an agent that understands the task and copies nothing."""
    noise = settings["noise"]

    def answer(x: Array, inputs: Array, outputs: Array, cosines: Array, draw: float) -> float:
        gram = inputs.T @ inputs + np.eye(inputs.shape[1])
        return float(x @ np.linalg.solve(gram, inputs.T @ outputs)) + noise * draw

    return answer


class Records:
    """Inputs, outputs and retrieval statistics; deleted rows are compacted.

    The initial records are (m, dim), (m,), (m,); `room` is the largest number of added ones.
    """

    def __init__(self, inputs: Array, outputs: Array, truths: Array, room: int) -> None:
        size = len(outputs) + room
        self.inputs = np.zeros((size, inputs.shape[1]))
        self.units = np.zeros((size, inputs.shape[1]))
        # output, error, created, retrievals, retrievals of this period, utilities, passed
        self.columns = np.zeros((7, size))
        self.alive = np.zeros(size, dtype=bool)
        self.end = 0
        self.size = 0
        for x, output, truth in zip(inputs, outputs, truths, strict=True):
            self.add(x, output, abs(output - truth), -1, True)

    output = property(lambda self: self.columns[0, : self.end])
    error = property(lambda self: self.columns[1, : self.end])
    created = property(lambda self: self.columns[2, : self.end])
    retrieved = property(lambda self: self.columns[3, : self.end])
    recent = property(lambda self: self.columns[4, : self.end])
    utility = property(lambda self: self.columns[5, : self.end])
    passed = property(lambda self: self.columns[6, : self.end])

    def add(self, x: Array, output: float, error: float, step: int, passed: bool) -> None:
        """Add one record."""
        row = self.end
        self.inputs[row] = x
        self.units[row] = x / np.linalg.norm(x)
        self.columns[:, row] = (output, error, step, 0, 0, 0, passed)
        self.alive[row] = True
        self.end += 1
        self.size += 1

    def nearest(self, x: Array, k: int) -> tuple[Ints, Array]:
        """Return rows of the `k` most similar, best first, and their cosines."""
        cosines = self.units[: self.end] @ (x / np.linalg.norm(x))
        if self.size < self.end:
            cosines[~self.alive[: self.end]] = -2.0
        k = min(k, self.size)
        rows = np.argpartition(cosines, len(cosines) - k)[len(cosines) - k :]
        rows = rows[np.argsort(-cosines[rows], kind="stable")]
        return rows, cosines[rows]

    def use(self, rows: Ints, utility: float) -> None:
        """Credit these rows with a task that retrieved them."""
        self.columns[3, rows] += 1
        self.columns[4, rows] += 1
        self.columns[5, rows] += utility

    def delete(self, rows: Ints) -> Array:
        """Delete rows; returns the errors of those retrieved more than five times."""
        errors = self.error[rows][self.retrieved[rows] > 5].copy()
        self.alive[rows] = False
        self.size -= len(rows)
        if self.size < 0.9 * self.end:
            keep = np.flatnonzero(self.alive[: self.end])
            for array in (self.inputs, self.units):
                array[: len(keep)] = array[keep]
            self.columns[:, : len(keep)] = self.columns[:, keep]
            self.alive[:] = False
            self.alive[: len(keep)] = True
            self.end = len(keep)
        return errors

    def stale(self, alpha: float, step: int, period: int) -> Ints:
        """Return rows retrieved at most `alpha` times in a period; younger rows are exempt."""
        found = self.alive[: self.end] & (self.recent <= alpha) & (self.created <= step - period)
        self.recent[:] = 0
        return np.flatnonzero(found)

    def bad(self, rows: Ints, n: int, beta: float) -> Ints:
        """Return the rows retrieved more than `n` times with mean utility at most `beta`."""
        counts = self.retrieved[rows]
        return rows[(counts > n) & (self.utility[rows] <= beta * counts)]

    def mean_utility(self) -> Array:
        """Return the mean utility of each row; infinite if never retrieved, or deleted."""
        with np.errstate(divide="ignore", invalid="ignore"):
            means = np.where(self.retrieved > 0, self.utility / self.retrieved, np.inf)
        return np.where(self.alive[: self.end], means, np.inf)


@dataclass(frozen=True)
class Rules:
    """Management of the memory."""

    tolerance: float  # largest error of an added record; infinite adds all, negative none
    deletion: Deletion = "none"
    k: int = 6
    period: int = 500
    alpha: float = 0
    n: int = 5
    beta: float = 0.5
    limit: int | None = None  # most records (the paper's resource-constrained setting)
    limited_by: Limited = "constrained"  # the rule that deletes above the limit


@dataclass
class Outcome:
    """Result of one run."""

    success: float  # percent of tasks with an error of at most 1
    size: int  # records at the end
    errors: Array  # of every task: (n,)
    following: float  # r of running means of input and output similarity to the first record
    retained: Array  # errors of records retrieved more than five times
    deleted: Array  # the same
    records: Records = field(repr=False)  # at the end


def run_stream(world: World, follower: Follower, rules: Rules, success: float = 1.0) -> Outcome:
    """Run all tasks of the world in order."""
    n = len(world.truths)
    records = Records(world.known, world.known_outputs, world.known @ world.weights, n)
    errors, near, alike = np.zeros(n), np.zeros(n), np.zeros(n)
    deleted: list[Array] = []
    rng = np.random.default_rng(0)
    # Deletion uses the evaluator of addition; add-all and fixed use the true success.
    tolerance = rules.tolerance if 0 < rules.tolerance < np.inf else success
    for step in range(n):
        x, truth = world.inputs[step], world.truths[step]
        rows, cosines = records.nearest(x, rules.k)
        outputs = records.output[rows]
        guess = follower(x, records.inputs[rows], outputs, cosines, world.draws[step])
        error = abs(guess - truth)
        errors[step], near[step] = error, cosines[0]
        alike[step] = np.exp(-((guess - outputs[0]) ** 2))
        records.use(rows, float(error <= tolerance))
        if error <= rules.tolerance:
            records.add(x, guess, error, step, error <= tolerance)
        deleted += _delete(records, rules, step, rows)
        while rules.limit is not None and records.size > rules.limit:
            deleted.append(records.delete(np.array([_worst(records, rules, rng)])))
    often = records.alive[: records.end] & (records.retrieved > 5)
    steps = np.arange(1, n + 1)
    return Outcome(
        success=100 * float(np.mean(errors <= success)),
        size=records.size,
        errors=errors,
        following=float(np.corrcoef(np.cumsum(near) / steps, np.cumsum(alike) / steps)[0, 1]),
        retained=records.error[often].copy(),
        deleted=np.concatenate([np.zeros(0), *deleted]),
        records=records,
    )


def _delete(records: Records, rules: Rules, step: int, rows: Ints) -> list[Array]:
    gone = []
    if rules.deletion in ("history", "combined"):
        bad = records.bad(rows, rules.n, rules.beta)
        if len(bad):
            gone.append(records.delete(bad))
    if rules.deletion in ("periodic", "combined") and (step + 1) % rules.period == 0:
        gone.append(records.delete(records.stale(rules.alpha, step, rules.period)))
    return gone


def _worst(records: Records, rules: Rules, rng: np.random.Generator) -> int:
    alive = records.alive[: records.end]
    if rules.limited_by == "constrained":
        row = int(np.argmin(records.mean_utility()))
        return row if alive[row] else int(np.argmax(alive))
    if rules.limited_by == "random":
        return int(rng.choice(np.flatnonzero(alive)))
    order = np.where(alive, records.created, np.inf)
    if rules.limited_by == "failures_first":
        order = order + np.where(records.passed > 0, 1e9, 0.0)
    return int(np.argmin(order))


def frozen_success(world: World, follower: Follower, records: Records, size: int, k: int) -> float:
    """Return the percent solved with the `size` most retrieved records, frozen."""
    alive = np.flatnonzero(records.alive[: records.end])
    rows = alive[np.argsort(-records.retrieved[alive], kind="stable")[:size]]
    kept = Records(records.inputs[rows], records.output[rows], records.output[rows], 0)
    right = 0
    for x, truth, draw in zip(world.inputs, world.truths, world.draws, strict=True):
        found, cosines = kept.nearest(x, k)
        guess = follower(x, kept.inputs[found], kept.output[found], cosines, draw)
        right += abs(guess - truth) <= 1.0
    return 100 * right / len(world.truths)


class Runs:
    """Worlds by seed, and the outcomes of rules on them; each is computed once."""

    def __init__(self, paper: Mapping[str, Any], seeds: Sequence[int], tasks: int | None) -> None:
        self.paper, self.seeds = paper, list(seeds)
        self.tasks = tasks or paper["stream"]
        initial = paper["initial"]
        self.worlds = [make_world(seed, paper["world"], initial, self.tasks) for seed in seeds]
        self.follower = similarity_follower(paper["follower"])
        self._done: dict[Rules, list[Outcome]] = {}

    def rules(self, name: str, **changes: Any) -> Rules:
        """Return the settings under ``fixed``, ``add all``, ``C1`` to ``C3``, ``strict``."""
        tolerances = {"fixed": -1.0, "add all": np.inf, "strict": self.paper["success"]}
        tolerance = {**tolerances, **self.paper["coarse"]}[name]
        settings = {name: self.paper[name] for name in ("k", "period", "alpha", "n", "beta")}
        return Rules(tolerance, **settings | changes)

    def outcomes(self, name: str, **changes: Any) -> list[Outcome]:
        """Return one outcome a world under `rules`, with the fitted follower."""
        rules = self.rules(name, **changes)
        if rules not in self._done:
            self._done[rules] = self.with_follower(rules, self.follower)
        return self._done[rules]

    def with_follower(self, rules: Rules, follower: Follower) -> list[Outcome]:
        """Return one outcome a world, with another agent."""
        success = self.paper["success"]
        return [run_stream(world, follower, rules, success) for world in self.worlds]
