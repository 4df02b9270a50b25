"""Intervals and tests of reports against brute force, and their size, coverage and power in simulation.

    python scripts/bench_stats.py [--quick]

Held against implementations that share no code with ours: loops over tasks and questions, and all or many random sign
assignments in numpy. The samples have what real ones have: tasks of unequal size, questions that come again in several
tasks, both at once, and few conversations of many questions; scores are right or wrong, with a part that a task shares
and one that a question shares. (Weak points: normal effects on a probit scale, ten conversations at the least, and in
the power simulation one difference for all questions.)

The last line is one JSON object; exit status 0 if the bars hold: figures equal the references' within 1e-9 (random
flips: within their error); 95% intervals of means and of differences hold the truth in 94 to 96% of samples; the test
at .05 rejects a true null hypothesis in 4.5 to 5.5%; its power is at least that of the reference, tasks' sums under
2,000 random signs, ties counted whole. With --quick the bars are wider, for the error of few samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
from quick import add_quick, command_line, last_line
from scipy.stats import binom

from atommem.envs.scoring.statistics import (
    Units,
    clustered_estimate,
    holm,
    paired_difference,
    sign_flip_test,
)

Labels = np.ndarray[Any, np.dtype[np.int64]]
Values = np.ndarray[Any, np.dtype[np.float64]]

TASK, QUESTION, NOISE = 0.6, 0.8, 1.0
"""Standard deviations of what a task's scores share, what a question's share, and what is each score's own."""
NORMAL = NormalDist()


def apart(groups: Labels) -> tuple[Labels, Labels]:
    """Every score is of a question of its own."""
    return groups, np.arange(len(groups))


def again(groups: Labels, questions: int, rng: np.random.Generator) -> tuple[Labels, Labels]:
    """So many questions come again and again."""
    return groups, drawn(rng, questions, len(groups))


def sizes(tasks: int, rng: np.random.Generator) -> Labels:
    """Tasks of one to ten questions."""
    return np.repeat(np.arange(tasks), rng.integers(1, 11, tasks))


KINDS: dict[str, Callable[[np.random.Generator], tuple[Labels, Labels]]] = {
    "100 tasks of 1-10 questions": lambda rng: apart(sizes(100, rng)),
    "30 tasks of 20, 270 of one": lambda _: apart(
        np.repeat(np.arange(300), np.where(np.arange(300) % 10, 1, 20))
    ),
    "149 questions in 400 tasks of one": lambda rng: again(np.arange(400), 149, rng),
    "200 tasks of 1-10 of 300 questions": lambda rng: again(sizes(200, rng), 300, rng),
    "10 conversations of 199": lambda _: apart(np.repeat(np.arange(10), 199)),
}
"""Task (or conversation) and question of each score of a sample."""


