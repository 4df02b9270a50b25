"""Notes that a faultless reader takes, and the scripted expert that writes them as actions."""

from __future__ import annotations

from dataclasses import dataclass

from atommem.dialects import Dialect
from atommem.envs.synthetic.expert import ScriptedExpert
from atommem.envs.task import Task
from atommem.episode import Observation
from atommem.errors import DataError
from atommem.memory.log import MemoryView


@dataclass(frozen=True)
class Note:
    """What a sentence of a text is worth: a ``create``, ``update`` or ``delete``.

    Attributes:
        sentence: As it stands in the text; the note is taken where it is read.
        replaces: Text of the entry that an update or delete addresses.
    """

    kind: str
    sentence: str
    text: str = ""
    replaces: str = ""


class NotesExpert(ScriptedExpert):
    """Read a task with its notes: write them where they belong, then answer.

    It looks for the task's ``query`` at the first step, so that its notes are shown from then on,
    and answers "unknown" unless all of them are shown when it is asked.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._tags = {**dialect.tags}

    def start(self, task: Task) -> None:
        """Start on a task, one at a time; raise DataError if it has no notes."""
        if "notes" not in task.metadata:
            raise DataError(f"task {task.id!r} has no notes. Build it with `atommem data build`.")
        self._notes = [Note(**note) for note in task.metadata["notes"]]
        self._taken: list[str] = []
        self._query = task.metadata["query"]
        self._answers = [question.answers[0] for question in task.questions]

    def act(self, observation: Observation, view: MemoryView, draw: int | None = None) -> str:
        if observation.question is not None:
            shown = {item.text for item in view.retrieved}
            known = shown.issuperset(self._taken) and not self._notes
            answer = self._answers[observation.question] if known else "unknown"
            return self.element("answer", f"\\boxed{{{answer}}}")
        chunk = "".join(observation.values("chunk"))
        now = [note for note in self._notes if note.sentence in chunk]
        self._notes = [note for note in self._notes if note not in now]
        written = [self._action(note, view) for note in now]
        if view.query is None:
            written.insert(0, self.element("read", self._query))
        return " ".join(written)

    def _action(self, note: Note, view: MemoryView) -> str:
        if note.replaces:
            self._taken.remove(note.replaces)
        if note.text:
            self._taken.append(note.text)
        if note.kind == "create":
            return self.element("create", note.text)
        handle = next(item.handle for item in view.retrieved if item.text == note.replaces)
        return self.element(note.kind, f"{handle} : {note.text}" if note.text else f"{handle}")
