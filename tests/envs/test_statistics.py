"""Statistics against hand-computed numbers, brute force and simulation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from scipy import stats

from atommem.envs.scoring.statistics import (
    Units,
    clustered_estimate,
    effective_sample_size,
    holm,
    paired_difference,
    seed_spread,
    sign_flip_test,
    wilson_interval,
)


@pytest.mark.parametrize(("successes", "n"), [(0, 10), (1, 3), (5000, 7405)])
def test_wilson_interval_equals_scipy(successes: int, n: int) -> None:
    expected = stats.binomtest(successes, n).proportion_ci(0.95, method="wilson")
    found = wilson_interval(successes, n)
    assert found == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert wilson_interval(0, 0) == (0.0, 1.0)


def flat(clusters: Sequence[Sequence[float]]) -> tuple[list[float], list[int]]:
    """Scores and the task of each."""
    return [x for scores in clusters for x in scores], [
        n for n, scores in enumerate(clusters) for _ in scores
    ]


def every_sign(differences: list[float], groups: Sequence[int]) -> float:
    """Brute force over all assignments of signs to groups; ties count half."""
    sums = [
        sum(d for d, g in zip(differences, groups, strict=True) if g == group)
        for group in set(groups)
    ]
    observed = abs(sum(sums))
    flipped = [
        abs(sum(s * d for s, d in zip(signs, sums, strict=True)))
        for signs in product((1, -1), repeat=len(sums))
    ]
    return sum(
        1.0 if x > observed + 1e-9 else 0.5 if x > observed - 1e-9 else 0.0 for x in flipped
    ) / len(flipped)


@pytest.mark.parametrize("scale", [1, 2, 3])
def test_sign_flip_of_whole_numbers_equals_brute_force(scale: int) -> None:
    rng = np.random.default_rng(scale)
    for _ in range(30):
        groups = np.sort(rng.integers(0, 9, 25)).tolist()
        differences = (rng.integers(-scale, scale + 1, 25) / scale).tolist()
        assert sign_flip_test(differences, Units(groups)) == pytest.approx(
            every_sign(differences, groups), abs=1e-12
        )


def test_sign_flip_equals_hand_computed_values() -> None:
    # Five tasks better by one: 2 / 32 assignments are as extreme, none is more; McNemar's mid-p.
    assert sign_flip_test([1.0] * 5 + [0.0] * 3, Units(range(8))) == pytest.approx(1 / 32)
    # The mean counts: one task of ten questions against three of one question.
    units = Units([0] * 10 + [1, 2, 3])
    assert sign_flip_test([-1.0] * 10 + [1.0] * 3, units) == pytest.approx(15 / 16)


@pytest.mark.parametrize(("gap", "count"), [(0.0, 400), (-1.0, 8), (0.5, 30)])
def test_paired_difference_of_equal_units_has_a_wilson_interval(gap: float, count: int) -> None:
    found = paired_difference([gap] * count, range(count))
    rest = stats.binomtest(0, count).proportion_ci(method="wilson").high
    ends = (gap * (1 - rest) - rest, gap * (1 - rest) + rest)
    assert (found.difference, found.low, found.high) == pytest.approx((gap, *ends))
    assert -1 <= found.low < found.high <= 1


@pytest.mark.parametrize(
    ("clusters", "expected"),
    [
        # Ten copies of each of 50 scores are worth 50 scores: deff = 50/49 * 10 * (499/500).
        ([[float(index % 2)] * 10 for index in range(50)], 500 / (50 / 49 * 10 * 499 / 500)),
        ([[0.0, 1.0]] * 20, 40),  # negative correlation does not narrow the interval
        ([[1.0, 0.0, 1.0]], 1),
    ],
)
def test_effective_sample_size_equals_hand_computed_values(
    clusters: list[list[float]], expected: float
) -> None:
    scores, groups = flat(clusters)
    assert effective_sample_size(scores, Units(groups)) == pytest.approx(expected)


def test_clustered_interval_covers_the_mean_in_95_percent() -> None:
    """Tasks of 8 questions with varying difficulty."""
    rng = np.random.default_rng(0)
    covered = naive = 0
    rounds, truth = 400, 0.6
    for _ in range(rounds):
        ease = rng.beta(1.2, 0.8, size=60)  # mean 0.6
        scores = (rng.random((60, 8)) < ease[:, None]).astype(float)
        estimate = clustered_estimate(*flat(scores.tolist()))
        covered += estimate.low <= truth <= estimate.high
        low, high = wilson_interval(scores.sum(), scores.size)
        naive += low <= truth <= high
    assert covered / rounds >= 0.93
    assert naive / rounds < 0.9  # the interval of independent questions is too narrow


def test_holm_and_seed_spread_equal_hand_computed_values() -> None:
    # Sorted: 0.01 * 3, 0.03 * 2, 0.04 * 1, then made monotone.
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    spread = seed_spread([0.5, 0.6, 0.7])
    expected = {"mean": 0.6, "sd": 0.1, "low": 0.5, "high": 0.7, "seeds": 3}
    assert spread == pytest.approx(expected)
    assert seed_spread([0.5])["sd"] is None


@pytest.mark.parametrize(
    ("groups", "questions", "names", "count"),
    [
        ("aabb", "uuvv", ("group",), 2),  # several episodes of tasks of one question
        ("abcdef", "uuvvww", ("question",), 3),  # tasks of one question that comes again
        ("aabb", "uvuw", ("group", "question"), 2),
    ],
)
def test_units_are_the_repeated_groups_or_questions(
    groups: str, questions: str, names: tuple[str, ...], count: int
) -> None:
    units = Units(groups, questions)
    assert (units.names, units.count) == (names, count)
