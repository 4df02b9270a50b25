"""What the baselines that keep notes share: a store whose operations are recorded, and replies in JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from atommem.actions import Problem, ProblemReason
from atommem.embedding.embedder import Embedder, Vectors
from atommem.episode import Step
from atommem.eval.methods.baseline import Recorder
from atommem.memory.entries import Retrieved
from atommem.memory.index import VectorIndex
from atommem.memory.operations import Operation


class Notebook:
    """Entries with their vectors, changed through the recorder of an episode so that traces tell.

    Attributes:
        entries: By id; their texts are what an answer is given from.
        index: Their vectors.
    """

    def __init__(self, recorder: Recorder, embedder: Embedder) -> None:
        self.recorder = recorder
        self.embedder = embedder
        self.entries = recorder.contents.entries
        self.index = VectorIndex(embedder.dim)

    def vector(self, entry_id: int) -> Vectors:
        """The vector of an entry, shape (dim,)."""
        return self.index.vector(entry_id)

    async def create(self, step: Step, texts: Sequence[str]) -> list[int]:
        """Add entries, as what `step` led to; their ids."""
        if not texts:
            return []
        first = self.recorder.contents.newest_id + 1
        ids = list(range(first, first + len(texts)))
        self.index.add(ids, await self.embedder.embed(texts, "entry"))
        for entry_id, text in zip(ids, texts, strict=True):
            self.recorder.note(step, Operation(step.index, "create", entry_id=entry_id, after=text))
        return ids

    async def update(self, step: Step, texts: Mapping[int, str]) -> None:
        """Replace the texts of entries (by id), as what `step` led to."""
        if not texts:
            return
        vectors = await self.embedder.embed(list(texts.values()), "entry")
        for (entry_id, text), vector in zip(texts.items(), vectors, strict=True):
            self.index.put(entry_id, vector)
            before = self.entries[entry_id].text
            self.recorder.note(step, Operation(step.index, "update", entry_id=entry_id, before=before, after=text))

    def retrieved(self, found: Sequence[tuple[int, float]]) -> tuple[Retrieved, ...]:
        """Entries as they are shown: ids and scores of them, best first."""
        return tuple(
            Retrieved(handle, entry_id, self.entries[entry_id].text, score)
            for handle, (entry_id, score) in enumerate(found, start=1)
        )

    async def answer(self, index: int, found: Sequence[tuple[int, float]]) -> None:
        """Ask question `index` with the entries found for it: ids and scores, best first."""
        await self.recorder.answer_from_memory(index, self.retrieved(found))


def read_objects(step: Step) -> list[dict[str, Any]]:
    """The JSON objects in a reply, whether or not in a list; none is a problem of the step.

    Of a list that was cut off at the longest completion, the objects before the cut count.
    """
    decoder = json.JSONDecoder()
    found: list[dict[str, Any]] = []
    position = step.text.find("{")
    while position >= 0:
        try:
            value, position = decoder.raw_decode(step.text, position)
            found.append(value)
        except (ValueError, RecursionError):
            position += 1
        position = step.text.find("{", position)
    if not found:
        step.problems += (Problem(ProblemReason.NOT_JSON, "json", 0, len(step.text)),)
    return found


def clean_text(value: Any) -> str:
    """A string from a reply, stripped; "" for anything else. JSON can spell half a character, which no model reads."""
    return value.encode("utf-8", "replace").decode("utf-8").strip() if isinstance(value, str) else ""


def clean_texts(value: Any) -> list[str]:
    """The strings in a list from a reply, stripped, without blank ones; [] for anything else."""
    return [text for text in map(clean_text, value if isinstance(value, list) else []) if text]
