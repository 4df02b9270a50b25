"""Statistics against scipy, hand-computed numbers and simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from atommem.envs.scoring.statistics import (
    bootstrap_difference,
    clustered_estimate,
    effective_sample_size,
    holm,
    seed_spread,
    sign_test,
    wilson_interval,
)


@pytest.mark.parametrize(("successes", "n"), [(0, 1), (0, 10), (10, 10), (1, 3), (37, 200), (199, 200), (5000, 7405)])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_wilson_equals_scipy(successes: int, n: int, confidence: float) -> None:
    expected = stats.binomtest(successes, n).proportion_ci(confidence, method="wilson")
    low, high = wilson_interval(successes, n, confidence)
    assert low == pytest.approx(expected.low, abs=1e-12)
    assert high == pytest.approx(expected.high, abs=1e-12)


def test_wilson_by_hand() -> None:
    # z = 1.959964: center = (0.5 + 3.841459 / 20) / 1.3841459 = 0.5, half = 0.263407.
    assert wilson_interval(5, 10) == pytest.approx((0.236593, 0.763407), abs=1e-6)


def test_wilson_without_data_says_nothing() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("successes", "n", "confidence"), [(-1, 5, 0.95), (6, 5, 0.95), (1, 5, 1.0), (1, 5, 0.0)])
def test_wilson_refuses_impossible_arguments(successes: float, n: float, confidence: float) -> None:
    with pytest.raises(ValueError, match="is "):
        wilson_interval(successes, n, confidence)


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (5, 0), (0, 5), (3, 3), (12, 4), (150, 10), (1, 2000)])
def test_sign_test(wins: int, losses: int) -> None:
    # Twice the smaller tail of a fair binomial, at most 1.
    n = wins + losses
    expected = min(1.0, 2 * float(stats.binom.cdf(min(wins, losses), n, 0.5))) if n else 1.0
    assert sign_test(wins, losses) == pytest.approx(expected, rel=1e-9)
    assert sign_test(wins, losses) == sign_test(losses, wins)


def test_sign_test_by_hand() -> None:
    assert sign_test(5, 0) == pytest.approx(2 / 32)
    with pytest.raises(ValueError, match="negative"):
        sign_test(-1, 2)


def test_one_score_per_task_is_the_plain_wilson_interval() -> None:
    scores = [1.0] * 37 + [0.0] * 63
    estimate = clustered_estimate([[score] for score in scores])
    assert estimate.effective_n == 100
    assert (estimate.low, estimate.high) == wilson_interval(37, 100)
    assert (estimate.mean, estimate.n, estimate.clusters) == (0.37, 100, 100)


def test_identical_scores_within_a_task_count_once() -> None:
    # Ten copies of each of 50 scores say what 50 scores say: deff = 50/49 * 10 * (499/500).
    clusters = [[float(index % 2)] * 10 for index in range(50)]
    assert effective_sample_size(clusters) == pytest.approx(500 / (50 / 49 * 10 * 499 / 500))
    assert effective_sample_size(clusters) == pytest.approx(50, rel=0.03)


def test_negative_correlation_does_not_narrow_the_interval() -> None:
    assert effective_sample_size([[0.0, 1.0]] * 20) == 40


@pytest.mark.parametrize(
    ("clusters", "expected"),
    [([], 0), ([[], []], 0), ([[1.0, 0.0, 1.0]], 1), ([[0.0] * 5] * 4, 4), ([[1.0] * 5, []], 1)],
)
def test_effective_size_where_nothing_can_be_estimated(clusters: list[list[float]], expected: float) -> None:
    assert effective_sample_size(clusters) == expected


def test_all_wrong_still_has_an_interval() -> None:
    estimate = clustered_estimate([[0.0] * 3] * 10)
    assert (estimate.mean, estimate.low) == (0.0, 0.0)
    assert estimate.high == wilson_interval(0, 10)[1]


def test_no_score_is_no_mean() -> None:
    with pytest.raises(ValueError, match="no score"):
        clustered_estimate([[], []])


@pytest.mark.parametrize("partial", [False, True], ids=["em", "f1"])
def test_interval_covers_the_truth_in_correlated_samples(partial: bool) -> None:
    """Tasks of 8 questions whose difficulty varies: 95% intervals hold the true mean in about 95% of samples."""
    rng = np.random.default_rng(0)
    covered = naive = 0
    rounds = 400
    for _ in range(rounds):
        ease = rng.beta(1.2, 0.8, size=60)  # mean 0.6
        correct = rng.random((60, 8)) < ease[:, None]
        scores = correct * np.where(rng.random((60, 8)) < 0.3, 0.5, 1.0) if partial else correct.astype(float)
        truth = 0.6 * 0.85 if partial else 0.6
        estimate = clustered_estimate(scores.tolist())
        covered += estimate.low <= truth <= estimate.high
        low, high = wilson_interval(scores.sum(), scores.size)
        naive += low <= truth <= high
    assert covered / rounds >= 0.93
    assert naive / rounds < 0.9  # what counting every question as independent would give


def test_agrees_with_the_cluster_bootstrap() -> None:
    rng = np.random.default_rng(1)
    counts = rng.integers(1, 11, size=150)
    clusters = [
        (rng.random(count) < ease).astype(float).tolist() for count, ease in zip(counts, rng.random(150), strict=True)
    ]
    sums = np.array([sum(cluster) for cluster in clusters])
    bootstrap = stats.bootstrap(
        (sums, counts),
        lambda s, c, axis: s.sum(axis=axis) / c.sum(axis=axis),
        paired=True,
        method="percentile",
        rng=rng,
    ).confidence_interval
    estimate = clustered_estimate(clusters)
    assert estimate.low == pytest.approx(bootstrap.low, abs=0.01)
    assert estimate.high == pytest.approx(bootstrap.high, abs=0.01)


def test_bootstrap_equals_scipy_with_the_same_draws() -> None:
    rng = np.random.default_rng(3)
    counts = rng.integers(1, 6, size=40)
    first = [rng.integers(0, 2, size=count).astype(float).tolist() for count in counts]
    second = [rng.integers(0, 2, size=count).astype(float).tolist() for count in counts]
    sums = [np.array([sum(scores) for scores in side]) for side in (first, second)]
    expected = stats.bootstrap(
        (*sums, counts),
        lambda a, b, n, axis=-1: (b.sum(axis=axis) - a.sum(axis=axis)) / n.sum(axis=axis),
        paired=True,
        method="percentile",
        n_resamples=999,
        rng=np.random.default_rng(7),
    ).confidence_interval
    found = bootstrap_difference(first, second, resamples=999, seed=7)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert found.difference == pytest.approx((sums[1].sum() - sums[0].sum()) / counts.sum())
    assert found.tasks == 40


def test_bootstrap_in_batches_draws_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = [[float(index % 3 == 0)] for index in range(25)], [[float(index % 2)] for index in range(25)]
    whole = bootstrap_difference(first, second, resamples=500)
    monkeypatch.setattr("atommem.envs.scoring.statistics._BATCH", 25 * 7)
    assert bootstrap_difference(first, second, resamples=500) == whole


def test_bootstrap_pairs_tasks() -> None:
    # Every task is better by exactly 0.5, however hard it is: a paired difference has no spread at all.
    first = [[0.1 * (index % 5)] for index in range(30)]
    found = bootstrap_difference(first, [[score + 0.5] for (score,) in first])
    assert (found.difference, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))


@pytest.mark.parametrize(("first", "second"), [([], []), ([[1.0]], [[1.0], [0.0]]), ([[1.0]], [[]])])
def test_bootstrap_refuses_what_is_not_paired(first: list[list[float]], second: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="task"):
        bootstrap_difference(first, second)


def test_holm_by_hand() -> None:
    # Sorted 0.01, 0.03, 0.04 times 3, 2, 1: 0.03, 0.06, 0.04 -> never lower than a smaller p-value's: 0.06.
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
    with pytest.raises(ValueError, match=r"1\.5"):
        holm([0.5, 1.5])


def test_seed_spread() -> None:
    spread = seed_spread([0.5, 0.6, 0.7])
    assert (spread.mean, spread.sd, spread.low, spread.high, spread.seeds) == pytest.approx((0.6, 0.1, 0.5, 0.7, 3))
    assert seed_spread([0.5]).sd is None
    with pytest.raises(ValueError, match="no seed"):
        seed_spread([])
