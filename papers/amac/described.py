"""A-MAC as its paper describes it: novelty against admitted turns, conflicts settled.

A candidate is a turn when it is spoken: it supports itself (C = 1) and is new (R = 1). Utility,
novelty and type remain; the weight of constant factors moves the threshold.
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
    """A conversation: cosines (n, n), utility U and type prior T of turns, and needed turns."""

    cosines: Array
    utility: Array
    prior: Array
    needed: Flags


@dataclass(frozen=True, order=True)
class Setting:
    """Remaining weights and threshold: admit iff utility U + novelty N + prior T >= threshold."""

    utility: float
    novelty: float
    prior: float
    threshold: float


def admitted(stream: Stream, setting: Setting) -> Flags:
    """Run Algorithm 1: of two turns in conflict the one with the higher score stays.

    The text says so; as printed, the lower-scored candidate would be added beside it.
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
    """Return distinct weights on the simplex in steps of .1, with all thresholds.

    Args:
        utility: U of each stream; the weight of a constant moves the threshold.
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
    """Return for each stream the setting with the highest F1 over all others."""
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
