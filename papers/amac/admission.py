"""The factors of A-MAC as its code computes them, and admission on whole conversations.

In the code two factors are constant: novelty is 1, because its store is empty, and recency 0,
because dates of 2023 are compared with today's clock. In the paper's description a candidate is a
turn when it is spoken: it supports itself (C = 1) and is new (R = 1). Utility, novelty and type
remain; constant factors move the threshold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import log
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

from atommem.embedding.embedder import Vectors
from atommem.envs.scoring.metrics import stem
from atommem.envs.scoring.statistics import holm, paired_difference
from papers.amac.rule import PRIORS, SAME, kind_of
from papers.experiment import Report, progress
from papers.inputs import Conversation

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
ROUNDS = 9_999
THRESHOLD = 0.55 - 1e-9
"""As published; rounding errors count as equal."""
_DATE = re.compile(
    r"\d|\b(?:yesterday|today|tomorrow|week|month|year|last|next|ago|monday|tuesday|wednesday"
    r"|thursday|friday|saturday|sunday|january|february|march|april|may|june|july|august|september"
    r"|october|november|december)\b",
    re.IGNORECASE,
)


def type_priors(texts: Sequence[str]) -> Array:
    """Return T of each text."""
    return np.array([PRIORS[kind_of(text)] for text in texts])


def rouge_words(text: str) -> list[str]:
    """Return words like the package rouge_score: lower case, longer than three stemmed."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    return [stem(word) if len(word) > 3 else word for word in words]


def rouge_l(candidate: Sequence[str], reference: Sequence[str]) -> float:
    """Return the F score of the longest common subsequence of words (Lin 2004).

    The length is computed with bit vectors (Hyyro 2004): `rows` has a zero for each matched word.
    """
    if not candidate or not reference:
        return 0.0
    places: dict[str, int] = {}
    for i, word in enumerate(candidate):
        places[word] = places.get(word, 0) | 1 << i
    rows = full = (1 << len(candidate)) - 1
    for word in reference:
        matches = rows & places.get(word, 0)
        rows = ((rows + matches) | (rows - matches)) & full
    return 2 * (len(candidate) - rows.bit_count()) / (len(candidate) + len(reference))


def confidences(texts: Sequence[str]) -> Array:
    """Return C: the best ROUGE-L with an earlier turn that shares a word, or 0."""
    words = [rouge_words(text) for text in texts]
    raw = [set(text.lower().split()) for text in texts]
    found = np.zeros(len(texts))
    for i in range(len(texts)):
        earlier = [j for j in range(i) if texts[j] and raw[i] & raw[j]]
        found[i] = max((rouge_l(words[i], words[j]) for j in earlier), default=0.0)
    return found


def published_scores(texts: Sequence[str], support: Array | None = None) -> Array:
    """Return S of A-MAC's code with U = .5; its novelty is 1, its recency 0, C is `support`."""
    support = confidences(texts) if support is None else support
    return np.asarray(0.15 + 0.1 * support + 0.6 * type_priors(texts))


def novelties(vectors: Vectors) -> Array:
    """Return 1 minus the highest cosine with an earlier turn; 1 for the first."""
    cosines = np.tril((vectors @ vectors.T).astype(np.float64), -1)
    return 1 - cosines.max(axis=1, initial=0.0)


def surface_features(texts: Sequence[str], vectors: Vectors) -> Array:
    """Return six features of each turn: shape (n, 6).

    Log of words, a number or date word, capitalised words after the first, a final question mark,
    type prior, and novelty.
    """
    rows = [
        [
            log(1 + len(text.split())),
            float(bool(_DATE.search(text))),
            float(sum(word[:1].isupper() for word in text.split()[1:])),
            float(text.rstrip().endswith("?")),
        ]
        for text in texts
    ]
    return np.column_stack([np.array(rows), type_priors(texts), novelties(vectors)])


