"""Findings in traces: where answers were lost, retrieval precision, store sizes.

A text holds a gold answer if its normalised words (SQuAD's normalisation) contain the answer's in
sequence. Answers that no text can hold (yes, no) are left out, and counted.

Where an answer was lost follows from supporting-fact recall, if the tasks mark gold documents
(``fact_entered``, ``fact_kept``, ``fact_retrieved``), or else from these words. One comparison
never mixes the two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from itertools import accumulate
from typing import Any

from atommem.envs.scoring.metrics import normalize
from atommem.envs.scoring.records import EpisodeRecord, QuestionRecord
from atommem.episode import Episode
from atommem.memory.log import POLICY, Contents, Operation, Outcome

FACTS = ("fact_entered", "fact_kept", "fact_retrieved")
_NOT_IN_TEXT = frozenset({"", "yes", "no", "noanswer"})


class Stage(StrEnum):
    """How a question ended: right, or the first stage at which its answer was lost."""

    RIGHT = "right"
    RIGHT_OTHERWISE = "right_otherwise"
    MISREAD = "misread"
    NOT_RETRIEVED = "not_retrieved"
    FORGOTTEN = "forgotten"
    NEVER_ENTERED = "never_entered"


STAGES = {
    Stage.RIGHT: "right",
    Stage.RIGHT_OTHERWISE: "right otherwise",  # from the chunk, by knowledge or by luck
    Stage.MISREAD: "shown, answered wrong",
    Stage.NOT_RETRIEVED: "kept, not shown",
    Stage.FORGOTTEN: "entered, then lost",  # overwritten, deleted or evicted
    Stage.NEVER_ENTERED: "never entered",
}
"""Headings."""


@dataclass(frozen=True, slots=True)
class AnswerPath:
    """A gold answer's path through memory.

    Attributes:
        entered: It was written to the store or the scratchpad.
        kept: Memory held it when the question was answered (at the last step otherwise).
        shown: A retrieved entry or the scratchpad held it at that step.
    """

    entered: bool = False
    kept: bool = False
    shown: bool = False


@dataclass
class Inspection:
    """Sums over the episodes of a row and column.

    Attributes:
        by: ``facts`` or ``words``.
        stages: Questions by stage; None for those that cannot be located.
        retrieved, relevant: Entries shown at answering steps, and those with a gold answer.
        operations, writes: Effective actions of the policy, and operations that wrote a text.
        sizes, steps: By step, the sum of store sizes and the number of episodes that reached it.
        ended: By number of steps, the sum of final store sizes.
        episodes: Episodes inspected.
        missing: Episodes without a trace.
    """

    by: str = "facts"
    stages: Counter[Stage | None] = field(default_factory=Counter)
    retrieved: int = 0
    relevant: int = 0
    operations: int = 0
    writes: int = 0
    sizes: Counter[int] = field(default_factory=Counter)
    steps: Counter[int] = field(default_factory=Counter)
    ended: Counter[int] = field(default_factory=Counter)
    episodes: int = 0
    missing: int = 0

    def add(self, record: EpisodeRecord, episode: Episode | None) -> None:
        """Count an episode with its trace, or without one."""
        paths: Sequence[AnswerPath | None] = [None] * len(record.questions)
        if not record.failed:
            if episode is None:
                self.missing += 1
            else:
                self._add_trace(episode, record)
                paths = answer_paths(episode, record)
        if not record.overflowed:
            questions = zip(record.questions, paths, strict=True)
            self.stages.update(self.stage(question, path) for question, path in questions)

    def stage(self, question: QuestionRecord, path: AnswerPath | None) -> Stage | None:
        """Return a question's stage; None if its answer cannot be located."""
        if self.by == "facts":
            facts = [question.metrics.get(name) for name in FACTS]
        else:
            facts = [path.entered, path.kept, path.shown] if path is not None else [None]
        if question.right is None or facts[0] is None:
            return None
        entered, kept, shown = facts
        if question.right:
            return Stage.RIGHT if shown else Stage.RIGHT_OTHERWISE
        if shown:
            return Stage.MISREAD
        if kept:
            return Stage.NOT_RETRIEVED
        return Stage.FORGOTTEN if entered else Stage.NEVER_ENTERED

    def lost(self) -> dict[str, Any]:
        """Return the number of questions at each stage."""
        counts = {str(stage): self.stages[stage] for stage in Stage}
        if self.retrieved and not self.writes:  # RAG: its memory is the documents themselves
            counts[Stage.NOT_RETRIEVED] += counts[Stage.NEVER_ENTERED]
            counts[Stage.NEVER_ENTERED] = 0
        counted = sum(counts.values())
        return {"by": self.by, "questions": self.stages.total(), "counted": counted, **counts}

    def to_json(self) -> dict[str, Any]:
        """Return precision (None without retrieval) and the mean store size by step.

        An episode that has ended keeps its last size in the mean.
        """
        steps = range(len(self.steps))
        after = accumulate(self.ended[step] for step in steps)
        sizes = [
            (self.sizes[step] + ended) / self.episodes
            for step, ended in zip(steps, after, strict=True)
        ]
        return {
            "retrieval_precision": self.relevant / self.retrieved if self.retrieved else None,
            "store_size_by_step": sizes,
            "traces_missing": self.missing,
        }

    def _add_trace(self, episode: Episode, record: EpisodeRecord) -> None:
        self.episodes += 1
        if episode.steps:
            self.ended[len(episode.steps)] += episode.steps[-1].store_size
        for step in episode.steps:
            self.sizes[step.index] += step.store_size
            self.steps[step.index] += 1
            self.writes += sum(map(_writes, step.operations))
            self.operations += sum(
                item.outcome is Outcome.APPLIED and item.actor == POLICY for item in step.operations
            )
            asked = record.questions[step.observation.asked.start : step.observation.asked.stop]
            if golds := [gold for question in asked for gold in _golds(question)]:
                self.retrieved += len(step.view.retrieved)
                self.relevant += sum(holds([item.text], golds) for item in step.view.retrieved)