def drawn(rng: np.random.Generator, questions: int, count: int) -> Labels:
    """As `atommem data build` draws: every question once before one comes again."""
    rounds = [rng.permutation(questions) for _ in range(count // questions + 1)]
    return np.concatenate(rounds)[:count]


def shared(rng: np.random.Generator, groups: Labels, questions: Labels) -> Values:
    """What scores have in common by task and by question."""
    task = TASK * rng.standard_normal(groups.max() + 1)[groups]
    return task + QUESTION * rng.standard_normal(questions.max() + 1)[questions]


def pair(rng: np.random.Generator, groups: Labels, questions: Labels, gap: float) -> Values:
    """Differences of two evaluations that share half of each effect, the second better by `gap` on the probit scale."""
    common = shared(rng, groups, questions)
    sides = [
        (
            common
            + shared(rng, groups, questions) / 2
            + NOISE * rng.standard_normal(len(groups))
            + better
            > 0
        )
        for better in (-gap / 2, gap / 2)
    ]
    return sides[1].astype(float) - sides[0]


def simulate(kind: str, samples: int, seed: int) -> dict[str, float]:
    """Shares of samples in which intervals hold the truth, and in which the tests reject."""
    rng = np.random.default_rng(seed)
    spread = sqrt(TASK**2 + QUESTION**2 + NOISE**2)
    counts = dict.fromkeys(
        ("mean", "difference", "size", "power", "reference power", "sign test power"), 0.0
    )
    for _ in range(samples):
        groups, questions = KINDS[kind](rng)
        own = shared(rng, groups, questions) + NOISE * rng.standard_normal(len(groups))
        found = clustered_estimate(
            (own + 0.5 > 0).astype(float).tolist(), groups.tolist(), questions.tolist()
        )
        counts["mean"] += found.low <= NORMAL.cdf(0.5 / spread) <= found.high
        none = paired_difference(
            pair(rng, groups, questions, 0.0).tolist(), groups.tolist(), questions.tolist()
        )
        counts["difference"] += none.low <= 0 <= none.high
        counts["size"] += none.p_value <= 0.05
        gaps = pair(rng, groups, questions, 0.45 if kind.startswith("10 ") else 0.25)
        units = Units(groups.tolist(), questions.tolist())
        counts["power"] += sign_flip_test(gaps, units) <= 0.05
        if len(units.codes) == 1:
            counts["reference power"] += random_signs(gaps, units.codes[0], rng) <= 0.05
            counts["sign test power"] += sign_test(gaps, units.codes[0]) <= 0.05
    shares = {name: count / samples for name, count in counts.items()}
    if (
        kind == "200 tasks of 1-10 of 300 questions"
    ):  # no permutation is exact where both are crossed
        del shares["reference power"], shares["sign test power"]
    return shares


def random_signs(
    gaps: Values, codes: Labels, rng: np.random.Generator, flips: int = 2_000
) -> float:
    """The reference: random signs of each unit's sum, ties counted whole."""
    sums = np.array([gaps[codes == code].sum() for code in range(codes.max() + 1)])
    flipped = np.abs(rng.choice([-1.0, 1.0], (flips, len(sums))) @ sums)
    return float((1 + np.sum(flipped >= abs(sums.sum()) - 1e-9)) / (flips + 1))


def sign_test(gaps: Values, codes: Labels) -> float:
    """The exact sign test over units, which reports had before."""
    sums = [gaps[codes == code].sum() for code in range(codes.max() + 1)]
    wins, losses = sum(x > 0 for x in sums), sum(x < 0 for x in sums)
    return min(1.0, 2 * float(binom.cdf(min(wins, losses), wins + losses, 0.5)))


def largest_differences(tables: int, seed: int) -> dict[str, float]:
    """Over random small samples: how far our figures are at most from those of plain loops."""
    rng = np.random.default_rng(seed)
    worst: dict[str, float] = {}

    def note(name: str, ours: float, theirs: float) -> None:
        worst[name] = max(worst.get(name, 0.0), abs(ours - theirs))

    for index in range(tables):
        tasks = int(rng.integers(2, 10))
        groups = np.repeat(np.arange(tasks), rng.integers(1, 5, tasks))
        questions = (
            rng.integers(0, max(2, len(groups) // 2), len(groups))
            if index % 2
            else np.arange(len(groups))
        )
        gaps = rng.integers(-1, 2, len(groups)).astype(float)
        crossed = Units(groups.tolist(), questions.tolist())
        note("variance", crossed.variance(gaps - gaps.mean()), looped(gaps, groups, questions))
        found = paired_difference(gaps.tolist(), groups.tolist())
        note("difference", found.difference, sum(gaps) / len(gaps))
        note(
            "sign flips",
            found.p_value,
            every_sign([gaps[groups == task].sum() for task in range(tasks)]),
        )
        p_values = (rng.random(6) ** 3).tolist()
        for ours, theirs in zip(holm(p_values), stepwise(p_values), strict=True):
            note("Holm", ours, theirs)
    return worst


def looped(gaps: Values, groups: Labels, questions: Labels) -> float:
    """The variance of the sum over all pairs of scores that share their unit: the definition, without sums of units."""
    deviations = gaps - gaps.mean()
    one = {(g, q) for g, q in zip(groups, questions, strict=True)}
    by_group, by_question = len(one) != len(set(groups)), len(one) != len(set(questions))
    if not by_question:
        by_group = True
    n, parts = len(gaps), [0.0, 0.0, 0.0]
    for i, j in product(range(n), range(n)):
        same = groups[i] == groups[j], questions[i] == questions[j]
        for place, counts in enumerate((*same, all(same))):
            parts[place] += float(deviations[i] * deviations[j]) if counts else 0.0
    if by_group and by_question:
        return max(parts[0], parts[1], parts[0] + parts[1] - parts[2])
    return parts[0] if by_group else parts[1]


def every_sign(sums: Sequence[float]) -> float:
    """All assignments of signs; ties count half. Where there is no difference at all, 1."""
    if not any(sums):
        return 1.0
    far = [
        abs(sum(s * x for s, x in zip(signs, sums, strict=True)))
        for signs in product((1, -1), repeat=len(sums))
    ]
    return float(
        np.mean([1.0 if x > far[0] + 1e-9 else 0.5 if x > far[0] - 1e-9 else 0.0 for x in far])
    )


def stepwise(p_values: Sequence[float]) -> Iterator[float]:
    """Holm as its paper says it: the highest of (m - rank) p among the p-values that are no larger."""
    for value in p_values:
        smaller = sorted(p for p in p_values if p <= value)
        yield min(1.0, max((len(p_values) - rank) * p for rank, p in enumerate(smaller)))


def main() -> int:
    """Run both parts."""
    parser = command_line(__doc__)
    parser.add_argument(
        "--tables",
        type=int,
        default=1000,
        help="random samples against the references (%(default)s)",
    )
    parser.add_argument(
        "--samples", type=int, default=6_000, help="simulated samples of each kind (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0)
    add_quick(parser, tables=100, samples=100)
    given = parser.parse_args()
    differences = largest_differences(given.tables, given.seed)
    print(f"largest difference from the references on {given.tables} random samples: {differences}")
    error = 4 * sqrt(0.05 * 0.95 / given.samples) if given.quick else 0.0
    figures: dict[str, Any] = {}
    holds = max(differences.values()) <= 1e-9
    for place, kind in enumerate(KINDS):
        figures[kind] = found = simulate(kind, given.samples, given.seed + place)
        print(
            f"{kind:<36}" + "  ".join(f"{name} {value:.4f}" for name, value in found.items()),
            flush=True,
        )
        holds &= all(0.94 - error <= found[name] <= 0.96 + error for name in ("mean", "difference"))
        holds &= 0.045 - error <= found["size"] <= 0.055 + error
        holds &= found["power"] >= found.get("reference power", 0.0)
    figures |= {"differences": differences, "samples": given.samples}
    return last_line({"bench": "stats", **figures, "holds": holds})


if __name__ == "__main__":
    raise SystemExit(main())
