"""One finished episode as a line of ``episodes.jsonl``, and everything that is computed from such lines."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from atommem.environment import TaskDescription
from atommem.envs.scoring.statistics import clustered_estimate
from atommem.envs.scoring.sufficiency import group_scores
from atommem.episode import Episode, StopReason, add_sums, episode_sums, means
from atommem.errors import DataError


@dataclass(frozen=True, slots=True)
class QuestionRecord:
    """A question, what was answered, and what its environment says of the answer.

    `category` is the benchmark's, where it reports its categories apart (LoCoMo); `metrics` are the scores of this
    question (``em``, ``f1``, ``judge``, ...) and what was diagnosed of it (`atommem.envs.longdoc.fact_recall`);
    `attributes` are what scores can be broken down by (`atommem.envs.scoring.breakdowns`).
    """

    id: str
    question: str
    answer: str | None
    golds: tuple[str, ...]
    category: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    attributes: dict[str, str] = field(default_factory=dict)

    @property
    def label(self) -> Hashable:
        """What tells it from other questions, in whichever task it stands; None where it has no id."""
        return (self.id, self.question, self.golds) if self.id else None

    @property
    def right(self) -> bool | None:
        """Whether it was answered right, by exact match; None in an environment without it."""
        return bool(self.metrics["em"]) if "em" in self.metrics else None


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """An episode without its steps (those are in its trace).

    Attributes:
        task_id, sample: Which episode.
        source: Where the task comes from (``hotpotqa``, ...).
        stop_reason, error: How it ended; `error` says what failed.
        reward, metrics: The environment's score; None and empty when failed, or where the task has no gold answers.
        questions: Empty when failed, and in environments that ask nothing.
        sums: `atommem.episode.episode_sums` of this episode.
        seconds: Wall-clock of the whole episode.
        prompt_tokens, completion_tokens: Of every call whose answer arrived, also if the episode failed later.
        group: What its task shares with others (`atommem.environment.TaskDescription`).
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
    group: str = ""

    @property
    def key(self) -> tuple[str, int]:
        """What tells episodes apart."""
        return self.task_id, self.sample

    @property
    def failed(self) -> bool:
        """Whether an outage ended the episode: it has no score."""
        return self.stop_reason == StopReason.FAILED

    @property
    def overflowed(self) -> bool:
        """Whether a prompt did not fit the policy's window: that says nothing of its answers, and is no score."""
        return self.stop_reason == StopReason.CONTEXT_OVERFLOW

    @property
    def right(self) -> bool | None:
        """Whether its main score (`main_metric`) is full, in every question that has one; None where none has."""
        scores = self.scores(main_metric([self]))
        return all(score >= 1 for score in scores) if scores else None

    def scores(self, metric: str) -> list[float]:
        """Those of its questions, or else of the episode (`metrics`, ``reward``) as one.

        None when failed, or when prompts did not fit.
        """
        return [score for _, _, score in self.placed(metric)]

    def placed(self, metric: str) -> list[tuple[int, Hashable, float]]:
        """`scores`, each with its place among the questions and with what is the same where the question comes again.

        That is its id, text and gold answers; a question without an id does not come again. The place of an episode's
        own score is -1.
        """
        if self.overflowed:
            return []
        found: list[tuple[int, Hashable, float]] = [
            (place, question.label or (self.task_id, place), question.metrics[metric])
            for place, question in enumerate(self.questions)
            if metric in question.metrics
        ]
        own = self.reward if metric == "reward" else self.metrics.get(metric)
        return found or ([] if own is None else [(-1, self.task_id, own)])

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
            return cls(questions=tuple(map(_read_question, values.pop("questions"))), **values)
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"not an episode record: {error}") from error


def _read_question(values: dict[str, Any]) -> QuestionRecord:
    return QuestionRecord(**{**values, "golds": tuple(values["golds"])})


def record_of(
    task: TaskDescription, episode: Episode, diagnosed: Sequence[Mapping[str, float]] | None = None
) -> EpisodeRecord:
    """The record of `episode`: its scores are those that its environment gave, nothing is scored again.

    Args:
        task: Its task, as the environment describes it.
        episode: As it ended.
        diagnosed: For each question, what else is known of the way to its answer (`fact_recall`).

    Raises:
        DataError: The score has another number of answers or question metrics than the task has questions.
    """
    questions: tuple[QuestionRecord, ...] = ()
    if not episode.failed:
        count = len(task.questions)
        parts = (episode.answers or (None,) * count, episode.question_metrics or ({},) * count)
        further = diagnosed or ({},) * count
        if {len(part) for part in (*parts, further)} - {count}:
            raise DataError(
                f"task {task.id!r} has {count} questions, its episode's score {len(parts[0])} answers and "
                f"{len(parts[1])} question_metrics, and {len(further)} were diagnosed: one of each for every question."
            )
        questions = tuple(
            QuestionRecord(
                item.id,
                item.text,
                answer,
                item.golds,
                item.category,
                {**metrics, **more},
                item.attributes,
            )
            for item, answer, metrics, more in zip(task.questions, *parts, further, strict=True)
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
        prompt_tokens=sum(step.prompt_tokens for step in episode.steps),
        completion_tokens=sum(step.completion_tokens for step in episode.steps),
        group=task.group,
    )