@dataclass(frozen=True)
class Decisions:
    """Counts of admission decisions: turns admitted, admitted and needed, and needed."""

    admitted: int
    right: int
    needed: int

    @classmethod
    def of(cls, admit: Flags, needed: npt.ArrayLike) -> Decisions:
        """Count them."""
        truth = np.asarray(needed, dtype=bool)
        return cls(int(admit.sum()), int((admit & truth).sum()), int(truth.sum()))

    @property
    def f1(self) -> float:
        """F1 of the counts; 0 without any."""
        return f1(self.admitted, self.right, self.needed)

    def cells(self) -> list[int | float]:
        """Return admitted, right, precision, recall and F1."""
        precision = self.right / self.admitted if self.admitted else 0.0
        recall = self.right / self.needed if self.needed else 0.0
        return [self.admitted, self.right, precision, recall, self.f1]


def f1(admitted: float, right: float, needed: float) -> float:
    """Return F1 of counts; 0 without any."""
    return 2 * right / (admitted + needed) if admitted + needed else 0.0


def best_threshold(scores: Array, needed: Flags) -> float:
    """Return the score from which on admitting has the highest F1; of several the lowest."""
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    values = 2 * np.cumsum(needed[order]) / (np.arange(1, len(order) + 1) + needed.sum())
    ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))  # ties go together
    return float(ranked[ends[values[ends] >= values[ends].max() - 1e-12][-1]])


def swap_test(one: Flags, other: Flags, needed: Flags) -> float:
    """Return the two-sided p-value of a difference of F1 over the same turns.

    Approximate randomisation (Noreen 1989): under the null, each turn's two decisions may be
    swapped. Turns of a conversation are treated as independent, so p is too small.
    """
    differ = one != other
    if not differ.any():
        return 1.0
    here, truth = one[differ], needed[differ]
    same_admitted, same_right = int(one[~differ].sum()), int((one & needed)[~differ].sum())
    total = int(needed.sum())

    def score(flags: Flags) -> Array:
        admitted, right = flags.sum(axis=-1), (flags & truth).sum(axis=-1)
        values: Array = 2 * (same_right + right) / np.maximum(1, same_admitted + admitted + total)
        return values

    def gap(flags: Flags) -> Array:
        return score(flags) - score(~flags)

    observed = abs(float(gap(here[None])[0]))
    rng = np.random.default_rng(0)
    swaps = rng.integers(0, 2, (ROUNDS, len(here)), dtype=np.int8).astype(bool)
    far = int((np.abs(gap(here[None] ^ swaps)) >= observed - 1e-12).sum())
    return (1 + far) / (1 + ROUNDS)


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
    streams: Sequence[Stream], decisions: Mapping[Setting, list[Flags]]
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
            published_scores(*pair) >= THRESHOLD for pair in zip(texts, support, strict=True)
        ],
    }
    streams = [
        Stream((part @ part.T).astype(np.float64), prior, truth)
        for part, prior, truth in zip(parts, priors, needed, strict=True)
    ]
    choices = sorted({*settings()})
    progress(f"amac: as described, {len(choices)} settings of weights and threshold")
    every = {one: [admit_as_described(stream, one) for stream in streams] for one in choices}
    chosen = fit_without_each(streams, every)
    rules["A-MAC as described"] = [every[choice][i] for i, choice in enumerate(chosen)]
    ablate_described(report, streams, every)
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


def ablate_described(
    report: Report, streams: Sequence[Stream], decisions: Mapping[Setting, list[Flags]]
) -> None:
    """Add Table 2 on whole conversations, weights and threshold fitted without the factor.

    Utility, confidence and recency are constant there: a threshold takes their part.
    """
    rows: list[list[Any]] = []
    for name in ("", "prior", "novelty"):
        left = {one: flags for one, flags in decisions.items() if not getattr(one, name or "_", 0)}
        chosen = fit_without_each(streams, left)
        parts = [
            Decisions.of(left[choice][i], stream.needed).f1
            for i, (choice, stream) in enumerate(zip(chosen, streams, strict=True))
        ]
        rows.append([name or "nothing", fmean(parts)])
    title = "Table 2 on whole conversations, as described (utility, confidence, recency constant)"
    report.table(title, ["without", "mean F1"], rows)


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
