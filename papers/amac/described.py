"""A-MAC as its paper describes it, on a stream of turns: novelty against what was admitted, conflicts settled.

A candidate here *is* a turn of the stream, at the moment it is said: it is supported by itself (C = 1) and new (R = 1).
What is left to decide by is utility, novelty and type; and what the constant factors weigh, moves the threshold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from atommem.rules.amac import SAME
from papers.amac.decisions import Flags, f1
from papers.amac.factors import Array

CONFLICT = 0.85
"""Cosine from which on two memories with other texts contradict each other."""
THRESHOLDS = (0.30, 0.35, 0.40, 0.45, 0.50, 0.55, 0.60)


@dataclass(frozen=True)
class Stream:
    """One conversation. Cosines (n, n) of its turns; utility U and type prior T of each; which are needed."""

    cosines: Array
    utility: Array
    prior: Array
    needed: Flags


@dataclass(frozen=True, order=True)
class Setting:
    """What is left of weights and threshold: admit iff utility U + novelty N + prior T >= threshold."""

    utility: float
    novelty: float
    prior: float
    threshold: float


def admitted(stream: Stream, setting: Setting) -> Flags:
    """Algorithm 1, turn by turn. Of two that conflict the one with the higher score stays.

    As printed, a candidate that conflicts with a higher-scored memory would be added beside it; the text says that the
    higher-scored is retained: so it is here.
    """
    fixed = setting.utility * stream.utility + setting.prior * stream.prior
    closest = np.zeros(len(fixed))  # of each turn, the highest cosine with what is in the store
    kept, stored = np.zeros(len(fixed), dtype=bool), np.zeros(len(fixed), dtype=bool)
    scores = np.zeros(len(fixed))
    for i, known in enumerate(fixed):
        near = closest[i]
        score = known + setting.novelty * (1 - near)
        if score < setting.threshold - 1e-9:
            continue
        if near > CONFLICT:
            rival = int(np.argmax(np.where(stored, stream.cosines[i], -2.0)))
            if scores[rival] >= score or near >= SAME:
                continue
            stored[rival] = (
                False  # superseded: it was admitted, and what it said is now said better
            )
            closest = stream.cosines[:, stored].max(axis=1, initial=0.0)
        scores[i], kept[i], stored[i] = score, True, True
        np.maximum(closest, stream.cosines[i], out=closest)
    return kept


def settings(utility: Sequence[Array]) -> list[Setting]:
    """All weights on the simplex in steps of .1 with all thresholds, without those that decide alike.

    Args:
        utility: U of each stream; where it is one number everywhere, its weight moves the threshold too.
    """
    values = np.unique(np.concatenate(utility))
    constant = float(values[0]) if len(values) == 1 else None
    return sorted(set(_settings(constant)))


def _settings(constant: float | None) -> Iterator[Setting]:
    for u, n, t in product(range(11), repeat=3):
        if u + n + t <= 10:
            rest = (10 - u - n - t) / 10  # of confidence and recency, which are 1
            for threshold in THRESHOLDS:
                left = threshold - rest - (0.0 if constant is None else u / 10 * constant)
                yield Setting(u / 10 if constant is None else 0.0, n / 10, t / 10, round(left, 6))


def fit_without_each(
    streams: Sequence[Stream], decisions: dict[Setting, list[Flags]]
) -> list[Setting]:
    """For each stream the setting with the highest F1 over all others together; of several the first."""
    counts = {
        setting: np.array(
            [
                (kept.sum(), (kept & s.needed).sum(), s.needed.sum())
                for kept, s in zip(flags, streams, strict=True)
            ]
        )
        for setting, flags in decisions.items()
    }
    found = []
    for left_out in range(len(streams)):
        rest = [i for i in range(len(streams)) if i != left_out]
        found.append(
            max(counts, key=lambda setting: f1(*counts[setting][rest].sum(axis=0).tolist()))
        )
    return found
