"""Retention rules that are compared here, for ``--retention papers.retention.rules:CLASS``."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from atommem.errors import ConfigError
from atommem.memory.eviction import Rated, steps_of_last_use
from atommem.memory.rules import Candidate, Eviction, Rule, StoreState, lowest
from papers.amac.rule import PRIORS, kind_of, novelty
from papers.banks import nearest, read_weights, rule_path

RULE_PATHS = {
    "ebbinghaus": f"{__name__}:Ebbinghaus",
    "redundancy": f"{__name__}:Redundancy",
    "novelty": f"{__name__}:Novelty",
    "type_prior": f"{__name__}:TypePrior",
    "linear": f"{__name__}:Linear",
    "oracle": f"{__name__}:GreedyOracle",
    "traceretain": rule_path("traceretain"),
}
"""Rules by the names that tables give them."""


class Ebbinghaus(Rule):
    """Evict the entry with the lowest retention exp(-(t - last use) / (1 + uses)).

    This is MemoryBank's curve. No paper gives the strength's formula; here it grows by one a use.
    """

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        # Exponents are compared, because their exponentials run out of digits.
        exponents = (steps_of_last_use(store) - store.step) / (1 + store.column("shown"))
        chosen, exponent = lowest(store, exponents)
        retained = math.exp(exponent)
        return Eviction(chosen, f"retention {retained:.3g}", retained)


class Redundancy(Rule):
    """Evict the entry with the highest cosine to another one, the older of such a pair."""

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        chosen, score = lowest(store, -nearest(store).astype(float))
        return Eviction(chosen, f"cosine {-score:.3f} to another entry", -score)


class Novelty(Rated):
    """Keep the texts that were least like the store when they were written."""

    label = "novelty"

    def rate(self, candidate: Candidate, store: StoreState) -> float:
        return novelty(candidate, store)


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


class GreedyOracle(Rated):
    """Keep the most evidence references that the store can hold.

    It is not a bound for questions that need several texts at once, which is maximum coverage.

    Args:
        needs: A JSON object or its file: text, or name of its source, to the number of questions
            that need it. Other texts are needed by none.
    """

    label = "needed by"

    def __init__(self, needs: str | Mapping[str, float]) -> None:
        if isinstance(needs, str):
            needs = json.loads(Path(needs).read_text(encoding="utf-8"))
        self._needs: Mapping[str, float] = needs  # type: ignore[assignment]

    def rate(self, candidate: Candidate, store: StoreState) -> float:
        needed = self._needs.get(candidate.text, 0.0)
        piece = candidate.source.piece
        return float(needed if piece is None else self._needs.get(piece, needed))
