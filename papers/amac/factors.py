"""The factors of A-MAC as its code computes them, and the scores of admission decisions.

Two factors are constant: novelty is 1, because the code's store is empty, and recency 0, because
dates of 2023 are compared with today's clock.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np
import numpy.typing as npt

from atommem.embedding.embedder import Vectors
from atommem.envs.scoring.metrics import stem
from atommem.rules.amac import PRIORS, kind_of

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
ROUNDS = 9_999
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
