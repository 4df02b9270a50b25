"""Statistics against scipy, hand-computed numbers and simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from envs.statistics import clustered_estimate, effective_sample_size, sign_test, wilson_interval


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
