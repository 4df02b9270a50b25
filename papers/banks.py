"""Rules of experience banks, for ``--retention papers.banks:CLASS``.

A step is a task; an entry is a record.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from math import log1p
from pathlib import Path
from typing import Any

import numpy as np

from atommem.embedding.embedder import Vectors
from atommem.errors import ConfigError
from atommem.memory.eviction import Lowest, steps_of_last_use
from atommem.memory.log import Entry
from atommem.memory.rules import (
    Accepted,
    Admission,
    Candidate,
    Eviction,
    Numbers,
    Refused,
    Rule,
    StoreState,
    lowest,
)

_BLOCK, _DIGITS = 512, 5
_RULES = {
    "failures_first": f"{__name__}:FailuresFirst",
    "periodic": f"{__name__}:Periodic",
    "history": f"{__name__}:History",
    "combined": f"{__name__}:Combined",
    "constrained": f"{__name__}:Constrained",
    "memobank": f"{__name__}:MemoBank",
    "traceretain": f"{__name__}:TraceRetain",
}


def rule_path(rule: str) -> str:
    """Return a rule, perhaps with options, by the name that settings take."""
    name, bracket, options = rule.partition("(")
    return _RULES.get(name, name) + bracket + options


class FailuresFirst(Rule):
    """Evict the oldest record of a task with an outcome `below`, or else the oldest.

    A control for scores that were learned on streams with failures.
    """

    def __init__(self, below: float = 0.5) -> None:
        self._below = below

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        failed = store.column("outcome") < self._below
        chosen, _ = lowest(store, np.where(failed, -np.inf, store.column("created")))
        reason = "oldest failure" if failed.any() else "oldest, no failures"
        return Eviction(chosen, reason, store.entries[chosen].created)


# Deletion by use and by utility (arXiv 2505.16067, section 4)


class Periodic(Rule):
    """At the end of each period, delete the records that at most `alpha` of its tasks were shown.

    Records of the present period stay, as in the authors' code; the paper leaves this open.
    """

    def __init__(self, period: int = 500, alpha: int = 0) -> None:
        if period < 1:
            raise ConfigError(f"periodic: period={period}: must be at least 1.")
        self._period, self._alpha = period, alpha
        self._number, self._shown = 0, Counter[int]()

    def observe(self, shown: Sequence[int], outcome: float, step: int) -> None:
        self._begin((step - 1) // self._period)
        self._shown.update(shown)

    def sweep(self, store: StoreState) -> Sequence[Eviction]:
        if store.step < 1 or store.step % self._period:
            return ()
        self._begin((store.step - 1) // self._period)  # the period may have no retrievals
        old = store.ids[store.column("created") <= store.step - self._period]
        used = [(entry_id, self._shown[entry_id]) for entry_id in old.tolist()]
        return [
            Eviction(entry_id, f"used {times} times in {self._period} tasks", times)
            for entry_id, times in used
            if times <= self._alpha
        ]

    def _begin(self, number: int) -> None:
        if number != self._number:
            self._number, self._shown = number, Counter()


class History(Rule):
    """Delete records with a mean utility of at most `beta` over more than `n` tasks.

    With `at_least`, `n` tasks suffice, as in the text and the code of the paper.
    """

    def __init__(self, n: int = 5, beta: float = 0.5, at_least: bool = False) -> None:
        self._least, self._beta = n if at_least else n + 1, beta

    def sweep(self, store: StoreState) -> Sequence[Eviction]:
        means = store.column("mean_outcome")
        # A running mean of 4 in 8 may be 0.5000000000000001.
        harmful = (store.column("uses") >= self._least) & (means <= self._beta + 1e-9)
        found = zip(store.ids[harmful].tolist(), means[harmful].tolist(), strict=True)
        return [Eviction(entry_id, f"mean utility {mean:.2f}", mean) for entry_id, mean in found]


class Combined(Periodic):
    """Delete what `Periodic` or `History` deletes; the options are theirs."""

    def __init__(
        self,
        period: int = 500,
        alpha: int = 0,
        n: int = 5,
        beta: float = 0.5,
        at_least: bool = False,
    ) -> None:
        super().__init__(period, alpha)
        self._history = History(n, beta, at_least)

    def sweep(self, store: StoreState) -> Sequence[Eviction]:
        harmful = self._history.sweep(store)
        ids = {eviction.entry_id for eviction in harmful}
        unused = [eviction for eviction in super().sweep(store) if eviction.entry_id not in ids]
        return [*harmful, *unused]


class Constrained(Periodic):
    """Delete as `Periodic`; above `limit` then the record of the least mean utility (section 5.2).

    Of records without a use the oldest goes, if there are no others.
    """

    def __init__(self, limit: int, period: int = 500, alpha: int = 0) -> None:
        super().__init__(period, alpha)
        self._limit = limit

    def sweep(self, store: StoreState) -> Sequence[Eviction]:
        unused = list(super().sweep(store))
        means = np.nan_to_num(store.column("mean_outcome"), nan=1e9)
        gone = {eviction.entry_id for eviction in unused}
        means[[entry_id in gone for entry_id in store.ids.tolist()]] = np.inf
        excess = max(0, len(means) - len(gone) - self._limit)
        for place in np.argsort(means, kind="stable")[:excess]:
            reason = f"least mean utility, {means[place]:.2f}"
            unused.append(Eviction(int(store.ids[place]), reason, float(means[place])))
        return unused


# MemoBankRL's case bank


class MemoBank(Lowest):
    """Refuse duplicates and broken failures, and prune a full bank by utility.

    Set it as admission and as retention. Utility (equation 1) is .7 c exp(-.02 a) / a + .3 r, with
    c retrievals, a = max(1, t - created) and r = 1 for a success. Without retrievals, as in the
    published run, pruning sorts by the label.

    Args:
        similarity, sample: A duplicate has a higher cosine to one of so many random records.
        keep, least_positive: Pruning leaves this share of the capacity, and so many successes.
        newest_first: Of equal utilities the newest stay; the paper leaves this open.
        prune_above: Prune when capacity is exceeded, not when it is reached.
    """

    reason = "utility {:.3g}"

    def __init__(
        self,
        similarity: float = 0.85,
        sample: int = 200,
        keep: float = 0.75,
        least_positive: int = 200,
        newest_first: bool = False,
        prune_above: bool = False,
    ) -> None:
        if sample < 1 or not 0 <= keep <= 1:
            raise ConfigError(
                f"memobank: sample={sample}, keep={keep}: at least 1, and from 0 to 1."
            )
        self._similarity, self._sample, self._keep = similarity, sample, keep
        self._least_positive, self._newest_first = least_positive, newest_first
        self._prune_above = prune_above

    def admit(self, candidate: Candidate, store: StoreState) -> Admission:
        """Follow algorithms 1 and 2 of the paper."""
        if candidate.outcome == 0:
            problem = broken_failure(candidate.text, candidate.details or {})
            if problem:
                return Refused(f"invalid failure: {problem}")
        size = len(store.ids)
        if not size:
            return Accepted()
        places = store.rng.choice(size, min(self._sample, size), replace=False)
        nearest = float(store.cosines(candidate.vector)[places].max())
        if nearest > self._similarity:
            return Refused("duplicate", nearest)
        return Accepted("no duplicate", nearest)

    def sweep(self, store: StoreState) -> Sequence[Eviction]:
        size, capacity = len(store.ids), store.capacity
        if capacity is None or size < capacity + self._prune_above:
            return ()
        utilities = self.scores(store)
        age = -store.ids if self._newest_first else store.ids
        order = np.lexsort((age, -utilities))
        kept, pruned = order[: int(self._keep * capacity)], order[int(self._keep * capacity) :]
        positive = store.column("outcome") > 0
        missing = max(0, self._least_positive - int(positive[kept].sum()))
        restored = set(pruned[positive[pruned]][:missing].tolist())
        return [
            Eviction(int(store.ids[place]), f"pruned: utility {utility:.3g}", utility)
            for place, utility in zip(pruned.tolist(), utilities[pruned].tolist(), strict=True)
            if place not in restored
        ]

    def scores(self, store: StoreState) -> Numbers:
        """Return the utility of each record, shape (n,)."""
        age = np.maximum(1.0, store.step - store.column("created"))
        reward = np.nan_to_num(store.column("outcome")) > 0
        found: Numbers = utility_of(store.column("shown"), age, reward)
        return found


def utility_of(shown: Any, age: Any, reward: Any) -> Any:
    """Return the utility (equation 1) of records by retrievals, age and success."""
    return 0.7 * shown * np.exp(-0.02 * age) / age + 0.3 * reward


def broken_failure(query: str, details: Any) -> str:
    """Return why a failed case teaches nothing (algorithm 2), or an empty string."""
    if len(query.strip()) < 10:
        return "its query is shorter than 10 characters"
    try:
        plan = json.loads(details.get("execution", ""))
    except ValueError:
        return "its plan is not JSON"
    steps = plan.get("plan") if isinstance(plan, dict) else None
    if not isinstance(steps, list) or not steps:
        return "its plan has no steps"
    if not any(isinstance(step, dict) and "description" in step for step in steps):
        return "no step of its plan has a description"
    return ""


# TraceRetain (arXiv 2606.29178)


def nearest(store: StoreState) -> Vectors:
    """Return each entry's highest cosine to another: shape (n,), rounded, -1 without another.

    The work grows with n squared: about 20 ms at 1,000 entries of 384 numbers on one core.
    """
    rows = store.vectors
    found = np.full(len(rows), -1, dtype=np.float32)
    for first in range(0, len(rows), _BLOCK):
        cosines = rows[first : first + _BLOCK] @ rows.T
        np.fill_diagonal(cosines[:, first:], -1)
        found[first : first + _BLOCK] = cosines.max(axis=1)
    return found.round(_DIGITS)


def mean_cosines(store: StoreState) -> Numbers:
    """Return each entry's mean cosine to the others: shape (n,), rounded, 0 without another."""
    rows = store.vectors
    total = rows.sum(axis=0, dtype=np.float64)
    found: Numbers = ((rows @ total - 1.0) / max(1, len(rows) - 1)).round(_DIGITS)
    return found


