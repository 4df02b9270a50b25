"""One run: the agent meets the stream, its memory is added to and deleted from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from papers.regagent.followers import Follower
from papers.regagent.records import Records
from papers.regagent.world import Array, World

Deletion = Literal["none", "periodic", "history", "combined"]
Limited = Literal["constrained", "fifo", "random", "failures_first"]


@dataclass(frozen=True)
class Rules:
    """How the memory is managed.

    Attributes:
        tolerance: Largest error of an added record; infinite adds all, negative none.
        deletion: Which deletion takes place.
        k, period, alpha, n, beta: As in the paper.
        limit: Most records (the paper's resource-constrained setting), and who goes beyond it.
        sliding: Delete one record a step by history, like AgentDriver's code.
        truth: What is stored is the true output (error-free variant).
    """

    tolerance: float
    deletion: Deletion = "none"
    k: int = 6
    period: int = 500
    alpha: float = 0
    n: int = 5
    beta: float = 0.5
    limit: int | None = None
    limited_by: Limited = "constrained"
    sliding: bool = False
    truth: bool = False


@dataclass
class Outcome:
    """What became of one run.

    Attributes:
        success: Percent of tasks with an error of at most 1.
        size: Records at the end.
        errors: Of every task: shape (n,).
        input_similarity, output_similarity: Of every task with the first record that it retrieved.
        retained, deleted: Errors of records that were retrieved more than five times.
        records: The memory as it was left.
    """

    success: float
    size: int
    errors: Array
    input_similarity: Array
    output_similarity: Array
    retained: Array
    deleted: Array
    records: Records = field(repr=False)

    @property
    def following(self) -> float:
        """Pearson's r of the running means of input and output similarity."""
        steps = np.arange(1, len(self.errors) + 1)
        inputs, outputs = (
            np.cumsum(self.input_similarity) / steps,
            np.cumsum(self.output_similarity) / steps,
        )
        return float(np.corrcoef(inputs, outputs)[0, 1])


def run_stream(world: World, follower: Follower, rules: Rules, success: float = 1.0) -> Outcome:
    """All tasks of the world, in order."""
    n = len(world.truths)
    records = Records(world.known, world.known_outputs, world.known @ world.weights, n)
    errors, near, alike = np.zeros(n), np.zeros(n), np.zeros(n)
    deleted: list[Array] = []
    rng = np.random.default_rng(0)
    for step in range(n):
        x, truth = world.inputs[step], world.truths[step]
        rows, cosines = records.nearest(x, rules.k)
        outputs = records.output[rows]
        guess = follower(x, records.inputs[rows], outputs, cosines, world.draws[step])
        error = abs(guess - truth)
        errors[step], near[step], alike[step] = (
            error,
            cosines[0],
            np.exp(-((guess - outputs[0]) ** 2)),
        )
        # Deletion uses the evaluator of addition; add-all and fixed use the true success.
        tolerance = rules.tolerance if 0 < rules.tolerance < np.inf else success
        records.used(rows, float(error <= tolerance))
        if error <= rules.tolerance:
            output, wrong = (truth, 0.0) if rules.truth else (guess, error)
            records.add(x, output, wrong, step, error <= tolerance)
        deleted += _delete(records, rules, step, rows)
        if rules.limit is not None:
            deleted += _limit(records, rules, rng)
    often = records.alive[: records.end] & (records.retrieved > 5)
    return Outcome(
        100 * float(np.mean(errors <= success)),
        records.size,
        errors,
        near,
        alike,
        records.error[often].copy(),
        np.concatenate([np.zeros(0), *deleted]),
        records,
    )


def _delete(records: Records, rules: Rules, step: int, rows: Any) -> list[Array]:
    """By history what was just retrieved, by period at its end."""
    gone = []
    if rules.deletion in ("history", "combined"):
        bad = records.bad(rows, rules.n, rules.beta)
        if rules.sliding and len(bad) > 1:
            bad = bad[[int(np.argmin(records.utility[bad] / records.retrieved[bad]))]]
        if len(bad):
            gone.append(records.delete(bad))
    if rules.deletion in ("periodic", "combined") and (step + 1) % rules.period == 0:
        gone.append(records.delete(records.stale(rules.alpha, step, rules.period)))
    return gone


def _limit(records: Records, rules: Rules, rng: np.random.Generator) -> list[Array]:
    """One record goes for each beyond the limit."""
    gone = []
    while rules.limit is not None and records.size > rules.limit:
        alive = records.alive[: records.end]
        if rules.limited_by == "constrained":
            row = int(np.argmin(records.mean_utility()))
            row = row if alive[row] else int(np.argmax(alive))
        elif rules.limited_by == "random":
            row = int(rng.choice(np.flatnonzero(alive)))
        else:
            order = np.where(alive, records.created, np.inf)
            if rules.limited_by == "failures_first":
                order = order + np.where(records.passed > 0, 1e9, 0.0)
            row = int(np.argmin(order))
        gone.append(records.delete(np.array([row])))
    return gone


def frozen_success(world: World, follower: Follower, records: Records, size: int, k: int) -> float:
    """Return the percent solved with the `size` most retrieved records, frozen."""
    alive = np.flatnonzero(records.alive[: records.end])
    rows = alive[np.argsort(-records.retrieved[alive], kind="stable")[:size]]
    kept = Records(records.inputs[rows], records.output[rows], records.output[rows], 0)
    right = 0
    for x, truth, draw in zip(world.inputs, world.truths, world.draws, strict=True):
        found, cosines = kept.nearest(x, k)
        right += (
            abs(follower(x, kept.inputs[found], kept.output[found], cosines, draw) - truth) <= 1.0
        )
    return 100 * right / len(world.truths)
