"""Confidence intervals and tests for scores in [0, 1]: pure functions of numbers.

Every score counts the same. What is independent is not a score but what the scores are drawn by: questions of one task
are answered from one memory, tasks of one conversation read the same text, and a question that comes again in another
task is as hard as it was. `Units` finds in the labels of the scores which of these repeats, and every interval and test
here goes by it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist, fmean, stdev
from typing import Any

import numpy as np

_FLIPS = 9_999
"""Random assignments of signs where not all of them can be counted."""
_EXACT_SUM = 20_000
"""Largest sum of whole numbers whose signs are all counted: some 20 ms for a thousand units."""
_BATCH = 1 << 20
"""Most signs that are drawn at once: bounds the memory, not the result."""

Array = np.ndarray[Any, np.dtype[Any]]


class Units:
    """What is drawn independently: the task (or what tasks share), the question, or both.

    - Each question stands in one group only: the group is the unit, whatever it holds.
    - Each group holds one question, which comes again: the question is the unit.
    - Neither: groups and questions are crossed, and both ways count (Cameron, Gelbach and Miller 2011).

    Args:
        groups: Of each score, its task, or the conversation that its task is about.
        questions: Of each score, its question; left out, no question comes again.

    Attributes:
        codes: One array for each way that counts: the number of each score's unit, from 0.
        names: ``group``, ``question``, or both.
    """

    def __init__(
        self, groups: Sequence[Hashable], questions: Sequence[Hashable] | None = None
    ) -> None:
        group = _codes(groups)
        question = _codes(questions) if questions is not None else np.arange(len(group))
        pairs = _codes(list(zip(group.tolist(), question.tolist(), strict=True)))
        ways = {"group": group, "question": question}
        if _count(pairs) == _count(question):
            del ways["question"]
        elif _count(pairs) == _count(group):
            del ways["group"]
        self.names, self.codes = tuple(ways), tuple(ways.values())
        self._both = pairs

    @property
    def count(self) -> int:
        """How many there are; of both ways, the fewer."""
        return min(map(_count, self.codes))

    @property
    def single(self) -> bool:
        """Whether every unit has one score."""
        return len(self.codes) == 1 and self.count == len(self.codes[0])

    def sums(self, values: Array) -> list[Array]:
        """Of each way, the sum of `values` in each unit."""
        return [np.bincount(codes, values) for codes in self.codes]

    def variance(self, deviations: Array) -> float:
        """Of a sum of scores, from their deviations from the mean: sum_u e_u^2 with u over units.

        Crossed, what both ways count is taken off once; the larger of the two is the least that it can be.
        """
        ways = [float(np.sum(sums**2)) for sums in self.sums(deviations)]
        if len(ways) == 1:
            return ways[0]
        return max(*ways, sum(ways) - float(np.sum(np.bincount(self._both, deviations) ** 2)))


def _codes(labels: Sequence[Hashable]) -> Array:
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(label, len(numbers)) for label in labels], dtype=np.int64)


def _count(codes: Array) -> int:
    return int(codes.max()) + 1 if len(codes) else 0


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean of scores in [0, 1] with its confidence interval.

    Attributes:
        mean: Over all `n` scores.
        low, high: The interval's ends.
        n: Number of scores (questions answered, over all episodes).
        clusters: Number of units that they come from.
        effective_n: The number of independent scores that would say as much; at most `n`.
        unit: `Units.names`, joined by " x ".
    """

    mean: float
    low: float
    high: float
    n: int
    clusters: int
    effective_n: float
    unit: str = "group"


def wilson_interval(
    successes: float, n: float, confidence: float = 0.95, degrees: int | None = None
) -> tuple[float, float]:
    """Wilson's score interval for a proportion (Wilson 1927, without continuity correction).

    Neither argument has to be whole: `n` may be an effective sample size. For scores that lie anywhere in
    [0, 1] (F1) give their sum as `successes`: their variance is at most the m (1 - m) of a proportion with the
    same mean m, so that the interval is then at least as wide as it needs to be.

    Args:
        successes: Of `n`.
        n: Number of scores.
        confidence: Of the interval.
        degrees: Degrees of freedom of Student's t, where `n` is itself estimated; None is the normal quantile.

    Returns:
        (low, high), both in [0, 1]; (0, 1) when `n` is 0.

    Raises:
        ValueError: `successes` is not within [0, n], or `confidence` not between 0 and 1.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}: give a number between 0 and 1, such as 0.95")
    if not 0 <= successes <= n:
        raise ValueError(f"successes is {successes} with n = {n}: it must lie within [0, n]")
    if n == 0:
        return 0.0, 1.0
    z = _quantile(confidence, degrees)
    mean = successes / n
    center = (mean + z * z / (2 * n)) / (1 + z * z / n)
    half = z * sqrt(mean * (1 - mean) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    # At the ends the formula gives exactly 0 and 1, but for rounding.
    low = 0.0 if successes == 0 else max(0.0, center - half)
    high = 1.0 if successes == n else min(1.0, center + half)
    return low, high


def _quantile(confidence: float, degrees: int | None) -> float:
    """Of the normal distribution, or of Student's t: (1 + confidence) / 2."""
    if degrees is None:
        return NormalDist().inv_cdf((1 + confidence) / 2)
    from scipy.special import stdtrit  # takes a while to import

    return float(stdtrit(max(1, degrees), (1 + confidence) / 2))