LINEAR = {
    "success": 2.0,
    "age": -0.5,
    "gap": -0.5,
    "frequency": 0.5,
    "specificity": 0.5,
    "redundancy": -1.0,
    "efficiency": 0.5,
    "utility": 1.0,
    "confidence": 0.25,
    "last_similarity": 0.25,
    "mean_similarity": 0.25,
}
"""Weights of the linear rule. The paper gives only the signs of the first six."""


class TraceRetain(Lowest):
    """Evict the record with the lowest weighted sum of eleven features.

    The paper gives no formulas for the features; these are ours. `weights` is a JSON file, by
    default `LINEAR`; a record of `most_steps` has a step efficiency of 0.
    """

    def __init__(self, weights: str | None = None, most_steps: int = 50) -> None:
        self._most_steps = most_steps
        self._weights = LINEAR if weights is None else read_weights("traceretain", weights)
        if self._weights.keys() != LINEAR.keys():
            raise ConfigError(f"traceretain: weights={weights}: give {', '.join(LINEAR)}.")

    def scores(self, store: StoreState) -> Numbers:
        """Return the score of each record, shape (n,), rounded so that sums in any order tie."""
        now = max(1, store.step)
        features = {
            "success": np.nan_to_num(store.column("outcome")),
            "age": (store.step - store.column("created")) / now,
            "gap": (store.step - steps_of_last_use(store)) / now,
            "frequency": np.log1p(store.column("shown")) / log1p(now),
            "specificity": 1.0 - mean_cosines(store),
            "redundancy": np.maximum(nearest(store), 0.0, dtype=float),
            "efficiency": np.array([self._efficiency(entry) for entry in store.entries.values()]),
            "utility": np.nan_to_num(store.column("mean_outcome"), nan=0.5),
            "confidence": store.column("uses") / (store.column("uses") + 3.0),
            "last_similarity": np.nan_to_num(store.column("last_similarity")),
            "mean_similarity": np.nan_to_num(store.column("mean_similarity")),
        }
        total = sum(weight * features[name] for name, weight in self._weights.items())
        return np.asarray(total).round(9)

    def _efficiency(self, entry: Entry) -> float:
        steps = (entry.details or {}).get("steps")
        return 1.0 - steps / self._most_steps if isinstance(steps, (int, float)) else 0.0


def read_weights(rule: str, path: str) -> dict[str, Any]:
    """Return the JSON object of a file with a rule's weights; ConfigError if there is none."""
    try:
        return dict(json.loads(Path(path).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{rule}: weights={path}: not a JSON object ({error}).") from error
