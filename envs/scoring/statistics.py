"""Confidence intervals and tests for scores in [0, 1].

Every score counts the same, but scores are not independent: the questions of one task are answered
from one memory, tasks of one conversation read the same text, and a question may be asked again in
another task. `Units` finds which of these repeat, and all intervals and tests use it.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist, fmean, stdev
from typing import Any

import numpy as np

_FLIPS = 9_999  # random sign assignments where the exact distribution is too large
_EXACT_SUM = 20_000
"""Largest sum of whole numbers with an exact distribution (20 ms for a thousand units)."""
_BATCH = 1 << 20  # most signs drawn at once, to bound memory

Array = np.ndarray[Any, np.dtype[Any]]
Labels = Sequence[Hashable]


class Units:
    """Independent units of scores: groups (tasks or what they share), questions, or both crossed.

    If each question is in one group, the group is the unit. If each group has one question, the
    question is. Otherwise both count (Cameron, Gelbach and Miller 2011).

    `names` are the ways that count, `codes` for each of them the unit's number of each score,
    `count` the number of units (of two ways, the smaller), `single` whether each has one score.
    """

    def __init__(self, groups: Labels, questions: Labels | None = None) -> None:
        group = _codes(groups)
        question = np.arange(len(group)) if questions is None else _codes(questions)
        pairs = _codes(list(zip(group.tolist(), question.tolist(), strict=True)))
        ways = {"group": group, "question": question}
        sizes = {name: len(np.unique(codes)) for name, codes in ways.items()}
        if sizes["question"] == len(np.unique(pairs)):
            del ways["question"]
        elif sizes["group"] == len(np.unique(pairs)):
            del ways["group"]
        self.names, self.codes = tuple(ways), tuple(ways.values())
        self.count = min(sizes[name] for name in ways)
        self.single = len(self.codes) == 1 and self.count == len(group)
        self._pairs = pairs

    def sums(self, values: Array) -> list[Array]:
        return [np.bincount(codes, values) for codes in self.codes]

    def variance(self, deviations: Array) -> float:
        """Return the variance of a sum of scores: sum_u e_u^2 over units u.

        If both ways count, their overlap is subtracted once; the larger way is the lower bound.
        """
        ways = [float(np.sum(sums**2)) for sums in self.sums(deviations)]
        if len(ways) == 1:
            return ways[0]
        overlap = float(np.sum(np.bincount(self._pairs, deviations) ** 2))
        return max(*ways, sum(ways) - overlap)


def _codes(labels: Labels) -> Array:
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(label, len(numbers)) for label in labels], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean of `n` scores with its 95% interval; `effective_n` independent ones tell as much."""

    mean: float
    low: float
    high: float
    n: int
    clusters: int
    effective_n: float
    unit: str = "group"


