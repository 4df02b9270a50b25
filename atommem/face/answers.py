"""What reading and asking give back."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from atommem.episode import Step
from atommem.memory.log import Entry


@dataclass(frozen=True)
class Reading:
    """A text that was read, or that is being read.

    Attributes:
        name: What the user calls it; stands with the entries' source.
        chunks: How many it has.
        sha256: Of its chunks as they are shown.
        steps: The numbers of the turns at which they were read, in order: fewer than `chunks` where it was interrupted.
    """

    name: str
    chunks: int
    sha256: str
    steps: tuple[int, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether it was read to its end."""
        return len(self.steps) == self.chunks


@dataclass(frozen=True)
class Answer:
    """What was answered to a question, and from what.

    Attributes:
        question: As asked.
        text: The answer; None where the policy gave none.
        entries: What was shown of the memory at the step that answered, best match first; each knows its `source`.
        scratchpad: As it was shown there.
        steps: All steps of answering: prompts' numbers of tokens, completions, actions, operations.
    """

    question: str
    text: str | None
    entries: tuple[Entry, ...]
    scratchpad: str
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return self.text or ""

    def to_json(self) -> dict[str, Any]:
        """As JSON values, without the steps but for their numbers."""
        return {
            "question": self.question,
            "answer": self.text,
            "entries": [asdict(entry) for entry in self.entries],
            "scratchpad": self.scratchpad,
            "steps": [step.index for step in self.steps],
        }
