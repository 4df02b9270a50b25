"""Confidence intervals and tests for scores in [0, 1]: pure functions of numbers.

The unit that is sampled independently is the task. Questions of one task are answered from one memory, and
several episodes of one task share its difficulty, so their scores are correlated and n of them say less than
n independent ones would. The intervals here account for that through an effective sample size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist, fmean, stdev

import numpy as np

_BATCH = 1 << 20
"""Most indices that a bootstrap draws at once: bounds its memory, not its result."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean of scores in [0, 1] with its confidence interval.

    Attributes:
        mean: Over all `n` scores.
        low, high: The interval's ends.
        n: Number of scores (questions answered, over all episodes).
        clusters: Number of tasks that they come from.
        effective_n: The number of independent scores that would say as much; at most `n`.
    """

    mean: float
    low: float
    high: float
    n: int
    clusters: int
    effective_n: float


def wilson_interval(successes: float, n: float, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval for a proportion (Wilson 1927, without continuity correction).

    Neither argument has to be whole: `n` may be an effective sample size. For scores that lie anywhere in
    [0, 1] (F1) give their sum as `successes`: their variance is at most the m (1 - m) of a proportion with the
    same mean m, so that the interval is then at least as wide as it needs to be.

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
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    mean = successes / n
    center = (mean + z * z / (2 * n)) / (1 + z * z / n)
    half = z * sqrt(mean * (1 - mean) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    # At the ends the formula gives exactly 0 and 1, but for rounding.
    low = 0.0 if successes == 0 else max(0.0, center - half)
    high = 1.0 if successes == n else min(1.0, center + half)
    return low, high


def effective_sample_size(clusters: Sequence[Sequence[float]]) -> float:
    """n / max(1, design effect) of scores that are correlated within clusters (Kish 1965, ch. 5 and 8).

    The design effect is the variance of the mean estimated from clusters, G/(G-1) sum_g e_g^2 / n^2 with e_g the
    sum of cluster g's deviations from the mean, over the variance that n independent scores would have, s^2 / n.
    It is 1 when every cluster holds one score, so that the result is then n. Where nothing can be estimated (one
    cluster, or scores that are all equal) a cluster counts as one score. The result lies within [1, n]; it is 0
    without scores.
    """
    filled = [scores for scores in clusters if scores]
    n = sum(len(scores) for scores in filled)
    groups = len(filled)
    if n == groups or groups <= 1:
        return float(groups)
    mean = sum(map(sum, filled)) / n
    squares = sum((score - mean) ** 2 for scores in filled for score in scores)
    if squares <= 1e-12 * n:
        return float(groups)
    independent = squares / (n - 1) / n
    clustered = groups / (groups - 1) * sum(sum(score - mean for score in scores) ** 2 for scores in filled) / n**2
    return max(1.0, n / max(1.0, clustered / independent))


def clustered_estimate(clusters: Sequence[Sequence[float]], confidence: float = 0.95) -> Estimate:
    """Mean over all scores, with Wilson's interval at the effective sample size.

    Args:
        clusters: One inner sequence per task: the scores, in [0, 1], of all its questions and episodes.
        confidence: Of the interval.

    With one score per task this is the plain Wilson interval.

    Raises:
        ValueError: There is no score: no mean can be given.
    """
    scores = [score for cluster in clusters for score in cluster]
    if not scores:
        raise ValueError("there is no score to estimate a mean from")
    effective = effective_sample_size(clusters)
    mean = min(1.0, sum(scores) / len(scores))
    low, high = wilson_interval(min(mean * effective, effective), effective, confidence)
    groups = sum(1 for cluster in clusters if cluster)
    return Estimate(mean=mean, low=low, high=high, n=len(scores), clusters=groups, effective_n=effective)


def sign_test(wins: int, losses: int) -> float:
    """Exact two-sided p-value of the paired sign test; ties are left out beforehand.

    Under the null hypothesis each of the wins + losses pairs is a fair coin toss.

    Raises:
        ValueError: A count is negative.
    """
    if wins < 0 or losses < 0:
        raise ValueError(f"wins is {wins} and losses is {losses}: counts cannot be negative")
    if wins + losses == 0:
        return 1.0
    from scipy.stats import binomtest  # takes a second to import

    return float(binomtest(wins, wins + losses, 0.5).pvalue)


@dataclass(frozen=True, slots=True)
class Difference:
    """How much higher the second of two means on the same tasks is, with its confidence interval.

    Attributes:
        difference: Second mean minus first, in [-1, 1].
        low, high: The interval's ends.
        tasks: Number of tasks that both have a score of.
    """

    difference: float
    low: float
    high: float
    tasks: int


def bootstrap_difference(
    first: Sequence[Sequence[float]],
    second: Sequence[Sequence[float]],
    *,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Difference:
    """Paired percentile bootstrap of mean(second) - mean(first) (Efron and Tibshirani 1993, ch. 13).

    Whole tasks are drawn, each with the scores that both sides have of it: what is correlated stays together.

    Args:
        first, second: One inner sequence per task, in the same order: the scores of all its questions and episodes.
        confidence: Of the interval.
        resamples: Bootstrap samples.
        seed: The same seed gives the same interval.

    Raises:
        ValueError: The two do not have the same number of tasks, there is no task, or one has no score.
    """
    if len(first) != len(second) or not first:
        raise ValueError(f"{len(first)} and {len(second)} tasks: give the same ones, at least one, on both sides")
    if not all(first) or not all(second):
        raise ValueError("a task without a score: leave it out on both sides")
    sums = np.array([(sum(a), len(a), sum(b), len(b)) for a, b in zip(first, second, strict=True)], dtype=float)
    tasks = len(sums)
    rng = np.random.default_rng(seed)
    batch = max(1, _BATCH // tasks)
    drawn = []
    for start in range(0, resamples, batch):
        rows = rng.integers(0, tasks, (min(batch, resamples - start), tasks))
        drawn.append(_difference(sums[rows].sum(axis=1)))
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.concatenate(drawn), (tail, 1 - tail))
    return Difference(float(_difference(sums.sum(axis=0))), float(low), float(high), tasks)


def _difference(totals: np.ndarray) -> np.ndarray:
    """From (..., 4) totals of score, count, score, count."""
    return totals[..., 2] / totals[..., 3] - totals[..., 0] / totals[..., 1]


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