def wilson_interval(successes: float, n: float, degrees: int | None = None) -> tuple[float, float]:
    """Return Wilson's 95% interval of a proportion (Wilson 1927); (0, 1) if `n` is 0.

    `n` may be an effective size. For scores in [0, 1] (F1), give their sum as `successes`: the
    interval is then at least as wide as needed, as their variance is at most a proportion's. With
    `degrees` of freedom, Student's t replaces the normal distribution.
    """
    if n == 0:
        return 0.0, 1.0
    z = _quantile(degrees)
    mean = successes / n
    center = (mean + z * z / (2 * n)) / (1 + z * z / n)
    half = z * sqrt(mean * (1 - mean) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    # At the ends, the formula is exactly 0 and 1 except for rounding.
    low = 0.0 if successes == 0 else max(0.0, center - half)
    return low, 1.0 if successes == n else min(1.0, center + half)


def _quantile(degrees: int | None) -> float:
    """Return the 97.5% quantile of the normal or Student's t distribution."""
    if degrees is None:
        return NormalDist().inv_cdf(0.975)
    from scipy.special import stdtrit  # slow import

    return float(stdtrit(max(1, degrees), 0.975))


def effective_sample_size(scores: Sequence[float], units: Units) -> float:
    """Return n / max(1, design effect) of scores correlated within units (Kish 1965, ch. 5, 8).

    The design effect is the variance of the mean estimated from units, G/(G-1) sum_u e_u^2 / n^2,
    over that of independent scores, s^2 / n. If it cannot be estimated (one unit, or equal scores),
    each unit counts as one score.
    """
    values = np.asarray(scores, dtype=float)
    n, groups = len(values), units.count
    deviations = values - values.mean() if n else values
    squares = float(np.sum(deviations**2))
    if units.single or groups <= 1 or squares <= 1e-12 * n:
        return float(groups)
    clustered = groups / (groups - 1) * units.variance(deviations)
    return max(1.0, n / max(1.0, clustered / (squares * n / (n - 1))))


def clustered_estimate(
    scores: Sequence[float], groups: Labels, questions: Labels | None = None
) -> Estimate:
    """Return the mean of at least one score with Wilson's 95% interval at the effective size."""
    units = Units(groups, questions)
    effective = effective_sample_size(scores, units)
    mean = min(1.0, sum(scores) / len(scores))
    degrees = None if units.single else units.count - 1
    low, high = wilson_interval(min(mean * effective, effective), effective, degrees)
    return Estimate(mean, low, high, len(scores), units.count, effective, " x ".join(units.names))


@dataclass(frozen=True, slots=True)
class Difference:
    """Second mean minus first on the same questions, with its 95% interval and `sign_flip_test`."""

    difference: float
    low: float
    high: float
    p_value: float
    questions: int
    units: int


def paired_difference(
    differences: Sequence[float], groups: Labels, questions: Labels | None = None
) -> Difference:
    """Return the mean of at least one paired difference, its interval, and its test.

    The interval is Student's t with the variance over units, G/(G-1) sum_u e_u^2 / n^2, and G - 1
    degrees of freedom. If all units agree, its width would be 0 for any number of units: then as
    many units may differ as Wilson's interval allows for a proportion of 0.
    """
    units = Units(groups, questions)
    values = np.asarray(differences, dtype=float)
    n, count = len(values), units.count
    mean = float(values.mean())
    low, high = -1.0, 1.0  # one unit does not show how units differ
    if count > 1 and (variance := units.variance(values - mean)) > 1e-12:
        half = _quantile(count - 1) * sqrt(count / (count - 1) * variance) / n
        low, high = max(-1.0, mean - half), min(1.0, mean + half)
    elif count > 1:
        other = wilson_interval(0, count)[1]
        low, high = mean - other * (1 + mean), mean + other * (1 - mean)
    return Difference(mean, low, high, sign_flip_test(values, units), n, count)


def sign_flip_test(differences: Sequence[float] | Array, units: Units) -> float:
    """Return the two-sided mid-p value of a mean of paired differences.

    This is Fisher's randomisation test: under the null hypothesis a unit's sum is as likely with
    either sign. The p-value is the share of sign assignments with a mean farther from 0, plus half
    of those as far (mid-p, Lancaster 1961: sums of exact matches often tie). The distribution is
    exact if the sums are whole numbers or simple fractions, else from 9,999 random assignments.
    With one difference of -1, 0 or 1 per unit this is McNemar's mid-p test (Fagerland et al. 2013).

    If groups and questions are crossed, both get signs, and the sum is scaled to the variance of
    the differences: not exact, but of the right size.
    """
    values = np.asarray(differences, dtype=float)
    ways = [sums[np.abs(sums) > 1e-9] for sums in units.sums(values)]
    observed = abs(float(values.sum()))
    if not any(map(len, ways)):
        return 1.0
    if len(ways) == 1 and (whole := _whole(ways[0])) is not None:
        return _exact(whole)
    scale = sqrt(units.variance(values) / sum(float(np.sum(sums**2)) for sums in ways))
    joined = scale * np.concatenate(ways)
    rng = np.random.default_rng(0)
    batch = max(1, _BATCH // len(joined))
    as_far = 0.5  # the observed assignment
    for start in range(0, _FLIPS, batch):
        signs = rng.integers(0, 2, (min(batch, _FLIPS - start), len(joined)), dtype=np.int8)
        means = np.abs(2.0 * (signs @ joined) - joined.sum())
        as_far += 0.5 * float(np.sum(means > observed + 1e-9) + np.sum(means >= observed - 1e-9))
    return as_far / (1 + _FLIPS)


def _whole(sums: Array) -> list[int] | None:
    """Return the sums as multiples of a fraction; None if they are too large."""
    for factor in (1, 2, 3, 4, 5, 6, 8, 10, 12):
        scaled = sums * factor
        rounded = np.rint(scaled)
        if np.all(np.abs(scaled - rounded) < 1e-7):
            return rounded.astype(int).tolist() if np.abs(rounded).sum() <= _EXACT_SUM else None
    return None


def _exact(sums: list[int]) -> float:
    """Return the mid-p value; the sum's distribution is the product of (x^d + x^-d) / 2."""
    total = sum(map(abs, sums))
    chances = np.zeros(2 * total + 1)
    chances[total] = 1.0
    for value in map(abs, sums):
        chances = (np.roll(chances, value) + np.roll(chances, -value)) / 2
    far = total + abs(sum(sums))
    return float(2 * chances[far + 1 :].sum() + chances[far] * (1.0 if far > total else 0.5))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number (Holm 1979), in the order given."""
    order = np.argsort(p_values)
    scaled = np.asarray(p_values)[order] * np.arange(len(p_values), 0, -1)
    adjusted = np.minimum(1.0, np.maximum.accumulate(scaled))
    return [float(p_value) for p_value in adjusted[np.argsort(order)]]


def seed_spread(scores: Sequence[float]) -> dict[str, float | None]:
    """Return mean, sample standard deviation (None with one seed) and range over seeds."""
    sd = stdev(scores) if len(scores) > 1 else None
    ends = {"low": min(scores), "high": max(scores)}
    return {"mean": fmean(scores), "sd": sd, **ends, "seeds": len(scores)}
