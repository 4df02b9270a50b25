"""The bank of trajectories: what is retrieved for a task, and what goes when there are more than fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from atommem.embedding.embedder import Vectors
from atommem.eval.reproduce.traceretain.agent import Hint

Array = npt.NDArray[np.float64]
Ties = Literal["older", "newer"]
FEATURES = (
    "success",
    "age",
    "gap",
    "access",
    "specificity",
    "redundancy",
    "efficiency",
    "utility",
    "confidence",
    "last_similarity",
    "mean_similarity",
)


@dataclass(eq=False)
class Trajectory:
    """One record. `signature` is family, object, modifier, receptacle; times are numbers of episodes."""

    number: int
    text: int
    signature: tuple[str, str, str, str]
    success: bool
    steps: int
    found: Hint
    created: int
    used: int = 0
    last_used: int | None = None
    last_similarity: float = 0.0
    similarity_sum: float = 0.0
    outcomes: list[bool] = field(default_factory=list)

    def relevant_to(self, signature: tuple[str, str, str, str]) -> bool:
        """It succeeded at this task, or at one of the family with the object or the receptacle."""
        same_family = self.signature[0] == signature[0]
        return self.success and same_family and (self.signature[1] == signature[1] or self.signature[3] == signature[3])


Scores = Callable[["Bank", int], Array]
"""Of every record, at an episode: the lowest goes, of equal ones the older."""


class Bank:
    """Records in the order of their creation.

    Args:
        vectors: Of all texts that there are, by `Trajectory.text`: (m, dim).
        capacity: Most records; None is unbounded.
        scores: Which goes first.
        ties: Which of equally similar records comes first.
        steps: Most steps of an episode.
        seed: Of rules that draw.
    """

    def __init__(
        self,
        vectors: Vectors,
        capacity: int | None,
        scores: Scores,
        ties: Ties = "older",
        steps: int = 50,
        seed: int = 0,
    ) -> None:
        self.vectors, self.capacity, self.scores, self.ties, self.steps = vectors, capacity, scores, ties, steps
        self.records: list[Trajectory] = []
        self.rng = np.random.default_rng(seed)
        self._cosines = (vectors @ vectors.T).astype(np.float64)
        self._next = 0

    def retrieve(self, text: int, k: int) -> list[tuple[Trajectory, float]]:
        """The `k` most similar, best first."""
        order = self.records if self.ties == "older" else self.records[::-1]
        if not order:
            return []
        cosines = self._cosines[text, [record.text for record in order]]
        best = np.argsort(-np.round(cosines, 6), kind="stable")[:k]
        return [(order[i], float(cosines[i])) for i in best]

    def observe(self, shown: list[tuple[Trajectory, float]], won: bool, episode: int) -> None:
        """An episode that was shown these ended so."""
        for record, similarity in shown:
            record.used += 1
            record.last_used, record.last_similarity = episode, similarity
            record.similarity_sum += similarity
            record.outcomes.append(won)

    def write(
        self, text: int, signature: tuple[str, str, str, str], won: bool, steps: int, found: Hint, episode: int
    ) -> None:
        """One more; what is too much goes."""
        self.records.append(Trajectory(self._next, text, signature, won, steps, found, episode))
        self._next += 1
        if self.capacity is not None and len(self.records) > self.capacity:
            del self.records[int(np.argmin(self.scores(self, episode)))]

    def column(self, name: str) -> Array:
        """A number of every record."""
        return np.array([getattr(record, name) for record in self.records], dtype=float)

    def features(self, episode: int) -> Array:
        """`FEATURES` of every record: shape (n, 11)."""
        now = max(1, episode)
        texts = [record.text for record in self.records]
        cosines = self._cosines[np.ix_(texts, texts)]
        n = len(texts)
        others = np.where(np.eye(n, dtype=bool), -1.0, cosines)
        counts = np.array([len(record.outcomes) for record in self.records], dtype=float)
        last = np.array([r.created if r.last_used is None else r.last_used for r in self.records])
        used = self.column("used")
        return np.column_stack(
            [
                self.column("success"),
                (episode - self.column("created")) / now,
                (episode - last) / now,
                np.log1p(used) / np.log1p(now),
                1 - (cosines.sum(axis=1) - 1) / max(1, n - 1),
                others.max(axis=1) if n > 1 else np.zeros(n),
                1 - self.column("steps") / self.steps,
                [np.mean(record.outcomes) if record.outcomes else 0.5 for record in self.records],
                counts / (counts + 3),
                self.column("last_similarity"),
                self.column("similarity_sum") / np.maximum(1, used),
            ]
        )


def weighted(weights: Array) -> Scores:
    """A linear score of `FEATURES`."""
    return lambda bank, episode: bank.features(episode) @ weights


def linear_weights(paper: Mapping[str, float]) -> Array:
    """Weights by name as `FEATURES` are ordered."""
    return np.array([paper[name] for name in FEATURES], dtype=float)


def _oldest(bank: Bank, episode: int) -> Array:
    return bank.column("number")


def _least_recent(bank: Bank, episode: int) -> Array:
    return np.array([r.created if r.last_used is None else r.last_used for r in bank.records], dtype=float)


def _least_used(bank: Bank, episode: int) -> Array:
    return bank.column("used")


def _random(bank: Bank, episode: int) -> Array:
    return bank.rng.random(len(bank.records))


def _ebbinghaus(bank: Bank, episode: int) -> Array:
    return np.exp(-(episode - _least_recent(bank, episode)) / (1 + bank.column("used")))


def _failures_first(bank: Bank, episode: int) -> Array:
    return bank.column("number") + 1e9 * bank.column("success")


RULES: dict[str, Scores] = {
    "fifo": _oldest,
    "lru": _least_recent,
    "lfu": _least_used,
    "random": _random,
    "ebbinghaus": _ebbinghaus,
    "failures first": _failures_first,
}
