"""Thousands of numeric records as arrays, with what deletion goes by.

The rules are those of the experience bank, here on columns, as
one reproduction runs them over a million tasks.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from papers.regagent.world import Array

Ints = npt.NDArray[np.int64]


class Records:
    """Inputs, outputs and retrieval statistics; deleted rows are compacted.

    Args:
        inputs, outputs, truths: The initial records: (m, dim), (m,), (m,).
        room: Most records that are added.
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
        """One more."""
        row = self.end
        self.inputs[row] = x
        self.units[row] = x / np.linalg.norm(x)
        self.columns[:, row] = (output, error, step, 0, 0, 0, passed)
        self.alive[row] = True
        self.end += 1
        self.size += 1

    def nearest(self, x: Array, k: int) -> tuple[Ints, Array]:
        """Rows of the `k` most similar, best first, and their cosines."""
        cosines = self.units[: self.end] @ (x / np.linalg.norm(x))
        if self.size < self.end:
            cosines[~self.alive[: self.end]] = -2.0
        k = min(k, self.size)
        rows = np.argpartition(cosines, len(cosines) - k)[len(cosines) - k :]
        rows = rows[np.argsort(-cosines[rows], kind="stable")]
        return rows, cosines[rows]

    def used(self, rows: Ints, utility: float) -> None:
        """A task that retrieved these rows ended so."""
        self.columns[3, rows] += 1
        self.columns[4, rows] += 1
        self.columns[5, rows] += utility

    def delete(self, rows: Ints) -> Array:
        """Forget them; returns the errors of those that were retrieved more than five times."""
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
        """Of every row; infinite for what was never retrieved (and dead)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            means = np.where(self.retrieved > 0, self.utility / self.retrieved, np.inf)
        return np.where(self.alive[: self.end], means, np.inf)