def answer_paths(episode: Episode, record: EpisodeRecord) -> list[AnswerPath | None]:
    """Return the path of each question's answer; None if no text can hold it."""
    golds = [_golds(question) for question in record.questions]
    entered = [False] * len(golds)
    paths: list[AnswerPath | None] = [AnswerPath() if found else None for found in golds]
    # A question is decided at its last step, or at the episode's last step if it had none.
    last = dict.fromkeys(range(len(golds)), len(episode.steps) - 1)
    last |= {
        index: place for place, step in enumerate(episode.steps) for index in step.observation.asked
    }
    memory = Contents()
    for place, step in enumerate(episode.steps):
        for index, found in enumerate(golds):
            if found and last[index] == place:
                held = [*(entry.text for entry in memory.entries.values()), memory.scratchpad]
                shown = [*(item.text for item in step.view.retrieved), step.view.scratchpad]
                paths[index] = AnswerPath(entered[index], holds(held, found), holds(shown, found))
        for operation in step.operations:
            memory.apply(operation)
            if _writes(operation):
                texts = [operation.after or ""]
                entered = [a or holds(texts, b) for a, b in zip(entered, golds, strict=True)]
    return paths


def holds(texts: Iterable[str], normalized: Sequence[str]) -> bool:
    """Return whether a text contains one of the normalised answers as whole words."""
    return bool(normalized) and any(
        f" {answer} " in _padded(text) for text in texts for answer in normalized
    )


@lru_cache(maxsize=4096)
def _padded(text: str) -> str:
    return f" {normalize(text)} "


def _golds(question: QuestionRecord) -> list[str]:
    return [gold for gold in map(normalize, question.golds) if gold not in _NOT_IN_TEXT]


def _writes(operation: Operation) -> bool:
    kinds = ("create", "update", "scratchpad")
    return operation.outcome is Outcome.APPLIED and operation.kind in kinds
