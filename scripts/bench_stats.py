"""Do intervals cover the truth, and do tests keep their size, on questions that repeat?

    python scripts/bench_stats.py [--samples 6000]

Simulated evaluations: tasks of unequal size, questions that recur in several tasks, both at once,
and few conversations of many questions. A task's scores share an effect, and so do a question's.
(Weak points: normal effects on a probit scale, at least ten conversations, one difference for all
questions.) The power is compared with that of 2,000 random sign assignments.

The bar: 95% intervals of means and of differences hold the truth in 94 to 96% of samples; the test
at .05 rejects a true null hypothesis in 4.5 to 5.5%; its power is at least the reference's. The
last line is JSON; the exit status is 0 if its "holds" is true.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
from common import command_line, last_line

from atommem.envs.scoring.statistics import (
    Units,
    clustered_estimate,
    paired_difference,
    sign_flip_test,
)

Labels = np.ndarray[Any, np.dtype[np.int64]]
Values = np.ndarray[Any, np.dtype[np.float64]]
Generator = np.random.Generator
TASK, QUESTION, NOISE = 0.6, 0.8, 1.0
"""Standard deviations of a task's effect, of a question's, and of each score's own."""
NORMAL = NormalDist()


def unequal(tasks: int, rng: Generator) -> Labels:
    """Tasks of one to ten questions."""
    return np.repeat(np.arange(tasks), rng.integers(1, 11, tasks))


def distinct(groups: Labels) -> tuple[Labels, Labels]:
    """Every score belongs to a question of its own."""
    return groups, np.arange(len(groups))


def repeated(groups: Labels, questions: int, rng: Generator) -> tuple[Labels, Labels]:
    """Every question is drawn once before one is drawn again, as in `atommem data build`."""
    rounds = [rng.permutation(questions) for _ in range(len(groups) // questions + 1)]
    return groups, np.concatenate(rounds)[: len(groups)]


CROSSED = "200 tasks of 1-10 of 300 questions"
KINDS: dict[str, Callable[[Generator], tuple[Labels, Labels]]] = {
    "100 tasks of 1-10 questions": lambda rng: distinct(unequal(100, rng)),
    "149 questions in 400 tasks of one": lambda rng: repeated(np.arange(400), 149, rng),
    CROSSED: lambda rng: repeated(unequal(200, rng), 300, rng),
    "10 conversations of 199": lambda rng: distinct(np.repeat(np.arange(10), 199)),
}


def shared(rng: Generator, groups: Labels, questions: Labels) -> Values:
    """Effects of the tasks and questions, one for each score."""
    task = TASK * rng.standard_normal(groups.max() + 1)[groups]
    return task + QUESTION * rng.standard_normal(questions.max() + 1)[questions]


def differences(rng: Generator, groups: Labels, questions: Labels, gap: float) -> Values:
    """Of two evaluations that share half of each effect, the second better by `gap` (probit)."""
    common = shared(rng, groups, questions)
    sides = []
    for shift in (-gap / 2, gap / 2):
        own = shared(rng, groups, questions) / 2 + NOISE * rng.standard_normal(len(groups))
        sides.append((common + own + shift > 0).astype(float))
    return sides[1] - sides[0]


def random_signs(gaps: Values, codes: Labels, rng: Generator, flips: int = 2_000) -> float:
    """The reference: random signs of each unit's sum, ties counted whole."""
    sums = np.bincount(codes, weights=gaps)
    flipped = np.abs(rng.choice([-1.0, 1.0], (flips, len(sums))) @ sums)
    return float((1 + np.sum(flipped >= abs(sums.sum()) - 1e-9)) / (flips + 1))


def simulate(kind: str, samples: int, seed: int) -> dict[str, float]:
    """Shares of samples in which intervals hold the truth, and in which tests reject."""
    rng = np.random.default_rng(seed)
    truth = NORMAL.cdf(0.5 / sqrt(TASK**2 + QUESTION**2 + NOISE**2))
    counts = dict.fromkeys(("mean", "difference", "size", "power", "reference power"), 0.0)
    for _ in range(samples):
        groups, questions = KINDS[kind](rng)
        labels = groups.tolist(), questions.tolist()
        own = shared(rng, groups, questions) + NOISE * rng.standard_normal(len(groups))
        found = clustered_estimate((own + 0.5 > 0).astype(float).tolist(), *labels)
        counts["mean"] += found.low <= truth <= found.high
        none = paired_difference(differences(rng, groups, questions, 0.0).tolist(), *labels)
        counts["difference"] += none.low <= 0 <= none.high
        counts["size"] += none.p_value <= 0.05
        gap = 0.45 if kind.startswith("10 ") else 0.25
        gaps, units = differences(rng, groups, questions, gap), Units(*labels)
        counts["power"] += sign_flip_test(gaps, units) <= 0.05
        if len(units.codes) == 1:
            counts["reference power"] += random_signs(gaps, units.codes[0], rng) <= 0.05
    if kind == CROSSED:  # no permutation is exact where both are crossed
        del counts["reference power"]
    return {name: count / samples for name, count in counts.items()}


def main() -> int:
    """Simulate every kind."""
    parser = command_line(__doc__, samples=60)
    parser.add_argument("--samples", type=int, default=6_000, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    holds = True
    for place, kind in enumerate(KINDS):
        figures[kind] = found = simulate(kind, options.samples, options.seed + place)
        print(f"{kind:<36}{found}", flush=True)
        holds &= all(0.94 <= found[name] <= 0.96 for name in ("mean", "difference"))
        holds &= 0.045 <= found["size"] <= 0.055
        holds &= found["power"] >= found.get("reference power", 0.0)
    result = {"bench": "stats", "samples": options.samples, **figures}
    return last_line({**result, "holds": bool(options.quick or holds)})


if __name__ == "__main__":
    raise SystemExit(main())
