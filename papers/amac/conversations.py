"""Admission on whole conversations, each rule fitted on the others; A-MAC as its paper says.

In the paper's description a candidate is a turn when it is spoken: it supports itself (C = 1) and
is new (R = 1). Utility, novelty and type remain; constant factors move the threshold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np

from atommem.embedding.embedder import Vectors
from atommem.envs.scoring.statistics import holm, paired_difference
from atommem.rules.amac import SAME
from papers.amac.factors import (
    Array,
    Decisions,
    Flags,
    best_threshold,
    confidences,
    f1,
    novelties,
    surface_features,
    swap_test,
    type_priors,
)
from papers.experiment import Report, progress
from papers.inputs import Conversation

CONFLICT = 0.85
"""Cosine from which on two memories with other texts contradict each other."""
THRESHOLDS = (0.30, 0.35, 0.40, 0.45, 0.50, 0.55, 0.60)
UTILITY = 0.5
PUBLISHED = "A-MAC as published"


@dataclass(frozen=True)
class Stream:
    """A conversation: cosines (n, n), type priors, and needed turns."""

    cosines: Array
    prior: Array
    needed: Flags


@dataclass(frozen=True, order=True)
class Setting:
    """Remaining weights and threshold: admit iff novelty N + prior T >= threshold."""

    novelty: float
    prior: float
    threshold: float


def admit_as_described(stream: Stream, setting: Setting) -> Flags:
    """Run Algorithm 1: of two turns in conflict the one with the higher score stays.

    The text says so; as printed, the lower-scored candidate would be added beside it.
    """
    fixed = setting.prior * stream.prior
    closest = np.zeros(len(fixed))  # the highest cosine of each turn with the store
    admitted, stored = np.zeros(len(fixed), dtype=bool), np.zeros(len(fixed), dtype=bool)
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
            stored[rival] = False  # superseded, but it was admitted
            closest = stream.cosines[:, stored].max(axis=1, initial=0.0)
        scores[i], admitted[i], stored[i] = score, True, True
        np.maximum(closest, stream.cosines[i], out=closest)
    return admitted


def settings() -> Iterator[Setting]:
    """Yield weights on the simplex in steps of .1 with all thresholds; constants move those."""
    for u, n, t in product(range(11), repeat=3):
        if u + n + t <= 10:
            constant = (10 - u - n - t) / 10 + u / 10 * UTILITY
            for threshold in THRESHOLDS:
                yield Setting(n / 10, t / 10, round(threshold - constant, 6))


def fit_without_each(
    streams: Sequence[Stream], decisions: dict[Setting, list[Flags]]
) -> list[Setting]:
    """Return for each stream the setting with the highest F1 over all others."""
    counts = {
        setting: np.array(
            [
                (found.admitted, found.right, found.needed)
                for found in map(Decisions.of, flags, [stream.needed for stream in streams])
            ]
        )
        for setting, flags in decisions.items()
    }

    def score(setting: Setting, left_out: int) -> float:
        return f1(*np.delete(counts[setting], left_out, axis=0).sum(axis=0).tolist())

    return [max(counts, key=lambda one: score(one, i)) for i in range(len(streams))]


def without(parts: Sequence[Any], index: int) -> Any:
    """Concatenate all arrays but one."""
    return np.concatenate([part for place, part in enumerate(parts) if place != index])


def fit_threshold(scores: Sequence[Array], needed: Sequence[Flags]) -> list[Flags]:
    """Admit each conversation's turns by the threshold that is best on all others."""
    return [
        own >= best_threshold(without(scores, i), without(needed, i))
        for i, own in enumerate(scores)
    ]