def effective_sample_size(scores: Sequence[float], units: Units) -> float:
    """n / max(1, design effect) of scores that are correlated within units (Kish 1965, ch. 5 and 8).

    The design effect is the variance of the mean estimated from units, G/(G-1) sum_u e_u^2 / n^2 with e_u the
    sum of unit u's deviations from the mean, over the variance that n independent scores would have, s^2 / n.
    It is 1 when every unit holds one score, so that the result is then n. Where nothing can be estimated (one
    unit, or scores that are all equal) a unit counts as one score. The result lies within [1, n]; it is 0
    without scores.
    """
    values = np.asarray(scores, dtype=float)
    n, groups = len(values), units.count
    if units.single or groups <= 1:
        return float(groups)
    deviations = values - values.mean()
    squares = float(np.sum(deviations**2))
    if squares <= 1e-12 * n:
        return float(groups)
    clustered = groups / (groups - 1) * units.variance(deviations)
    return max(1.0, n / max(1.0, clustered / (squares * n / (n - 1))))


def clustered_estimate(
    scores: Sequence[float], groups: Sequence[Hashable], questions: Sequence[Hashable] | None = None
) -> Estimate:
    """Mean over all scores, with Wilson's 95% interval at the effective sample size.

    Args:
        scores: In [0, 1]: of all questions and episodes.
        groups, questions: Where each comes from (`Units`).

    With one score to a unit this is the plain Wilson interval.

    Raises:
        ValueError: There is no score: no mean can be given.
    """
    if not len(scores):
        raise ValueError("there is no score to estimate a mean from")
    units = Units(groups, questions)
    effective = effective_sample_size(scores, units)
    mean = min(1.0, sum(scores) / len(scores))
    degrees = None if units.single else units.count - 1
    low, high = wilson_interval(min(mean * effective, effective), effective, degrees=degrees)
    return Estimate(mean, low, high, len(scores), units.count, effective, " x ".join(units.names))


@dataclass(frozen=True, slots=True)
class Difference:
    """How much higher the second of two means on the same questions is.

    Attributes:
        difference: Second mean minus first, in [-1, 1]: every question counts the same.
        low, high: The ends of its interval.
        p_value: Of the sign-flip test of this difference.
        questions: Number of questions that both have a score of.
        units: Number of units that they come from.
    """

    difference: float
    low: float
    high: float
    p_value: float
    questions: int
    units: int


def paired_difference(
    differences: Sequence[float],
    groups: Sequence[Hashable],
    questions: Sequence[Hashable] | None = None,
) -> Difference:
    """The mean of paired differences, its 95% interval, and its test.

    The interval is Student's t around the mean with the variance over units, G/(G-1) sum_u e_u^2 / n^2, and
    G - 1 degrees of freedom; the test is `sign_flip_test`. Where no unit differs from another (two evaluations agree
    in all), that interval would have no width, however few units there are: then as large a part of all units may be
    of any other kind as Wilson's interval allows for a proportion of which none was seen.

    Args:
        differences: Of each question, its score in the second minus that in the first.
        groups, questions: Where each comes from (`Units`).

    Raises:
        ValueError: There is no difference.
    """
    if not len(differences):
        raise ValueError("there is no question that both have a score of")
    units = Units(groups, questions)
    values = np.asarray(differences, dtype=float)
    n, count = len(values), units.count
    mean = float(values.mean())
    low, high = -1.0, 1.0  # one unit says nothing about how units differ
    if count > 1 and (variance := units.variance(values - mean)) > 1e-12:
        half = _quantile(0.95, count - 1) * sqrt(count / (count - 1) * variance) / n
        low, high = max(-1.0, mean - half), min(1.0, mean + half)
    elif count > 1:
        other = wilson_interval(0, count)[1]
        low, high = mean - other * (1 + mean), mean + other * (1 - mean)
    return Difference(mean, low, high, sign_flip_test(values, units), n, count)


