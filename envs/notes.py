"""Notes that a faultless reader takes, and the scripted policy that writes them as actions."""

from __future__ import annotations

from dataclasses import dataclass

from atommem.dialects import Dialect
from atommem.envs.task import Task
from atommem.episode import Observation
from atommem.errors import DataError, PolicyError
from atommem.memory.log import MemoryView
from atommem.policy.contract import Completion, Sampling
from atommem.tokens import Tokenizer


@dataclass(frozen=True)
class Note:
    """What a sentence of a text is worth: a ``create``, or an ``update`` or ``delete``.

    Attributes:
        sentence: As it stands in the text; the note is taken where it is read.
        replaces: Text of the entry that an update or delete addresses.
    """

    kind: str
    sentence: str
    text: str = ""
    replaces: str = ""


class NotesPolicy:
    """Read a task with its notes: write them where they belong, then answer.

    It looks for the task's ``query`` at the first step, so that its notes are shown from then on,
    and answers "unknown" unless all of them are shown when it is asked.
    """

    def __init__(
        self, dialect: Dialect, tokenizer: Tokenizer, eos_token_id: int | None = None
    ) -> None:
        self._tags, self._tokenizer = dialect.tags, tokenizer
        self._end = [] if eos_token_id is None else [eos_token_id]

    def start(self, task: Task) -> None:
        """Start on a task: one episode at a time.

        Raises:
            DataError: It has no notes.
        """
        if "notes" not in task.metadata:
            raise DataError(f"task {task.id!r} has no notes. Build it with `atommem data build`.")
        self._notes = [Note(**note) for note in task.metadata["notes"]]
        self._taken: list[str] = []
        self._query = task.metadata["query"]
        self._answers = [question.answers[0] for question in task.questions]

    async def complete_observation(
        self, observation: Observation, view: MemoryView, sampling: Sampling
    ) -> Completion:
        """Return the notes of a chunk, or the answer."""
        if observation.question is not None:
            shown = {item.text for item in view.retrieved}
            known = shown.issuperset(self._taken) and not self._notes
            answer = self._answers[observation.question] if known else "unknown"
            written = [self._element("answer", f"\\boxed{{{answer}}}")]
        else:
            chunk = "".join(observation.values("chunk"))
            now = [note for note in self._notes if note.sentence in chunk]
            self._notes = [note for note in self._notes if note not in now]
            written = [self._action(note, view) for note in now]
            if view.query is None:
                written.insert(0, self._element("read", self._query))
        text = " ".join(written)
        token_ids = self._tokenizer.encode(text, add_special_tokens=False) + self._end
        return Completion(token_ids, [0.0] * len(token_ids), text, "stop")

    def _action(self, note: Note, view: MemoryView) -> str:
        if note.replaces:
            self._taken.remove(note.replaces)
        if note.text:
            self._taken.append(note.text)
        if note.kind == "create":
            return self._element("create", note.text)
        handle = next(item.handle for item in view.retrieved if item.text == note.replaces)
        body = f"{handle}" if note.kind == "delete" else f"{handle} : {note.text}"
        return self._element(note.kind, body)

    def _element(self, kind: str, body: str) -> str:
        return f"<{self._tags[kind]}> {body} </{self._tags[kind]}>"

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        """Raise PolicyError: it reads no prompts."""
        raise PolicyError("a scripted reader acts on observations: run it through a Session.")

    async def close(self) -> None:
        """Do nothing."""
