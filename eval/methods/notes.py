"""Shared by baselines that keep notes: a store with recorded operations, and replies in JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from atommem.actions import ActionSpec, Body, Problem, ProblemReason
from atommem.embedding.embedder import Embedder, Vectors
from atommem.episode import Observation, Piece, Step
from atommem.eval.methods.baseline import Recorder
from atommem.memory.log import MemoryView, Operation, Retrieved
from atommem.memory.store import VectorStore
from atommem.text_safety import clean

Found = Sequence[tuple[int, float]]
"""Ids of entries and their scores, best first."""

_REPLY = ActionSpec("reply", Body.TEXT)


class Notebook:
    """Entries with their vectors; the recorder of an episode logs every change.

    Attributes:
        texts: By id.
        index: Their vectors.
    """

    def __init__(self, recorder: Recorder, embedder: Embedder) -> None:
        self.recorder = recorder
        self.embedder = embedder
        self.texts: dict[int, str] = {}
        self.index = VectorStore(embedder.dim)

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """Embed entries, or texts that are compared with entries; shape (n, dim)."""
        return await self.embedder.embed(texts, "entry")

    async def hold(self, texts: Sequence[str]) -> None:
        """Store texts from the start, numbered from 1, without an action (RAG)."""
        self.texts = dict(enumerate(texts, start=1))
        if texts:
            self.index.add(list(self.texts), await self.embed(texts))

    def create(self, step: Step, text: str, vector: Vectors) -> int:
        """Create an entry as a result of `step`; returns its id."""
        entry_id = self.recorder.contents.newest_id + 1
        self.index.update({entry_id: vector})
        self.texts[entry_id] = text
        self.recorder.note(step, Operation(step.index, "create", entry_id=entry_id, after=text))
        return entry_id

    def update(self, step: Step, entry_id: int, text: str, vector: Vectors | None = None) -> None:
        """Update an entry as a result of `step`; without a vector it keeps the old one."""
        if vector is not None:
            self.index.update({entry_id: vector})
        before, self.texts[entry_id] = self.texts[entry_id], text
        self.recorder.note(
            step, Operation(step.index, "update", entry_id=entry_id, before=before, after=text)
        )

    def delete(self, step: Step, entry_id: int) -> None:
        """Delete an entry as a result of `step`."""
        self.index.update({entry_id: None})
        before = self.texts.pop(entry_id)
        self.recorder.note(step, Operation(step.index, "delete", entry_id=entry_id, before=before))

    def view(
        self, query: str, found: Found, number: Callable[[int], int] | None = None
    ) -> MemoryView:
        """Show entries, numbered from 1 or by a function of their id."""
        retrieved = tuple(
            Retrieved(number(entry_id) if number else rank, entry_id, self.texts[entry_id], score)
            for rank, (entry_id, score) in enumerate(found, start=1)
        )
        return MemoryView(query=query, retrieved=retrieved, size=len(self.texts))

    async def answer(self, find: Callable[[Vectors], Found]) -> None:
        """Ask all questions together, with the entries that `find` returns for their vectors."""
        for asked in self.recorder.together:
            texts = [self.recorder.task.questions[index].text for index in asked]
            found: dict[int, float] = {}
            for vector in await self.embedder.embed(texts, "query"):
                for entry_id, score in find(vector):
                    found.setdefault(entry_id, score)
            step = await self.recorder.answer(
                asked, view=self.view("\n".join(texts), list(found.items()))
            )
            for text in texts:
                self.recorder.note_query(step, text)


def reading(label: str, *pieces: Piece) -> Observation:
    """Make an observation of the stream; the last of `pieces` is the instruction."""
    return Observation("reading", stream=pieces[:-1], closing=pieces[-1:], label=label)


def read_object(record: Recorder, step: Step) -> dict[str, Any]:
    """Return the JSON object in a reply; without one, {} and a problem of the step."""
    parsed = record.parse(step, _REPLY)
    text = parsed[0].text if parsed else ""
    try:
        value = json.loads(text[text.find("{") : text.rfind("}") + 1], strict=False)
        if isinstance(value, dict):
            return value
    except (ValueError, RecursionError):
        pass
    step.problems += (Problem(ProblemReason.NOT_JSON, "json", 0, len(step.text)),)
    return {}


def read_objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a list, or [] for other values."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def clean_text(value: Any) -> str:
    """Return a cleaned string, or "" for other values."""
    return clean(value) if isinstance(value, str) else ""


def clean_texts(value: Any) -> list[str]:
    """Return the non-empty strings of a list, or [] for other values."""
    return [text for text in map(clean_text, value if isinstance(value, list) else []) if text]
