"""Admission on whole conversations; each rule is fitted on the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from atommem.embedding.embedder import Vectors
from atommem.envs.scoring.statistics import Difference, holm, paired_difference
from papers.amac.decisions import Flags, best_threshold, decided, swap_test
from papers.amac.described import Stream, admitted, fit_without_each, settings
from papers.amac.factors import (
    Array,
    confidences,
    novelties,
    surface_features,
    type_priors,
)
from papers.inputs import Conversation
from papers.report import Report, Table

PUBLISHED = "A-MAC as published"


def leave_one_out(
    report: Report,
    conversations: Sequence[Conversation],
    vectors: Vectors,
    progress: Callable[[str], None],
) -> None:
    """F1 of every rule on every conversation, and each against A-MAC as published."""
    ends = np.cumsum([len(conversation.texts) for conversation in conversations])
    parts = np.split(vectors, ends[:-1])
    needed = [np.array(conversation.needed) for conversation in conversations]
    priors = [type_priors(conversation.texts) for conversation in conversations]
    progress("amac: support of every turn by earlier ones")
    support = [confidences(conversation.texts) for conversation in conversations]
    rules: dict[str, list[Flags]] = {
        PUBLISHED: [
            0.05 + 0.1 * c + 0.1 + 0.6 * t >= 0.55 - 1e-9
            for c, t in zip(support, priors, strict=True)
        ],
    }
    streams = [
        Stream((part @ part.T).astype(np.float64), np.full(len(part), 0.5), prior, truth)
        for part, prior, truth in zip(parts, priors, needed, strict=True)
    ]
    if len(conversations) > 1:
        choices = settings([stream.utility for stream in streams])
        progress(f"amac: as described, {len(choices)} settings of weights and threshold")
        every = {choice: [admitted(stream, choice) for stream in streams] for choice in choices}
        chosen = fit_without_each(streams, every)
        rules["A-MAC as described"] = [every[choice][i] for i, choice in enumerate(chosen)]
        lengths = [np.array([float(len(t.split())) for t in c.texts]) for c in conversations]
        rules["at least L words"] = fitted(lengths, needed)
        five = [
            np.column_stack([s, novelties(p), t])
            for s, p, t in zip(support, parts, priors, strict=True)
        ]
        rules["logistic, A-MAC's factors"] = fitted(logistic(five, needed), needed)
        six = [
            surface_features(c.texts, part) for c, part in zip(conversations, parts, strict=True)
        ]
        rules["logistic, six surface features"] = fitted(logistic(six, needed), needed)
    rules["type prior >= .7"] = [prior >= 0.7 for prior in priors]
    rules["admit everything"] = [np.ones(len(truth), dtype=bool) for truth in needed]
    compare_rules(report, [conversation.name for conversation in conversations], rules, needed)


def fitted(scores: Sequence[Array], needed: Sequence[Flags]) -> list[Flags]:
    """Each conversation's turns from the score on that has the highest F1 over all others."""
    found = []
    for i, own in enumerate(scores):
        rest = [j for j in range(len(scores)) if j != i]
        threshold = best_threshold(
            np.concatenate([scores[j] for j in rest]), np.concatenate([needed[j] for j in rest])
        )
        found.append(own >= threshold)
    return found


def logistic(features: Sequence[Array], needed: Sequence[Flags]) -> list[Array]:
    """Each conversation's turns scored by a logistic regression that was fitted on all others."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    found = []
    for i, own in enumerate(features):
        rest = [j for j in range(len(features)) if j != i]
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        model.fit(
            np.concatenate([features[j] for j in rest]), np.concatenate([needed[j] for j in rest])
        )
        found.append(np.asarray(model.decision_function(own)))
    return found


def compare_rules(
    report: Report, names: Sequence[str], rules: dict[str, list[Flags]], needed: Sequence[Flags]
) -> None:
    """The table, and the tests against A-MAC as published with Holm's correction."""
    truth = np.concatenate(needed)
    base = [decided(flags, own).f1 for flags, own in zip(rules[PUBLISHED], needed, strict=True)]
    others = [name for name in rules if name != PUBLISHED]
    tests = [
        swap_test(np.concatenate(rules[name]), np.concatenate(rules[PUBLISHED]), truth)
        for name in others
    ]
    adjusted = dict(zip(others, holm(tests), strict=True))
    rows: list[list[Any]] = []
    for name, flags in rules.items():
        scores = [decided(own, label).f1 for own, label in zip(flags, needed, strict=True)]
        gaps = [a - b for a, b in zip(scores, base, strict=True)]
        gap = paired_difference(gaps, names) if any(gaps) else None
        rows.append(
            [
                name,
                *scores,
                fmean(scores),
                int(np.concatenate(flags).sum()),
                _interval(gap),
                None if gap is None else f"{sum(gap > 0 for gap in gaps)} of {len(names)}",
                adjusted.get(name),
            ]
        )
    columns = ["rule", *names, "mean F1", "admitted", f"minus {PUBLISHED}", "better on", "p (Holm)"]
    title = (
        f"Whole conversations ({int(truth.sum())} of {len(truth)} turns needed), F1; fitted on the "
        "others"
    )
    report.tables.append(Table(title, columns, rows))
    report.check(
        "leave one conversation out, with tests",
        len(names) >= 5 and len(adjusted) == 6,
        f"{len(names)} conversations, {len(adjusted)} tests",
        "5 or more, 6",
    )
    report.notes.append(
        "Intervals are over conversations (few: Student's t), p-values swap decisions of single "
        "turns, which is too "
        "sure where turns of a conversation go together. U is constant throughout: no LLM was "
        "asked."
    )


def _interval(gap: Difference | None) -> str | None:
    return None if gap is None else f"{gap.difference:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]"
