"""Retention rules by age, use, similarity or a rating of the text; ties evict the oldest."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from atommem.errors import ConfigError
from atommem.memory.rules import Candidate, Eviction, Numbers, Rule, StoreState, lowest


class Lowest(Rule):
    """Base class of rules that evict the entry with the lowest score."""

    reason = "score {:.3g}"

    def scores(self, store: StoreState) -> Numbers:
        """Return a score of each entry, shape (n,)."""
        raise NotImplementedError

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        chosen, score = lowest(store, self.scores(store))
        return Eviction(chosen, self.reason.format(score), score)


class FirstInFirstOut(Lowest):
    """Evict the oldest entry; an update does not make it younger."""

    reason = "oldest, of step {:.0f}"

    def scores(self, store: StoreState) -> Numbers:
        return store.column("created")


def steps_of_last_use(store: StoreState) -> Numbers:
    """Return the step at which each entry was last shown, or else created: shape (n,)."""
    shown = store.column("last_shown")
    return np.where(np.isnan(shown), store.column("created"), shown)


class LeastRecentlyUsed(Lowest):
    """Evict the entry that has not been shown for the longest time."""

    reason = "unused since step {:.0f}"

    def scores(self, store: StoreState) -> Numbers:
        return steps_of_last_use(store)


class LeastFrequentlyUsed(Lowest):
    """Evict the entry that was shown at the fewest steps."""

    reason = "shown {:.0f} times"

    def scores(self, store: StoreState) -> Numbers:
        return store.column("shown")


class RandomEviction(Rule):
    """Evict at random, the new entry included: the baseline of every rule."""

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        place = int(store.rng.integers(len(store.ids) + 1))
        chosen = None if place == len(store.ids) else int(store.ids[place])
        return Eviction(chosen, "by chance")


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
        chosen, _ = lowest(store, np.where(failed, -np.inf, store.column("created")))
        reason = "oldest failure" if failed.any() else "oldest, no failures"
        return Eviction(chosen, reason, store.entries[chosen].created)


class Rated(Rule):
    """Base class of rules that rate a text when it is written, and evict the lowest rating.

    The new entry is refused if its own rating is lower. Entries without a rating go first.
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


class Length(Rated):
    """Keep the texts with the most words: a control that published admission scores do not beat."""

    label = "words"

    def rate(self, candidate: Candidate, store: StoreState) -> float:
        return len(candidate.text.split())


CUES = {
    "preference": "prefer,like,dislike,hate,love,favorite,enjoy,appreciate,avoid,want,wish",
    "identity": "i am,i'm,my name is,called,live in,from,work as,job,profession,nationality,age",
    "fact": "is,are,was,were,always,never,true,false,known,established,defined",
    "plan": "will,going to,plan to,intend to,scheduled,planning,upcoming,future,tomorrow,next",
    "goal": "want to,hope to,aim to,goal,objective,target,aspire,strive",
    "temporary": "currently,right now,at the moment,today,this morning,this afternoon,temporarily",
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
    counts = {kind: sum(cue in low for cue in cues.split(",")) for kind, cues in CUES.items()}
    best = max(counts, key=counts.__getitem__)
    return best if counts[best] else "unknown"


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
        weights: A JSON file of ``python -m papers.retention fit``: ``weights`` by feature with a
            ``bias``, and optionally a ``vector`` of weights for the embedding.
    """

    label = "scored"

    def __init__(self, weights: str) -> None:
        found = read_weights("linear", weights)
        self._weights = found.get("weights", found)
        self._vector = np.array(found.get("vector") or [], dtype=float)
        if unknown := self._weights.keys() - {*FEATURES, "bias"}:
            raise ConfigError(f"linear: weights={weights}: unknown features {sorted(unknown)}.")

    def rate(self, candidate: Candidate, store: StoreState) -> float:
        found = {**text_features(candidate.text), "novelty": novelty(candidate, store), "bias": 1.0}
        score = sum(weight * found[name] for name, weight in self._weights.items())
        if len(self._vector):
            score += float(self._vector @ candidate.vector)
        return score


def read_weights(rule: str, path: str) -> dict[str, Any]:
    """Return the JSON object of a file with a rule's weights.

    Raises:
        ConfigError: The file is missing or not a JSON object.
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{rule}: weights={path}: cannot read it ({error}).") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{rule}: weights={path}: not a JSON object.")
    return found
