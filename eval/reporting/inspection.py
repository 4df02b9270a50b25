"""Findings in traces: where answers were lost, and retrieval precision.

A text holds a gold answer if its normalised words (SQuAD's normalisation) contain the answer's in
sequence. Answers that no text can hold (yes, no) are left out.

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
from typing import Any

from tqdm import tqdm

from atommem.envs.scoring.metrics import normalize
from atommem.envs.scoring.records import EpisodeRecord, QuestionRecord
from atommem.episode import Episode
from atommem.eval.reporting.evaluations import Evaluation
from atommem.eval.reporting.results import FACTS, group_evaluations
from atommem.memory.log import POLICY, Contents, Operation, Outcome
from atommem.trace import read_trace

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
        stages: Questions by stage.
        retrieved, relevant: Entries shown at answering steps, and those with a gold answer.
        operations, writes: Effective actions of the policy, and operations that wrote a text.
    """

    by: str = "facts"
    stages: Counter[Stage] = field(default_factory=Counter)
    retrieved: int = 0
    relevant: int = 0
    operations: int = 0
    writes: int = 0

    def add(self, record: EpisodeRecord, episode: Episode | None) -> None:
        """Count an episode with its trace, or without one."""
        paths: Sequence[AnswerPath | None] = [None] * len(record.questions)
        if episode is not None:
            self._add_steps(episode, record)
            paths = answer_paths(episode, record)
        if not record.overflowed:
            questions = zip(record.questions, paths, strict=True)
            stages = (self.stage(question, path) for question, path in questions)
            self.stages.update(stage for stage in stages if stage is not None)

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

    def to_json(self) -> dict[str, Any]:
        """Return questions by stage, and retrieval precision (None without retrieval)."""
        counts = {str(stage): self.stages[stage] for stage in Stage}
        if self.retrieved and not self.writes:  # RAG: its memory is the documents themselves
            counts[Stage.NOT_RETRIEVED] += counts[Stage.NEVER_ENTERED]
            counts[Stage.NEVER_ENTERED] = 0
        precision = self.relevant / self.retrieved if self.retrieved else None
        lost = {"by": self.by, "counted": sum(counts.values()), **counts}
        return {"lost": lost, "retrieval_precision": precision}

    def _add_steps(self, episode: Episode, record: EpisodeRecord) -> None:
        for step in episode.steps:
            self.writes += sum(map(_writes, step.operations))
            self.operations += sum(
                item.outcome is Outcome.APPLIED and item.actor == POLICY for item in step.operations
            )
            asked = record.questions[step.observation.asked.start : step.observation.asked.stop]
            if golds := [gold for question in asked for gold in _golds(question)]:
                self.retrieved += len(step.view.retrieved)
                self.relevant += sum(holds([item.text], golds) for item in step.view.retrieved)


def inspect_traces(evaluations: Sequence[Evaluation]) -> dict[tuple[str, str], dict[str, Any]]:
    """Read every trace once, and return its findings by row and column."""
    by_words = {  # one method for a whole column, whose rows are compared
        item.column
        for item in evaluations
        if (questions := [each for record in item.records for each in record.questions])
        and not any(FACTS[0] in each.metrics for each in questions)
    }
    total = sum(len(item.records) for item in evaluations)
    found = {}
    with tqdm(total=total, desc="reading traces", unit="episode", disable=None) as bar:
        for (row, column), group in group_evaluations(evaluations).items():
            inspection = Inspection("words" if column in by_words else "facts")
            for item in group:
                for record in item.records:
                    path = item.trace(record)
                    read = path.is_file() and not record.failed
                    inspection.add(record, read_trace(path).episode if read else None)
                    bar.update()
            found[row, column] = inspection.to_json()
            if not inspection.operations and not any("memory" in item.manifest for item in group):
                found[row, column]["lost"] = None  # without a memory nothing is lost in it
    return found


def answer_paths(episode: Episode, record: EpisodeRecord) -> list[AnswerPath | None]:
    """Return the path of each question's answer; None if no text can hold it."""
    golds = [_golds(question) for question in record.questions]
    entered = [False] * len(golds)
    paths: list[AnswerPath | None] = [AnswerPath() if found else None for found in golds]
    # A question is decided at its last step, or at the episode's last step if it had none.
    last = dict.fromkeys(range(len(golds)), len(episode.steps) - 1)
    for place, step in enumerate(episode.steps):
        last |= dict.fromkeys(step.observation.asked, place)
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
    padded = [_padded(text) for text in texts]
    return any(f" {answer} " in text for text in padded for answer in normalized)


@lru_cache(maxsize=4096)
def _padded(text: str) -> str:
    return f" {normalize(text)} "


def _golds(question: QuestionRecord) -> list[str]:
    return [gold for gold in map(normalize, question.golds) if gold not in _NOT_IN_TEXT]


def _writes(operation: Operation) -> bool:
    kinds = ("create", "update", "scratchpad")
    return operation.outcome is Outcome.APPLIED and operation.kind in kinds
