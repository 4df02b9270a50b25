"""Records, their summaries and breakdowns; statistics against hand-computed numbers."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import stats

from atommem.environment import TaskDescription
from atommem.envs.scoring import records, statistics
from atommem.envs.scoring.statistics import Units
from atommem.envs.task import Question, Task, describe_task
from atommem.episode import Episode, StopReason


def episode(reward: float = 0.5, **more: Any) -> Episode:
    return Episode("t", 0, reward=reward, stop_reason=StopReason.ANSWERED, **more)


def test_record_has_the_attributes_of_the_task_and_the_scores_of_the_environment():
    """The record does not score again: it has 0 where the environment gave a gold answer 0."""
    metadata = {"category": "c", "hops": 2, "x": 1}
    where = Question("Where?", ("Port", "Harbour"), "q", metadata)
    task = describe_task(Task("t", (where, Question("Who?", ())), source="web"))
    metrics = ({"em": 0.0, "style": 0.25}, {"em": 1.0})
    scored = episode(answers=("Port", None), question_metrics=metrics)
    record = records.record_of(task, scored, ({"fact_kept": 1.0}, {}))
    first, second = record.questions
    assert (first.golds, first.category) == (("Port", "Harbour"), "c")
    assert first.attributes == {"hops": "2"}
    assert first.metrics == {"em": 0.0, "style": 0.25, "fact_kept": 1.0}
    assert second.metrics == {"em": 1.0}
    assert (first.answer, second.answer) == ("Port", None)
    assert (record.source, record.scores("em")) == ("web", [0.0, 1.0])
    assert records.EpisodeRecord.from_json(json.loads(json.dumps(asdict(record)))) == record


def test_unscored_episode_is_in_no_mean():
    task = TaskDescription("t")
    unknown = records.record_of(task, replace(episode(0.5), reward=None))
    record = records.record_of(task, episode(0.5, metrics={"success": 1.0, "calls": 7.0}))
    other = records.record_of(TaskDescription("u"), episode(1.0))
    summary = records.summarize([unknown, record, other])
    assert (summary["metric"], summary["metrics"]["reward"]["mean"]) == ("reward", 0.75)
    assert summary["means"]["calls"] == 7.0
    assert records.metric_names([record]) == ["reward", "success"], "calls are counts"


def record(task: str, *questions: tuple[float, dict[str, str]]) -> records.EpisodeRecord:
    asked = tuple(
        records.QuestionRecord(f"{task}{number}", "?", "x", ("y",), "", {"em": score}, attributes)
        for number, (score, attributes) in enumerate(questions)
    )
    return records.EpisodeRecord(task, 0, "hotpotqa", "answered", None, 0.0, {}, asked, {}, 1.0)


RECORDS = [
    record("a", (1.0, {"type": "bridge", "hops": "2", "level": "hard"})),
    record(
        "b", (0.0, {"type": "bridge", "hops": "10"}), (1.0, {"type": "comparison", "hops": "3"})
    ),
    record("c", (0.0, {"type": "comparison", "hops": "2", "level": "hard"})),
]


def test_compare_pairs_questions_and_counts_tasks():
    better = [RECORDS[0], record("b", (1.0, {}), (1.0, {})), record("d", (1.0, {}))]
    found = records.compare(RECORDS, better)
    assert (found.wins, found.losses, found.ties, found.left_out) == (1, 0, 1, 2)
    assert found.changes == {"a": 0.0, "b": 0.5}
    assert found.difference is not None
    assert found.difference.difference == pytest.approx(1 / 3)


@pytest.mark.parametrize(("successes", "n"), [(0, 10), (1, 3), (5000, 7405)])
def test_wilson_interval_equals_scipy(successes, n):
    expected = stats.binomtest(successes, n).proportion_ci(0.95, method="wilson")
    found = statistics.wilson_interval(successes, n)
    assert found == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert statistics.wilson_interval(0, 0) == (0.0, 1.0)


def flat(clusters: Sequence[Sequence[float]]) -> tuple[list[float], list[int]]:
    """Scores and the task of each."""
    groups = np.repeat(np.arange(len(clusters)), [len(scores) for scores in clusters])
    return [x for scores in clusters for x in scores], groups.tolist()


def every_sign(differences: list[float], groups: Sequence[int]) -> float:
    """Brute force over all assignments of signs to groups; ties count half."""
    sums: defaultdict[int, float] = defaultdict(float)
    for difference, group in zip(differences, groups, strict=True):
        sums[group] += difference
    signs = np.array(list(product((1, -1), repeat=len(sums))))
    flipped = abs(signs @ list(sums.values()))
    observed = abs(sum(differences))
    return float(np.mean(flipped > observed + 1e-9) + np.mean(flipped > observed - 1e-9)) / 2


@pytest.mark.parametrize("scale", [1, 3])
def test_sign_flip_of_whole_numbers_equals_brute_force(scale):
    rng = np.random.default_rng(scale)
    for _ in range(30):
        groups = np.sort(rng.integers(0, 9, 25)).tolist()
        differences = (rng.integers(-scale, scale + 1, 25) / scale).tolist()
        expected = pytest.approx(every_sign(differences, groups), abs=1e-12)
        assert statistics.sign_flip_test(differences, Units(groups)) == expected


@pytest.mark.parametrize(("gap", "count"), [(0.0, 400), (-1.0, 8), (0.5, 30)])
def test_paired_difference_of_equal_units_has_a_wilson_interval(gap, count):
    found = statistics.paired_difference([gap] * count, range(count))
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
def test_effective_sample_size_equals_hand_computed_values(clusters, expected):
    scores, groups = flat(clusters)
    assert statistics.effective_sample_size(scores, Units(groups)) == pytest.approx(expected)


def test_clustered_interval_covers_the_mean_in_95_percent():
    rng = np.random.default_rng(0)
    covered = naive = 0
    for _ in range(400):
        ease = rng.beta(1.2, 0.8, size=60)  # mean 0.6
        scores = (rng.random((60, 8)) < ease[:, None]).astype(float)
        estimate = statistics.clustered_estimate(*flat(scores.tolist()))
        covered += estimate.low <= 0.6 <= estimate.high
        low, high = statistics.wilson_interval(scores.sum(), scores.size)
        naive += low <= 0.6 <= high
    assert covered / 400 >= 0.93
    assert naive / 400 < 0.9  # the interval of independent questions is too narrow


def test_holm_and_seed_spread_equal_hand_computed_values():
    # Sorted: 0.01 * 3, 0.03 * 2, 0.04 * 1, then made monotone.
    assert statistics.holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert statistics.holm([0.9, 0.8]) == [1.0, 1.0]
    expected = {"mean": 0.6, "sd": 0.1, "low": 0.5, "high": 0.7, "seeds": 3}
    assert statistics.seed_spread([0.5, 0.6, 0.7]) == pytest.approx(expected)
    assert statistics.seed_spread([0.5])["sd"] is None


@pytest.mark.parametrize(
    ("groups", "questions", "names", "count"),
    [
        ("aabb", "uuvv", ("group",), 2),  # several episodes of tasks of one question
        ("abcdef", "uuvvww", ("question",), 3),  # tasks of one question that comes again
        ("aabb", "uvuw", ("group", "question"), 2),
    ],
)
def test_units_are_the_repeated_groups_or_questions(groups, questions, names, count):
    units = Units(groups, questions)
    assert (units.names, units.count) == (names, count)
