"""Which turns were admitted, against which were needed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Flags = npt.NDArray[np.bool_]
_ROUNDS = 9_999


@dataclass(frozen=True)
class Decisions:
    """Counts of one set of decisions.

    Attributes:
        admitted: Turns that were.
        right: Of these, needed.
        needed: Of all turns.
    """

    admitted: int
    right: int
    needed: int

    @property
    def precision(self) -> float:
        """0 where nothing was admitted."""
        return self.right / self.admitted if self.admitted else 0.0

    @property
    def recall(self) -> float:
        """0 where nothing was needed."""
        return self.right / self.needed if self.needed else 0.0

    @property
    def f1(self) -> float:
        """Their harmonic mean."""
        return f1(self.admitted, self.right, self.needed)


def decided(admit: Flags, needed: npt.ArrayLike) -> Decisions:
    """Count them."""
    truth = np.asarray(needed, dtype=bool)
    return Decisions(int(admit.sum()), int((admit & truth).sum()), int(truth.sum()))


def f1(admitted: int, right: int, needed: int) -> float:
    """F1 of the counts; 0 without any."""
    return 2 * right / (admitted + needed) if admitted + needed else 0.0


def best_threshold(scores: npt.NDArray[np.float64], needed: Flags) -> float:
    """The score from which on admitting has the highest F1; of several the lowest."""
    order = np.argsort(-scores, kind="stable")
    rights, counts = np.cumsum(needed[order]), np.arange(1, len(order) + 1)
    values = 2 * rights / (counts + needed.sum())
    last = np.append(scores[order][1:] != scores[order][:-1], True)  # ties are admitted together
    places = np.flatnonzero(last)
    return float(scores[order][places[values[places] >= values[places].max() - 1e-12][-1]])


def swap_test(one: Flags, other: Flags, needed: Flags) -> float:
    """Two-sided p-value of a difference of F1 over the same turns.

    Approximate randomisation (Noreen 1989): under the null, each turn's two decisions may be
    swapped. Turns of a conversation are treated as independent, so p is too small.
    """
    differ = one != other
    here, there = one[differ], needed[differ]
    base_one, base_other = int(one[~differ].sum()), int((one & needed)[~differ].sum())
    total = int(needed.sum())

    def gap(flags: Flags) -> npt.NDArray[np.float64]:
        """F1 of `flags` (rounds, turns that differ) minus that of their opposite."""
        sides = []
        for side in (flags, ~flags):
            admitted, right = base_one + side.sum(axis=-1), base_other + (side & there).sum(axis=-1)
            sides.append(2 * right / np.maximum(1, admitted + total))
        return np.asarray(sides[0] - sides[1])

    if not differ.any():
        return 1.0
    observed = abs(float(gap(here[None])[0]))
    rng = np.random.default_rng(0)
    swaps = rng.integers(0, 2, (_ROUNDS, len(here)), dtype=np.int8).astype(bool)
    far = int((np.abs(gap(here[None] ^ swaps)) >= observed - 1e-12).sum())
    return (1 + far) / (1 + _ROUNDS)
