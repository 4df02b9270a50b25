"""What a trace says about the way of an answer through memory, how precise retrieval was, and how the store grew.

A gold answer counts as held by a text if its normalised words (SQuAD's normalisation) follow one another in the text's.
Answers that no text can be expected to hold (yes, no) are not located: their questions are left out here, and counted.

Where an answer was lost is told in two ways, never mixed in one comparison: by supporting-fact recall, where the tasks
mark their gold documents (the scores ``fact_entered``, ``fact_kept`` and ``fact_retrieved``), or else by these words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from itertools import accumulate
from typing import Any

from atommem.envs.scoring.metrics import normalize
from atommem.envs.scoring.records import EpisodeRecord, QuestionRecord
from atommem.episode import Episode, Step
from atommem.eval.reporting.scores import FACTS
from atommem.memory.log import POLICY, Contents, Operation, Outcome

_NOWHERE = frozenset({"", "yes", "no", "noanswer"})


class Fate(StrEnum):
    """How a question ended. Every question that is counted has one of these."""

    RIGHT = "right"
    RIGHT_OTHERWISE = "right_otherwise"
    MISREAD = "misread"
    NOT_RETRIEVED = "not_retrieved"
    FORGOTTEN = "forgotten"
    NEVER_ENTERED = "never_entered"


FATES = {
    Fate.RIGHT: "right",
    Fate.RIGHT_OTHERWISE: "right otherwise",  # from the chunk, by knowledge, reworded, or by luck
    Fate.MISREAD: "shown, answered wrong",
    Fate.NOT_RETRIEVED: "kept, not shown",
    Fate.FORGOTTEN: "entered, then lost",  # overwritten, deleted or evicted
    Fate.NEVER_ENTERED: "never entered",
}
"""Their headings. What is shown, kept or entered is what it takes to be right."""


@dataclass(frozen=True, slots=True)
class AnswerSource:
    """A text in front of the policy, when it answered, that holds the answer it gave.

    Attributes:
        kind: ``entry``, ``scratchpad``, or the piece of the stream (``chunk``).
        entry_id, handle: Of an entry.
        written: The step whose completion wrote the text as it was shown; None for what the environment showed.
    """

    kind: str
    entry_id: int | None = None
    handle: int | None = None
    written: int | None = None


@dataclass(frozen=True, slots=True)
class AnswerTrail:
    """The way of the gold answers of one question through memory, by their words.

    Attributes:
        located: Whether a text can hold a gold answer; if not, the next three are False.
        entered: A gold answer was written to the store or the scratchpad.
        kept: Memory still held one when the question was answered (at the last step otherwise).
        shown: One of the retrieved entries, or the scratchpad, held one at that step.
        sources: What in front of the policy held the answer that it gave.
        step: Index of the step at which it was answered; None if it was not.
    """

    located: bool
    entered: bool
    kept: bool
    shown: bool
    sources: tuple[AnswerSource, ...]
    step: int | None


@dataclass
class Inspection:
    """Sums over the episodes of a row and column.

    Attributes:
        by: ``facts`` or ``words``: how it is told where an answer was lost.
        fates: How many questions had which; None for those without (no sentence, or no text, can hold the answer).
        retrieved, relevant: Entries shown at answering steps, and those of them that hold a gold answer of a
            question asked there (located ones only).
        operations, writes: Memory actions of the policy that had an effect, and operations that wrote a text.
        sizes, steps: By step index, the sum of store sizes and the number of episodes that took the step.
        ended: By number of steps, the sum of store sizes of the episodes that ended with it.
        episodes: Episodes looked at: those that did not fail and have a trace.
        missing: Episodes that did not fail but whose trace is not there.
    """

    by: str = "facts"
    fates: Counter[Fate | None] = field(default_factory=Counter)
    retrieved: int = 0
    relevant: int = 0
    operations: int = 0
    writes: int = 0
    sizes: Counter[int] = field(default_factory=Counter)
    steps: Counter[int] = field(default_factory=Counter)
    ended: Counter[int] = field(default_factory=Counter)
    episodes: int = 0
    missing: int = 0

    def to_json(self) -> dict[str, Any]:
        """Its numbers as in ``results.json``, but for `lost`. Precision is None where nothing was retrieved.

        The mean store size is that over all episodes: one that has ended keeps its size, as else it would be of the
        long ones.
        """
        longest = range(len(self.steps))
        after = accumulate(self.ended[step] for step in longest)
        means = [
            (self.sizes[step] + kept) / self.episodes
            for step, kept in zip(longest, after, strict=True)
        ]
        return {
            "retrieval_precision": self.relevant / self.retrieved if self.retrieved else None,
            "store_size_by_step": means,
            "episodes_by_step": [self.steps[step] for step in longest],
            "traces_missing": self.missing,
        }

    @property
    def only_retrieves(self) -> bool:
        """Whether its memory is the documents themselves (RAG): entries were shown that nothing wrote."""
        return self.retrieved > 0 and self.writes == 0

    def lost(self) -> dict[str, Any]:
        """Where answers were lost, as in ``results.json``."""
        counts = {str(fate): self.fates[fate] for fate in Fate}
        if self.only_retrieves:  # nothing has to enter a memory that is the documents themselves
            counts[Fate.NOT_RETRIEVED] += counts[Fate.NEVER_ENTERED]
            counts[Fate.NEVER_ENTERED] = 0
        return {
            "by": self.by,
            "questions": self.fates.total(),
            "counted": sum(counts.values()),
            **counts,
        }

    def fate(self, question: QuestionRecord, trail: AnswerTrail | None) -> Fate | None:
        """The fate of a question; by words it takes the episode's trace."""
        if self.by == "facts":
            facts = [question.metrics.get(name) for name in FACTS]
        else:
            facts = (
                [trail.entered, trail.kept, trail.shown]
                if trail is not None and trail.located
                else [None]
            )
        if question.right is None or facts[0] is None:
            return None
        entered, kept, shown = facts
        if question.right:
            return Fate.RIGHT if shown else Fate.RIGHT_OTHERWISE
        if shown:
            return Fate.MISREAD
        if kept:
            return Fate.NOT_RETRIEVED
        return Fate.FORGOTTEN if entered else Fate.NEVER_ENTERED

    def add(self, episode: Episode, record: EpisodeRecord) -> None:
        """Count one episode that did not fail."""
        self.episodes += 1
        if episode.steps:
            self.ended[len(episode.steps)] += episode.steps[-1].store_size
        for step in episode.steps:
            self.sizes[step.index] += step.store_size
            self.steps[step.index] += 1
            self.operations += sum(
                item.outcome is Outcome.APPLIED and item.actor == POLICY for item in step.operations
            )
            self.writes += sum(map(_writes, step.operations))
            asked = record.questions[step.observation.asked.start : step.observation.asked.stop]
            if golds := [gold for question in asked for gold in _golds(question)]:
                self.retrieved += len(step.view.retrieved)
                self.relevant += sum(holds([item.text], golds) for item in step.view.retrieved)


