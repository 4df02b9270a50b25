"""The factors of A-MAC as its code computes them, and surface features of a fitted scorer.

Two are constant: novelty is 1, because the store is empty, and recency 0, because dates of 2023
are compared with today's clock.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import log

import numpy as np
import numpy.typing as npt

from atommem.embedding.embedder import Vectors
from atommem.envs.scoring.locomo_scores import stem
from atommem.rules.amac import rouge_l
from atommem.rules.eviction import PRIORS, kind_of

Array = npt.NDArray[np.float64]

_DATE = re.compile(
    r"\d|\b(?:yesterday|today|tomorrow|week|month|year|last|next|ago|monday|tuesday|wednesday|thursday|friday|saturday"
    r"|sunday|january|february|march|april|may|june|july|august|september|october|november|december)\b",
    re.IGNORECASE,
)


def type_priors(texts: Sequence[str]) -> Array:
    """T of each text."""
    return np.array([PRIORS[kind_of(text)] for text in texts])


def rouge_words(text: str) -> list[str]:
    """Return words like the package rouge_score: lower case, longer than three stemmed."""
    return [
        stem(word) if len(word) > 3 else word for word in re.findall(r"[a-z0-9]+", text.lower())
    ]


def confidences(texts: Sequence[str]) -> Array:
    """Return C: the best ROUGE-L with an earlier turn that shares a word, or 0."""
    words = [rouge_words(text) for text in texts]
    raw = [set(text.lower().split()) for text in texts]
    return np.array(
        [
            max(
                (rouge_l(words[i], words[j]) for j in range(i) if texts[j] and raw[i] & raw[j]),
                default=0.0,
            )
            for i in range(len(texts))
        ]
    )


def novelties(vectors: Vectors) -> Array:
    """Return 1 minus the highest cosine with an earlier turn; 1 for the first."""
    cosines = np.tril((vectors @ vectors.T).astype(np.float64), -1)
    return 1 - cosines.max(axis=1, initial=0.0)


def surface_features(texts: Sequence[str], vectors: Vectors) -> Array:
    """Return six features of each turn: shape (n, 6).

    Log of words, type prior, novelty, a number or date word, capitalised words after the first,
    and a final question mark.
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
