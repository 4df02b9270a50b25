"""Retention rules by age, use or similarity, and by a rating at creation; of ties the oldest goes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from atommem.errors import ConfigError
from atommem.memory.log import Entry
from atommem.memory.rules import Candidate, Eviction, Numbers, Rule, StoreState, lowest


class Reject(Rule):
    """Refuse the new entry (the paper's rule): the policy must delete before it creates."""

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        return Eviction(None, "the store is full")


class FirstInFirstOut(Rule):
    """Evict the oldest entry; an update does not make it younger."""

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        oldest = next(iter(store.entries.values()))
        return Eviction(oldest.id, f"oldest, of step {oldest.created}", oldest.created)


def step_of_last_use(entry: Entry) -> int:
    """Return the step at which an entry was last shown, or else created."""
    return entry.created if entry.last_shown is None else entry.last_shown


def steps_of_last_use(store: StoreState) -> Numbers:
    """Return `step_of_last_use` of each entry, shape (n,)."""
    return np.array([step_of_last_use(entry) for entry in store.entries.values()], dtype=float)


class LeastRecentlyUsed(Rule):
    """Evict the entry that has not been shown for the longest time."""

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        chosen, step = lowest(store, steps_of_last_use(store))
        return Eviction(chosen, f"unused since step {step:.0f}", step)


class LeastFrequentlyUsed(Rule):
    """Evict the entry that was shown at the fewest steps."""

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        chosen, shown = lowest(store, store.column("shown"))
        return Eviction(chosen, f"shown {shown:.0f} times", shown)


class Ebbinghaus(Rule):
    """Evict the entry with the lowest retention exp(-(t - last use) / (1 + uses)).

    This is MemoryBank's curve. No paper gives the strength's formula; here it grows by one a use.
    """

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        # Exponents are compared, because their exponentials run out of digits.
        exponents = (steps_of_last_use(store) - store.step) / (1 + store.column("shown"))
        chosen, exponent = lowest(store, exponents)
        retained = float(np.exp(exponent))
        return Eviction(chosen, f"retention {retained:.3g}", retained)


class RandomEviction(Rule):
    """Evict at random, the new entry included: the baseline of every rule."""

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        place = int(store.rng.integers(len(store.ids) + 1))
        chosen = None if place == len(store.ids) else int(store.ids[place])
        return Eviction(chosen, "by chance")


class Redundancy(Rule):
    """Evict the entry with the highest cosine to another one, the older of such a pair."""

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        chosen, score = lowest(store, -store.nearest().astype(float))
        return Eviction(chosen, f"cosine {-score:.3f} to another entry", -score)


class FailuresFirst(Rule):
    """Evict the oldest record of a failed task, or else the oldest.

    A control for scores that were learned on streams with failures.

    Args:
        below: A task with a lower outcome failed; an unknown outcome is not a failure.
    """

    def __init__(self, below: float = 0.5) -> None:
        self._below = below

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        failed = store.column("outcome") < self._below
        age = store.column("created")
        chosen, _ = lowest(store, np.where(failed, -np.inf, age))
        reason = "oldest failure" if failed.any() else "oldest, no failures"
        return Eviction(chosen, reason, store.entries[chosen].created)


class Rated(Rule):
    """Evict the entry with the lowest rating, or refuse the new one if its own is lower.

    Of equal ratings the oldest goes. Entries without a rating (from another rule) go first.
    """

    label = "rated"

    def rate(self, candidate: Candidate, store: StoreState) -> float:
        raise NotImplementedError

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        chosen, rating = lowest(store, np.nan_to_num(store.column("score"), nan=-np.inf))
        if candidate.score is not None and candidate.score < rating:
            reason = f"{self.label} {candidate.score:.3g}, less than all entries"
            return Eviction(None, reason, candidate.score)
        return Eviction(chosen, f"{self.label} {rating:.3g}", rating)


def novelty(candidate: Candidate, store: StoreState) -> float:
    """Return 1 - the highest cosine of a text to an entry that it does not replace, 1 if none."""
    others = store.cosines(candidate.vector)[store.ids != (candidate.replaces or 0)]
    return 1.0 - float(others.max()) if len(others) else 1.0


class Novelty(Rated):
    """Keep the texts that were least like the store when they were written."""

    label = "novelty"

    def rate(self, candidate: Candidate, store: StoreState) -> float:
        return novelty(candidate, store)


class Length(Rated):
    """Keep the texts with the most words: a control that published admission scores do not beat."""

    label = "words"

    def rate(self, candidate: Candidate, store: StoreState) -> float:
        return len(candidate.text.split())


class GreedyOracle(Rated):
    """Keep the texts that most questions need: an upper reference, for evaluation only.

    It keeps the most evidence references that the store can hold. It is not a bound for questions
    that need several texts at once, which is maximum coverage.

    Args:
        needs: A JSON object or its file: text, or name of its source, to the number of questions
            that need it. Other texts are needed by none.
        task: The key of an object with the needs of many tasks: ``oracle(needs=FILE, task=$task)``.
    """

    label = "needed by"

    def __init__(self, needs: str | Mapping[str, Any], task: str | None = None) -> None:
        if isinstance(needs, str):
            needs = _read_json("oracle: needs", needs)
        if not isinstance(needs, Mapping):
            raise ConfigError("oracle: needs must be an object of texts and numbers.")
        self._needs: Mapping[str, float] = needs if task is None else needs.get(task, {})

    def rate(self, candidate: Candidate, store: StoreState) -> float:
        needed = self._needs.get(candidate.text, 0.0)
        piece = candidate.source.piece
        return float(needed if piece is None else self._needs.get(piece, needed))


CUES: dict[str, tuple[str, ...]] = {
    "preference": (
        *("prefer", "like", "dislike", "hate", "love", "favorite"),
        *("enjoy", "appreciate", "avoid", "want", "wish"),
    ),
    "identity": (
        *("i am", "i'm", "my name is", "called", "live in", "from"),
        *("work as", "job", "profession", "nationality", "age"),
    ),
    "fact": (
        *("is", "are", "was", "were", "always", "never"),
        *("true", "false", "known", "established", "defined"),
    ),
    "plan": (
        *("will", "going to", "plan to", "intend to", "scheduled", "planning"),
        *("upcoming", "future", "tomorrow", "next"),
    ),
    "goal": ("want to", "hope to", "aim to", "goal", "objective", "target", "aspire", "strive"),
    "temporary": (
        *("currently", "right now", "at the moment", "today"),
        *("this morning", "this afternoon", "temporarily"),
    ),
}
"""Of A-MAC's code (arXiv 2603.04549, at 40407ae), counted as substrings: "this" has an "is"."""

PRIORS = {
    "preference": 0.9,
    "identity": 0.9,
    "fact": 0.7,
    "plan": 0.5,
    "goal": 0.5,
    "unknown": 0.5,
    "temporary": 0.2,
}


def kind_of(text: str) -> str:
    """Return the kind with the most cues in a text, the first of equal ones, or ``unknown``."""
    low = text.lower()
    counts = {kind: sum(cue in low for cue in cues) for kind, cues in CUES.items()}
    best = max(counts, key=counts.__getitem__)
    return best if counts[best] else "unknown"


class TypePrior(Rated):
    """Keep preferences and identities before facts, plans and temporary statements."""

    label = "prior"

    def rate(self, candidate: Candidate, store: StoreState) -> float:
        return PRIORS[kind_of(candidate.text)]


FEATURES = ("log_words", "type_prior", "novelty", "has_number", "capitals", "question")

_NUMBER_OR_DATE = re.compile(
    r"\d|\b(january|february|march|april|may|june|july|august|september|october|november|december"
    r"|monday|tuesday|wednesday|thursday|friday|saturday|sunday|yesterday|tomorrow|week|month|year"
    r"|ago|last|next)\b",
    re.IGNORECASE,
)


def text_features(text: str) -> dict[str, float]:
    """Return the features that depend on the text alone: all of `FEATURES` but ``novelty``."""
    words = text.split()
    return {
        "log_words": math.log1p(len(words)),
        "type_prior": PRIORS[kind_of(text)],
        "has_number": float(_NUMBER_OR_DATE.search(text) is not None),
        "capitals": sum(word[0].isupper() for word in words[1:]) / max(1, len(words)),
        "question": float(text.rstrip().endswith("?")),
    }


class Linear(Rated):
    """Keep the texts with the highest log-odds of being needed, by a fitted linear scorer.

    Args:
        weights: A JSON file of ``python -m papers.retention fit``: ``weights`` by feature,
            ``bias``, and optionally a ``vector`` of weights for the embedding.
    """

    label = "scored"

    def __init__(self, weights: str) -> None:
        self._weights, self._vector = read_weights(weights)

    def rate(self, candidate: Candidate, store: StoreState) -> float:
        found = {**text_features(candidate.text), "novelty": novelty(candidate, store), "bias": 1.0}
        score = sum(weight * found[name] for name, weight in self._weights.items())
        if self._vector is None:
            return score
        if len(self._vector) != len(candidate.vector):
            size = len(self._vector)
            raise ConfigError(f"linear: fitted on vectors of {size} numbers. Use that embedder.")
        return score + float(self._vector @ candidate.vector)


def read_weights(path: str) -> tuple[Mapping[str, float], Numbers | None]:
    """Return the weights by feature, and of the embedding.

    Raises:
        ConfigError: The file is missing or damaged.
    """
    found = _read_json("linear: weights", path)
    try:
        weights = {str(name): float(value) for name, value in found.get("weights", found).items()}
        vector = None if found.get("vector") is None else np.array(found["vector"], dtype=float)
        if not np.isfinite([*weights.values(), *(() if vector is None else vector)]).all():
            raise ValueError("not all of them are finite numbers")
    except (ValueError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"linear: weights={path!r} ({error}). `python -m papers.retention fit` writes it."
        ) from error
    if unknown := weights.keys() - {*FEATURES, "bias"}:
        names = ", ".join(sorted(unknown))
        raise ConfigError(f"linear: unknown features {names} in {path}: use {', '.join(FEATURES)}.")
    return weights, vector


def _read_json(name: str, path: str) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name}={path!r}: cannot read the JSON file ({error}).") from error
