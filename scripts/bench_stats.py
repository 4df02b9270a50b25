"""Intervals and tests against scipy and statsmodels, and the coverage of the intervals in simulation.

    python scripts/bench_stats.py

Needs statsmodels (of the extra `dev`). The last line is one JSON object; exit status 0 if the bars hold: every figure
equals the references' on 1,000 random tables, and 95% intervals hold the truth in 93 to 97% of simulated samples.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

from atommem.envs.scoring.statistics import bootstrap_difference, clustered_estimate, holm, sign_test, wilson_interval

TOLERANCE = 1e-9
LOWEST, HIGHEST = 0.93, 0.97


def main() -> int:
    """Run both parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=1000, help="Random tables.")
    parser.add_argument("--samples", type=int, default=2000, help="Simulated samples of each kind.")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    differences = largest_differences(given.tables, given.seed)
    print(f"largest difference from the reference on {given.tables} random tables")
    for name, value in differences.items():
        print(f"  {name:<42} {value:.1e}")
    covered = {}
    print(f"coverage of 95% intervals, {given.samples} samples each")
    for name, hits in simulations(given.samples, given.seed):
        covered[name] = hits / given.samples
        print(f"  {name:<42} {covered[name]:.3f}")
    agree = max(differences.values()) <= TOLERANCE
    within = all(LOWEST <= value <= HIGHEST for value in covered.values())
    print(
        json.dumps(
            {
                "tables": given.tables,
                "largest_difference": max(differences.values()),
                "differences": differences,
                "samples": given.samples,
                "coverage": covered,
                "holds": agree and within,
            }
        )
    )
    return 0 if agree and within else 1


def largest_differences(tables: int, seed: int) -> dict[str, float]:
    """Over random paired tables: how far our figures are from those of scipy and statsmodels at most."""
    rng = np.random.default_rng(seed)
    worst: dict[str, float] = {}

    def note(name: str, ours: Any, theirs: Any) -> None:
        gap = float(np.max(np.abs(np.asarray(ours, dtype=float) - np.asarray(theirs, dtype=float))))
        worst[name] = max(worst.get(name, 0.0), gap)

    for index in range(tables):
        n = int(rng.integers(1, 2000) if index % 2 else rng.integers(1, 30))
        # Rows: first wrong or right; columns: second wrong or right.
        table = rng.multinomial(n, rng.dirichlet([1.0, 0.5, 0.5, 1.0])).reshape(2, 2)
        right = int(table[1].sum())
        wilson = wilson_interval(right, n)
        note("Wilson: scipy", wilson, stats.binomtest(right, n).proportion_ci(0.95, method="wilson"))
        note("Wilson: statsmodels", wilson, proportion_confint(right, n, alpha=0.05, method="wilson"))
        wins, losses = int(table[0, 1]), int(table[1, 0])
        p_value = sign_test(wins, losses)
        if wins + losses:
            note("sign test: scipy", p_value, stats.binomtest(wins, wins + losses, 0.5).pvalue)
        note("sign test: McNemar exact, statsmodels", p_value, mcnemar(table, exact=True).pvalue)
        values = rng.random(int(rng.integers(1, 40))) ** 4
        note("Holm: statsmodels", holm(values.tolist()), multipletests(values, method="holm")[1])
        if index % 10 == 0 and n > 1:
            note("paired bootstrap: scipy, same draws", *_bootstraps(table, index))
    return worst


def _bootstraps(table: np.ndarray, seed: int) -> tuple[tuple[float, float], tuple[float, float]]:
    pairs = [(row, column) for row in (0, 1) for column in (0, 1) for _ in range(table[row, column])]
    first, second = np.array(pairs, dtype=float).T
    ours = bootstrap_difference(first[:, None].tolist(), second[:, None].tolist(), resamples=999, seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy warns where all pairs are equal
        theirs = stats.bootstrap(
            (first, second),
            lambda a, b, axis=-1: b.mean(axis=axis) - a.mean(axis=axis),
            paired=True,
            method="percentile",
            n_resamples=999,
            rng=np.random.default_rng(seed),
        ).confidence_interval
    return (ours.low, ours.high), (float(theirs.low), float(theirs.high))


def simulations(samples: int, seed: int) -> Iterator[tuple[str, int]]:
    """How often the interval holds the truth: Wilson's, Wilson's with several questions a task, the bootstrap's."""
    for n in (50, 200, 1000):
        rng = np.random.default_rng(seed + n)
        hits = 0
        # One proportion alone lies above or below 95% by how its few possible counts fall: many are drawn.
        for truth in rng.uniform(0.1, 0.9, samples):
            low, high = wilson_interval(int(rng.binomial(n, truth)), n)
            hits += low <= truth <= high
        yield f"Wilson, {n} questions", hits
    for tasks, questions in ((100, 10), (200, 4)):
        rng = np.random.default_rng(seed + tasks)
        hits = 0
        for _ in range(samples):
            ease = rng.beta(1.2, 0.8, tasks)  # mean 0.6
            scores = (rng.random((tasks, questions)) < ease[:, None]).astype(float)
            estimate = clustered_estimate(scores.tolist())
            hits += estimate.low <= 0.6 <= estimate.high
        yield f"Wilson, {tasks} tasks of {questions} questions", hits
    for tasks, questions in ((200, 1), (100, 5)):
        rng = np.random.default_rng(seed + tasks + questions)
        hits = 0
        for index in range(samples):
            ease = rng.beta(1.2, 0.8, tasks)[:, None]
            first = (rng.random((tasks, questions)) < ease * 0.8).astype(float)
            second = (rng.random((tasks, questions)) < ease).astype(float)
            found = bootstrap_difference(first.tolist(), second.tolist(), resamples=1000, seed=index)
            hits += found.low <= 0.12 <= found.high
        yield f"paired bootstrap, {tasks} tasks of {questions}", hits


if __name__ == "__main__":
    sys.exit(main())
