"""A linear scorer over six features of a text, fitted on other texts (`python -m papers.retention fit`)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from atommem.errors import ConfigError
from atommem.memory.columns import Numbers
from atommem.memory.rules import Candidate, StoreState
from atommem.rules.novelty import novelty
from atommem.rules.rated import Rated
from atommem.rules.type_prior import PRIORS, kind_of

FEATURES = ("log_words", "type_prior", "novelty", "has_number", "capitals", "question")

_NUMBER = re.compile(
    r"\d|\b(january|february|march|april|may|june|july|august|september|october|november|december|monday|tuesday|"
    r"wednesday|thursday|friday|saturday|sunday|yesterday|tomorrow|week|month|year|ago|last|next)\b",
    re.IGNORECASE,
)


def text_features(text: str) -> dict[str, float]:
    """The features that a text has by itself: all but `novelty`.

    Log of 1 + words; the prior of its kind; whether it has a digit or a word of dates; words with a capital (but the
    first), as a share; whether it ends with a question mark.
    """
    words = text.split()
    return {
        "log_words": math.log1p(len(words)),
        "type_prior": PRIORS[kind_of(text)],
        "has_number": float(_NUMBER.search(text) is not None),
        "capitals": sum(word[0].isupper() for word in words[1:]) / max(1, len(words)),
        "question": float(text.rstrip().endswith("?")),
    }


class Linear(Rated):
    """Keep what the scorer rates highest; see `Rated`.

    Args:
        weights: A JSON file as `python -m papers.retention fit` writes it: ``weights`` of the features that it uses and a
            ``bias``, and maybe a ``vector`` of weights of the text's embedding.
    """

    what = "scored"

    def __init__(self, weights: str) -> None:
        self._weights, self._vector = read_weights(weights)

    def rate(self, candidate: Candidate, store: StoreState) -> float:
        """The log-odds that the text will be needed."""
        found = {**text_features(candidate.text), "novelty": novelty(candidate, store), "bias": 1.0}
        score = sum(weight * found[name] for name, weight in self._weights.items())
        if self._vector is None:
            return score
        if len(self._vector) != len(candidate.vector):
            raise ConfigError(
                f"linear: fitted on vectors of {len(self._vector)} numbers: use the same embedder."
            )
        return score + float(self._vector @ candidate.vector)


def read_weights(path: str) -> tuple[Mapping[str, float], Numbers | None]:
    """Weights by feature, and of the embedding. Raises ConfigError where the file has none, or has others."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        weights = {str(name): float(value) for name, value in found.get("weights", found).items()}
        vector = None if found.get("vector") is None else np.array(found["vector"], dtype=float)
        if not np.isfinite([*weights.values(), *(() if vector is None else vector)]).all():
            raise ValueError("not all of them are finite numbers")
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"linear: weights {path!r} cannot be read ({error}): python -m papers.retention fit makes them."
        ) from error
    if unknown := weights.keys() - {*FEATURES, "bias"}:
        raise ConfigError(
            f"linear: {path} has weights of {', '.join(sorted(unknown))}; known are {', '.join(FEATURES)}."
        )
    return weights, vector