def only_retrieves(episode: Episode) -> bool:
    """Whether its memory is the documents themselves (RAG): entries were shown, and nothing wrote one."""
    operations = (operation for step in episode.steps for operation in step.operations)
    return any(step.view.retrieved for step in episode.steps) and not any(map(_writes, operations))


def _writes(operation: Operation) -> bool:
    return operation.outcome is Outcome.APPLIED and operation.kind in (
        "create",
        "update",
        "scratchpad",
    )


def answer_trails(episode: Episode, record: EpisodeRecord) -> tuple[AnswerTrail, ...]:
    """One `AnswerTrail` for each question of an episode that did not fail."""
    wanted = [_golds(question) for question in record.questions]
    entered = [False] * len(wanted)
    # Without steps there is no way to tell of.
    trails = [AnswerTrail(bool(golds), False, False, False, (), None) for golds in wanted]
    # A question is decided at its last step, or at the episode's if it had none.
    last = dict.fromkeys(range(len(wanted)), len(episode.steps) - 1)
    last |= {
        index: place for place, step in enumerate(episode.steps) for index in step.observation.asked
    }
    # Where memory stands just before each step, and which step wrote what (None: the scratchpad).
    memory = Contents()
    written: dict[int | None, int] = {}
    for place, step in enumerate(episode.steps):
        view = step.view
        answered = any(action.kind == "answer" for action in step.actions)
        for index, golds in enumerate(wanted):
            if last[index] == place:
                trails[index] = AnswerTrail(
                    located=bool(golds),
                    entered=entered[index],
                    kept=holds(
                        [*(entry.text for entry in memory.entries.values()), memory.scratchpad],
                        golds,
                    ),
                    shown=holds([*(item.text for item in view.retrieved), view.scratchpad], golds),
                    sources=tuple(_sources(record.questions[index].answer, step, written))
                    if answered
                    else (),
                    step=step.index if answered else None,
                )
        for operation in step.operations:
            memory.apply(operation)
            if _writes(operation):
                written[operation.entry_id] = step.index
                entered = [
                    had or holds([operation.after or ""], golds)
                    for had, golds in zip(entered, wanted, strict=True)
                ]
    return tuple(trails)


def _sources(
    answer: str | None, step: Step, written: Mapping[int | None, int]
) -> Iterator[AnswerSource]:
    """What in front of the policy held the answer that it gave."""
    given = normalize(answer or "")
    if given in _NOWHERE:
        return
    for item in step.view.retrieved:
        if holds([item.text], [given]):
            yield AnswerSource("entry", item.entry_id, item.handle, written.get(item.entry_id))
    if holds([step.view.scratchpad], [given]):
        yield AnswerSource("scratchpad", written=written.get(None))
    for piece in step.observation.stream:
        if holds([value for _, value in piece.walk() if isinstance(value, str)], [given]):
            yield AnswerSource(piece.name)


def holds(texts: Iterable[str], normalized: Sequence[str]) -> bool:
    """Whether one of some normalised answers occurs in one of the texts as whole words."""
    return bool(normalized) and any(
        f" {answer} " in _padded(text) for text in texts for answer in normalized
    )


@lru_cache(maxsize=4096)
def _padded(text: str) -> str:
    """Normalised, between spaces; an entry is looked at once for each question, and there may be thousands."""
    return f" {normalize(text)} "


def _golds(question: QuestionRecord) -> list[str]:
    """The gold answers that a text can hold, normalised."""
    return [gold for gold in map(normalize, question.golds) if gold not in _NOWHERE]
