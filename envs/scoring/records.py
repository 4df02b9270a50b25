"""One finished episode as a line of ``episodes.jsonl``, and everything that is computed from such lines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from atommem.envs.scoring.answers import score_question
from atommem.envs.scoring.fact_recall import fact_recall
from atommem.envs.scoring.statistics import clustered_estimate, sign_test
from atommem.envs.task import Question, Task
from atommem.episode import Episode, StopReason
from atommem.episode_stats import add_sums, episode_sums, means
from atommem.errors import DataError


@dataclass(frozen=True, slots=True)
class QuestionRecord:
    """A question, what was answered, and its scores against every gold answer.

    `category` is the benchmark's, where it reports its categories apart (LoCoMo); `metrics` are further scores
    (``sub_em``, ``judge``, and those of `atommem.envs.scoring.fact_recall`).
    """

    id: str
    question: str
    answer: str | None
    golds: tuple[str, ...]
    em: float
    f1: float
    category: str = ""
    metrics: dict[str, float] = field(default_factory=dict)

    def score(self, metric: str) -> float | None:
        """``em``, ``f1`` or one of `metrics`; None if the question has no such score."""
        if metric in ("em", "f1"):
            return float(getattr(self, metric))
        return self.metrics.get(metric)


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """An episode without its steps (those are in its trace).

    Attributes:
        task_id, sample: Which episode.
        source: Where the task comes from (``hotpotqa``, ...).
        stop_reason, error: How it ended; `error` says what failed.
        reward, metrics: The environment's score; None and empty when failed.
        questions: Empty when failed.
        sums: `atommem.episode_stats.episode_sums` of this episode.
        seconds: Wall-clock of the whole episode.
        prompt_tokens, completion_tokens: Of every call whose answer arrived, also if the episode failed later.
    """

    task_id: str
    sample: int
    source: str
    stop_reason: str
    error: str | None
    reward: float | None
    metrics: dict[str, float]
    questions: tuple[QuestionRecord, ...]
    sums: dict[str, float]
    seconds: float
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def key(self) -> tuple[str, int]:
        """What tells episodes apart."""
        return self.task_id, self.sample

    @property
    def failed(self) -> bool:
        """Whether an outage ended the episode: it has no score."""
        return self.stop_reason == StopReason.FAILED

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> EpisodeRecord:
        """The inverse of `to_json`.

        Raises:
            DataError: A field is missing or unknown.
        """
        try:
            questions = tuple(
                QuestionRecord(**{**item, "golds": tuple(item["golds"])}) for item in values.pop("questions")
            )
            return cls(questions=questions, **values)
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"not an episode record: {error}") from error


def record_of(task: Task, episode: Episode) -> EpisodeRecord:
    """Score `episode` question by question against `task`."""
    questions: tuple[QuestionRecord, ...] = ()
    if not episode.failed:
        given = episode.question_metrics or ({},) * len(task.questions)
        questions = tuple(
            _question_record(question, answer, {**score_question(question, answer, task.source), **metrics, **recall})
            for question, answer, metrics, recall in zip(
                task.questions, episode.answers, given, fact_recall(task, episode), strict=True
            )
        )
    return EpisodeRecord(
        task_id=task.id,
        sample=episode.sample,
        source=task.source,
        stop_reason=str(episode.stop_reason),
        error=episode.error,
        reward=episode.reward,
        metrics=episode.metrics,
        questions=questions,
        sums=episode_sums([episode]),
        seconds=episode.seconds,
        prompt_tokens=sum(len(step.prompt_ids) for step in episode.steps),
        completion_tokens=sum(len(step.token_ids) for step in episode.steps),
    )


def _question_record(question: Question, answer: str | None, metrics: dict[str, float]) -> QuestionRecord:
    return QuestionRecord(
        id=question.id,
        question=question.text,
        answer=answer,
        golds=question.answers,
        em=metrics.pop("em"),
        f1=metrics.pop("f1"),
        category=str(question.metadata.get("category", "")),
        metrics=metrics,
    )


@dataclass(frozen=True, slots=True)
class EvalResult:
    """The records of an evaluation (one per task and sample) and their summary.

    Attributes:
        records: In the order of the tasks.
        resumed: How many of them an earlier run had finished.
    """

    records: tuple[EpisodeRecord, ...]
    resumed: int = 0

    @property
    def failed(self) -> int:
        """Episodes that an outage ended. They count in no score."""
        return sum(record.failed for record in self.records)

    @property
    def failed_fraction(self) -> float:
        """`failed` over all episodes; 0 without any."""
        return self.failed / len(self.records) if self.records else 0.0

    @property
    def em(self) -> float:
        """Exact match: the mean over all questions of the episodes that did not fail; NaN if all failed."""
        return self._mean("em")

    @property
    def f1(self) -> float:
        """Token F1, likewise."""
        return self._mean("f1")

    def _mean(self, metric: str) -> float:
        scores = [getattr(question, metric) for record in self.records for question in record.questions]
        return sum(scores) / len(scores) if scores else math.nan

    def summary(self) -> dict[str, Any]:
        """`summarize` over all records, and under ``by_source`` for each source where there are several."""
        summary = summarize(self.records)
        sources = sorted({record.source for record in self.records})
        if len(sources) > 1:
            summary["by_source"] = {
                source or "unknown": summarize(record for record in self.records if record.source == source)
                for source in sources
            }
        return summary


def summarize(records: Iterable[EpisodeRecord]) -> dict[str, Any]:
    """Scores with their intervals, and what the episodes did.

    Returns:
        episodes, failed: counts; failed episodes are in neither score nor mean.
        em, f1: `atommem.envs.scoring.statistics.Estimate` as a dict (mean, low, high, n, clusters, effective_n); None
        when there
            is nothing to score.
        means: `atommem.episode_stats.means`: action rates per step, tokens, model calls (``steps``), retrievals,
            seconds and store size per episode, stop reasons.
        metrics: Further scores of questions (``sub_em``, ``judge``), each an estimate like em.
        by_category: Where questions have categories, em, f1 and metrics of each.
        errors: How often each error message ended an episode.
    """
    items = list(records)
    errors: dict[str, int] = {}
    for record in items:
        if record.failed:
            errors[record.error or "unknown"] = errors.get(record.error or "unknown", 0) + 1
    rates = means(add_sums([episode_sums([]), *(record.sums for record in items)]))
    names = sorted({name for record in items for question in record.questions for name in question.metrics})
    for name in ("em", "f1", *names):
        rates.pop(name, None)  # means over episodes; the scores below are means over questions
    categories = sorted({question.category for record in items for question in record.questions} - {""})
    summary: dict[str, Any] = {
        "episodes": len(items),
        "failed": sum(record.failed for record in items),
        "em": _estimate(items, "em"),
        "f1": _estimate(items, "f1"),
        "metrics": {name: _estimate(items, name) for name in names},
        "means": rates,
        "errors": errors,
    }
    if categories:
        summary["by_category"] = {name: _of_category(items, name, names) for name in categories}
    return summary


def _of_category(records: Sequence[EpisodeRecord], category: str, metrics: Sequence[str]) -> dict[str, Any]:
    """The scores of the questions of one category."""
    parts = [
        replace(record, questions=tuple(item for item in record.questions if item.category == category))
        for record in records
    ]
    return {
        "em": _estimate(parts, "em"),
        "f1": _estimate(parts, "f1"),
        "metrics": {name: _estimate(parts, name) for name in metrics},
    }


def _estimate(records: Iterable[EpisodeRecord], metric: str) -> dict[str, float] | None:
    clusters = list(task_scores(records, metric).values())
    return asdict(clustered_estimate(clusters)) if clusters else None


def task_scores(records: Iterable[EpisodeRecord], metric: str = "em") -> dict[str, list[float]]:
    """By task id, the scores of all its questions over all its episodes; tasks without any are absent."""
    scores: dict[str, list[float]] = {}
    for record in records:
        for question in record.questions:
            score = question.score(metric)
            if score is not None:
                scores.setdefault(record.task_id, []).append(score)
    return scores


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """Two evaluations on the same tasks: who is better how often.

    Attributes:
        wins, losses, ties: Tasks on which the second one's mean score is higher, lower, equal.
        p_value: Of the exact two-sided sign test.
    """

    wins: int
    losses: int
    ties: int
    p_value: float


def compare(before: Sequence[EpisodeRecord], after: Sequence[EpisodeRecord], metric: str = "em") -> PairedComparison:
    """Pair the tasks of two evaluations and test whether one is better.

    The unit is the task: its score is the mean over its questions and episodes. Tasks without a score in one of
    the two (failed there, or absent) are left out.

    Args:
        before, after: `EvalResult.records` of the two.
        metric: ``em`` or ``f1``.
    """
    changes = task_changes(task_scores(before, metric), task_scores(after, metric))
    wins = sum(change > 0 for change in changes.values())
    losses = sum(change < 0 for change in changes.values())
    return PairedComparison(wins, losses, len(changes) - wins - losses, sign_test(wins, losses))


def task_changes(before: Mapping[str, Sequence[float]], after: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """By task that both have: its mean score in `after` minus that in `before`, exactly 0 where they are equal.

    The tasks are in the order of `before`.
    """
    changes = {}
    for task, scores in before.items():
        if task in after:
            change = sum(after[task]) / len(after[task]) - sum(scores) / len(scores)
            # Means of the same scores added up in another order may differ in the last bit.
            changes[task] = change if abs(change) > 1e-9 else 0.0
    return changes
