"""The bank of MemoBankRL (Algorithms 1 to 3), on positions in a stream of cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from atommem.embedding.embedder import Vectors

Ints = npt.NDArray[np.int64]
Pruning = Literal["utility", "label", "newest", "random", "none"]


@dataclass
class Bank:
    """What is left of a stream, and why the rest is not.

    Attributes:
        kept: Positions in the stream, oldest first.
        duplicates, pruned: How many went at the door, and how many later.
        prunings: How many times the bank was full.
        similarities: The highest cosine at the door of each of the last 500 cases. As published, nothing reads it.
    """

    kept: list[int] = field(default_factory=list)
    duplicates: int = 0
    pruned: int = 0
    prunings: int = 0
    similarities: list[float] = field(default_factory=list)


def utility(
    counts: npt.NDArray[np.float64], ages: Ints, rewards: npt.NDArray[np.float64], paper: Mapping[str, Any]
) -> Any:
    """Equation 1: .7 count exp(-.02 age) / age + .3 reward; an age is at least 1."""
    ages = np.maximum(1, ages)
    weights = paper["weights"]
    return weights["retrieved"] * counts * np.exp(-paper["decay"] * ages) / ages + weights["reward"] * rewards


def fill(
    vectors: Vectors,
    positive: Sequence[bool],
    paper: Mapping[str, Any],
    seed: int,
    pruning: Pruning = "utility",
    *,
    newest_wins: bool = False,
    count_retrievals: bool = False,
) -> Bank:
    """Run the stream through the bank.

    Args:
        vectors: Of the cases' queries: shape (n, dim), unit norm.
        positive: Their labels.
        paper: Settings (`configs/reproduce/memobank.yaml`).
        seed: Of the samples at the door.
        pruning: ``utility`` is the method; the others are controls, of the same sizes.
        newest_wins: Of equal utility the newer case is kept; by default the older.
        count_retrievals: Each new case counts as a use of the three that are most like it. As published nothing does.
    """
    rng = np.random.default_rng(seed)
    rewards = np.asarray(positive, dtype=float)
    counts = np.zeros(len(vectors))
    bank = Bank()
    for now, vector in enumerate(vectors):
        kept = np.array(bank.kept, dtype=np.int64)
        if len(kept):
            sample = rng.choice(kept, min(paper["sample"], len(kept)), replace=False)
            highest = float((vectors[sample] @ vector).max())
            bank.similarities = [*bank.similarities[-499:], highest]
            if highest > paper["dedup"]:
                bank.duplicates += 1
                continue
            if count_retrievals:
                counts[kept[np.argsort(-(vectors[kept] @ vector), kind="stable")[: paper["top"]]]] += 1
        bank.kept.append(now)
        if len(bank.kept) >= paper["capacity"] and pruning != "none":
            kept = np.array(bank.kept, dtype=np.int64)
            scores = {
                "utility": utility(counts[kept], now - kept, rewards[kept], paper),
                "label": rewards[kept],
                "newest": kept.astype(float),
                "random": rng.random(len(kept)),
            }[pruning]
            left = keep_best(kept, scores, rewards, paper, newest_wins=newest_wins, restore=pruning == "utility")
            bank.pruned += len(kept) - len(left)
            bank.prunings += 1
            bank.kept = left.tolist()
    return bank


def keep_best(
    kept: Ints,
    scores: npt.NDArray[np.float64],
    rewards: npt.NDArray[np.float64],
    paper: Mapping[str, Any],
    *,
    newest_wins: bool,
    restore: bool,
) -> Ints:
    """The best .75 of the capacity, and so many pruned positives again that there are 200 where there are."""
    order = np.lexsort((-kept if newest_wins else kept, -scores))
    size = int(paper["keep"] * paper["capacity"])
    best, rest = kept[order[:size]], kept[order[size:]]
    missing = paper["min_positives"] - int(rewards[best].sum())
    if restore and missing > 0:
        best = np.concatenate([best, rest[rewards[rest] > 0][:missing]])
    return np.sort(best)


def top_positives(queries: Vectors, vectors: Vectors, positive: Sequence[bool], kept: Sequence[int], top: int) -> int:
    """How many of the queries' most similar kept cases are positive; of equal cosines the older case."""
    rows = np.asarray(kept)
    order = np.argsort(-(queries @ vectors[rows].T), axis=1, kind="stable")[:, :top]
    return int(np.asarray(positive)[rows[order]].sum())