def sign_flip_test(differences: Sequence[float] | Array, units: Units) -> float:
    """Two-sided p-value of a mean of paired differences (Fisher's randomisation test; Edgington and Onghena 2007).

    If neither side is better, a unit's sum of differences is as likely with either sign. The p-value is the share
    of all assignments of signs to units under which the mean is farther from 0 than it is, and half of those under
    which it is as far (mid-p, Lancaster 1961: sums of exact matches tie often, and counting ties whole makes the
    test reject a true hypothesis at 4% instead of 5%). They are all counted where the sums are whole numbers (exact
    match; several episodes: of fractions), else 9,999 random ones are drawn. With one difference of -1, 0 or 1 to
    a unit this is McNemar's mid-p test (Fagerland, Lydersen and Laake 2013). Without any difference it is 1.

    Where groups and questions are crossed, both get signs, and the sum of both is scaled to the variance that the
    differences have (`Units.variance`): no longer exact, but of the right size (scripts/bench_stats.py).
    """
    values = np.asarray(differences, dtype=float)
    ways = [sums[np.abs(sums) > 1e-9] for sums in units.sums(values)]
    observed = abs(float(values.sum()))
    if not any(map(len, ways)):
        return 1.0
    if len(ways) == 1 and (whole := _whole(ways[0])) is not None:
        return _exact(whole)
    variance = units.variance(values)
    scale = sqrt(variance / sum(float(np.sum(sums**2)) for sums in ways))
    joined = scale * np.concatenate(ways)
    rng = np.random.default_rng(0)
    batch = max(1, _BATCH // len(joined))
    as_far = 0.5  # as it is
    for start in range(0, _FLIPS, batch):
        signs = rng.integers(0, 2, (min(batch, _FLIPS - start), len(joined)), dtype=np.int8)
        means = np.abs(2.0 * (signs @ joined) - joined.sum())
        as_far += 0.5 * float(np.sum(means > observed + 1e-9) + np.sum(means >= observed - 1e-9))
    return as_far / (1 + _FLIPS)


def _whole(sums: Array) -> list[int] | None:
    """The sums as whole numbers, times what makes them so; None where that is too much to count."""
    for factor in (1, 2, 3, 4, 5, 6, 8, 10, 12):
        scaled = np.abs(sums) * factor
        rounded = np.rint(scaled)
        if np.all(np.abs(scaled - rounded) < 1e-7):
            signed = (np.sign(sums) * rounded).astype(int)
            return [int(value) for value in signed] if rounded.sum() <= _EXACT_SUM else None
    return None


def _exact(sums: list[int]) -> float:
    """Count all signs: the distribution of the sum is the product of (x^d + x^-d) / 2 over units."""
    total = sum(map(abs, sums))
    chances = np.zeros(2 * total + 1)
    chances[total] = 1.0
    for value in map(abs, sums):
        shifted = np.zeros_like(chances)
        shifted[value:] += chances[: len(chances) - value]
        shifted[: len(chances) - value] += chances[value:]
        chances = shifted / 2
    far = total + abs(sum(sums))
    return float(2 * chances[far + 1 :].sum() + chances[far] * (1.0 if far > total else 0.5))


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted for how many they are (Holm 1979), in the order given.

    Rejecting those at most alpha errs on any true hypothesis with a probability of at most alpha, however the
    tests depend on each other.

    Raises:
        ValueError: A value is not within [0, 1].
    """
    for value in p_values:
        if not 0 <= value <= 1:
            raise ValueError(f"a p-value is {value}: it must lie within [0, 1]")
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


@dataclass(frozen=True, slots=True)
class Spread:
    """One score per seed.

    Attributes:
        mean: Of the seeds' scores, each counting the same.
        sd: Their sample standard deviation (n - 1); None with one seed, which has none.
        low, high: The lowest and the highest.
        seeds: How many.
    """

    mean: float
    sd: float | None
    low: float
    high: float
    seeds: int


def seed_spread(scores: Sequence[float]) -> Spread:
    """How much a score varies from seed to seed.

    Raises:
        ValueError: There is no score.
    """
    if not scores:
        raise ValueError("there is no seed's score")
    sd = stdev(scores) if len(scores) > 1 else None
    return Spread(fmean(scores), sd, min(scores), max(scores), len(scores))