def fit_logistic(features: Sequence[Array], needed: Sequence[Flags]) -> list[Flags]:
    """Admit by a logistic regression that was fitted on all other conversations."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    scores = []
    for i, own in enumerate(features):
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        model.fit(without(features, i), without(needed, i))
        scores.append(np.asarray(model.decision_function(own)))
    return fit_threshold(scores, needed)


def leave_one_out(report: Report, conversations: Sequence[Conversation], vectors: Vectors) -> None:
    """Measure F1 of every rule on every conversation, and test each against A-MAC."""
    ends = np.cumsum([len(conversation.texts) for conversation in conversations])
    parts = np.split(vectors, ends[:-1])
    needed = [np.array(conversation.needed) for conversation in conversations]
    texts = [conversation.texts for conversation in conversations]
    priors = [type_priors(part) for part in texts]
    progress("amac: support of every turn by earlier ones")
    support = [confidences(part) for part in texts]
    rules: dict[str, list[Flags]] = {
        PUBLISHED: [
            0.05 + 0.1 * c + 0.1 + 0.6 * t >= 0.55 - 1e-9
            for c, t in zip(support, priors, strict=True)
        ],
    }
    if len(conversations) > 1:
        streams = [
            Stream((part @ part.T).astype(np.float64), prior, truth)
            for part, prior, truth in zip(parts, priors, needed, strict=True)
        ]
        choices = sorted({*settings()})
        progress(f"amac: as described, {len(choices)} settings of weights and threshold")
        every = {one: [admit_as_described(stream, one) for stream in streams] for one in choices}
        chosen = fit_without_each(streams, every)
        rules["A-MAC as described"] = [every[choice][i] for i, choice in enumerate(chosen)]
        lengths = [np.array([float(len(text.split())) for text in part]) for part in texts]
        rules["at least L words"] = fit_threshold(lengths, needed)
        columns = zip(support, map(novelties, parts), priors, strict=True)
        factors = [np.column_stack(column) for column in columns]
        rules["logistic, A-MAC's factors"] = fit_logistic(factors, needed)
        surface = [surface_features(*pair) for pair in zip(texts, parts, strict=True)]
        rules["logistic, six surface features"] = fit_logistic(surface, needed)
    rules["type prior >= .7"] = [prior >= 0.7 for prior in priors]
    rules["admit everything"] = [np.ones(len(truth), dtype=bool) for truth in needed]
    compare_rules(report, [conversation.name for conversation in conversations], rules, needed)


def compare_rules(
    report: Report, names: Sequence[str], rules: dict[str, list[Flags]], needed: Sequence[Flags]
) -> None:
    """Add the table, with tests against A-MAC as published under Holm's correction."""
    truth = np.concatenate(needed)
    scores = {
        name: [found.f1 for found in map(Decisions.of, flags, needed)]
        for name, flags in rules.items()
    }
    others = [name for name in rules if name != PUBLISHED]
    base = np.concatenate(rules[PUBLISHED])
    tests = [swap_test(np.concatenate(rules[name]), base, truth) for name in others]
    adjusted = dict(zip(others, holm(tests), strict=True))
    rows: list[list[Any]] = []
    for name, flags in rules.items():
        gaps = [a - b for a, b in zip(scores[name], scores[PUBLISHED], strict=True)]
        interval = better = None
        if any(gaps):
            gap = paired_difference(gaps, names)
            interval = f"{gap.difference:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]"
            better = f"{sum(gap > 0 for gap in gaps)} of {len(names)}"
        admitted = int(np.concatenate(flags).sum())
        means = [*scores[name], fmean(scores[name]), admitted]
        rows.append([name, *means, interval, better, adjusted.get(name)])
    columns = ["rule", *names, "mean F1", "admitted", f"minus {PUBLISHED}", "better on", "p (Holm)"]
    title = f"Whole conversations ({int(truth.sum())} of {len(truth)} turns needed), F1; fitted on "
    report.table(f"{title}the others", columns, rows)
    report.check(
        "leave one conversation out, with tests",
        len(names) >= 5 and len(adjusted) == 6,
        f"{len(names)} conversations, {len(adjusted)} tests",
        "5 or more, 6",
    )
    report.notes.append(
        "Intervals are over conversations (few: Student's t). p-values swap decisions of single "
        "turns, and are too small where turns of a conversation go together. U is constant."
    )