def main_metric(records: Iterable[EpisodeRecord]) -> str:
    """The score that stands for all: ``em``, or ``reward`` where an environment has no exact match.

    What failed or overflowed does not tell which of them there would be.
    """
    scored = [record for record in records if not record.failed and not record.overflowed]
    return "reward" if scored and not any(record.scores("em") for record in scored) else "em"


def metric_names(records: Sequence[EpisodeRecord]) -> list[str]:
    """The scores in [0, 1] that the records have, by name.

    Those of questions, or of episodes where questions have none; and ``reward`` where there is no exact match.
    """
    names = {
        name for record in records for question in record.questions for name in question.metrics
    }
    names = names or {name for record in records for name in record.metrics}
    if any(not record.failed for record in records):
        names |= {main_metric(records)}
    # An environment may count things too; an interval is that of a proportion.
    return [
        name
        for name in sorted(names)
        if all(0 <= score <= 1 for record in records for score in record.scores(name))
    ]


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
    def overflowed(self) -> int:
        """Episodes with a prompt that did not fit the policy's window. They count in no score either."""
        return sum(record.overflowed for record in self.records)

    @property
    def failed_fraction(self) -> float:
        """`failed` over all episodes; 0 without any."""
        return self.failed / len(self.records) if self.records else 0.0

    @property
    def em(self) -> float:
        """Exact match: the mean over all questions of the episodes that did not fail, and whose prompts fit; or NaN."""
        return self.mean("em")

    def mean(self, metric: str) -> float:
        """Any score, likewise."""
        scores = [score for record in self.records for score in record.scores(metric)]
        return sum(scores) / len(scores) if scores else math.nan

    def summary(self) -> dict[str, Any]:
        """`summarize` over all records, and under ``by_source`` for each source where there are several."""
        summary = summarize(self.records)
        sources = sorted({record.source for record in self.records})
        if len(sources) > 1:
            summary["by_source"] = {
                source or "unknown": summarize(
                    record for record in self.records if record.source == source
                )
                for source in sources
            }
        return summary


def summarize(records: Iterable[EpisodeRecord]) -> dict[str, Any]:
    """Scores with their intervals, and what the episodes did.

    Returns:
        episodes, failed: counts; failed episodes are in neither score nor mean.
        overflow: Episodes with a prompt that did not fit the policy's window: they are in no score.
        metric: The main score's name (`main_metric`).
        metrics: By name (`metric_names`), `atommem.envs.scoring.statistics.Estimate` as a dict (mean, low, high, n,
            clusters, effective_n); scores that nothing has are not there. MuSiQue-Full has `group_scores` too.
        means: `atommem.episode.means`: action rates per step, tokens, model calls (``steps``), retrievals,
            seconds and store size per episode, stop reasons.
        errors: How often each error message ended an episode.
    """
    items = list(records)
    errors = Counter(record.error or "unknown" for record in items if record.failed)
    rates = means(add_sums([episode_sums([]), *(record.sums for record in items)]))
    names = metric_names(items)
    for name in {*names} - {"reward"}:
        rates.pop(name, None)  # means over episodes; the scores below are means over questions
    scored = (
        (item.id, item.metrics)
        for record in items
        if not record.overflowed
        for item in record.questions
    )
    return {
        "episodes": len(items),
        "failed": sum(record.failed for record in items),
        "overflow": sum(record.overflowed for record in items),
        "metric": main_metric(items),
        "metrics": {**estimates(items, names), **group_scores(scored)},
        "means": rates,
        "errors": dict(errors),
    }


def estimates(
    records: Sequence[EpisodeRecord], metrics: Iterable[str]
) -> dict[str, dict[str, float]]:
    """Each score's mean over all questions with its interval, as a dict; scores that nothing has are not there."""
    found = {}
    for metric in metrics:
        placed = [(record, *item) for record in records for item in record.placed(metric)]
        if placed:
            scores, groups = [item[3] for item in placed], [unit_of(item[0]) for item in placed]
            found[metric] = asdict(clustered_estimate(scores, groups, [item[2] for item in placed]))
    return found


def unit_of(record: EpisodeRecord) -> str:
    """What its scores vary together with: its conversation, or else its task alone."""
    return f"group {record.group}" if record.group else f"task {record.task_id}"
