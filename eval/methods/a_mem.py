"""A-Mem (Xu et al. 2025, arXiv 2502.12110): notes with keywords, context and tags, which link and change one another.

Section 3: a note is written with its attributes (3.1); the model links it to some of its nearest notes (3.2) and
rewrites the context and tags of those neighbours (3.3); a question gets the nearest notes and what is linked to them
(3.4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atommem.dialects.templates import fill
from atommem.envs.task import Task
from atommem.eval.methods.baseline import NOTHING_REMEMBERED, REMEMBERED, Baseline, Recorder
from atommem.eval.methods.notes import Notebook, clean_text, clean_texts, read_objects
from atommem.memory.entries import MemoryView
from atommem.observation import Observation

NEIGHBOURS = 5
"""How many of the nearest notes a new one is compared with (the default of the authors' code)."""

WRITE_SYSTEM = "You keep notes about a long text that you read part by part."
WRITE = """Part of the text:
{chunk}

Write notes on what this part says, each of which can be understood without the text, with keywords (from the most to \
the least important), one sentence of context, and tags for its topics. Reply with a JSON list and nothing else:
[{"content": "...", "keywords": ["..."], "context": "...", "tags": ["..."]}, ...]"""
EVOLVE = """A new note:
{note}

The notes that are nearest to it:
{neighbours}

Decide which of these the new note should be linked to, which tags the new note should have, and, where the new note \
changes how a neighbour is understood, what that neighbour's context and tags should be. Reply with a JSON object and \
nothing else:
{"links": [1], "tags": ["..."], "neighbours": [{"number": 1, "context": "...", "tags": ["..."]}]}"""


@dataclass
class Note:
    """One note; `links` are the entry ids of others."""

    content: str
    keywords: list[str] = field(default_factory=list)
    context: str = ""
    tags: list[str] = field(default_factory=list)
    links: list[int] = field(default_factory=list)

    def text(self) -> str:
        """What is embedded and shown: the content with its attributes (equation 3)."""
        parts = [self.content]
        if self.context:
            parts.append(f"context: {self.context}")
        if self.keywords:
            parts.append(f"keywords: {', '.join(self.keywords)}")
        if self.tags:
            parts.append(f"tags: {', '.join(self.tags)}")
        return "; ".join(parts)


class AMem(Baseline):
    """Writes notes on every chunk, lets them evolve, and answers from the nearest ones and their links."""

    name = "a_mem"
    prompts = (*Baseline.prompts, REMEMBERED, NOTHING_REMEMBERED, WRITE_SYSTEM, WRITE, EVOLVE)

    async def play(self, record: Recorder, task: Task) -> None:
        """Read chunk by chunk, then answer."""
        book = Notebook(record, self.setup.embedder)
        notes: dict[int, Note] = {}
        chunks = await self.chunks(task)
        async for step in record.read(chunks, WRITE_SYSTEM, WRITE):
            written = parse_notes(read_objects(step))
            for entry_id, note in zip(await book.create(step, [note.text() for note in written]), written, strict=True):
                await self._evolve(record, book, notes, entry_id, note, step.observation)
                notes[entry_id] = note
        for index, question in enumerate(task.questions):
            (query,) = await self.setup.embedder.embed([question.text], "query")
            found = dict(await book.index.find(query, self.setup.memory.retrieve_k))
            for entry_id in list(found):
                for linked in notes[entry_id].links:
                    found.setdefault(linked, float(book.vector(linked) @ query))
            await book.answer(index, list(found.items()))

    async def _evolve(
        self,
        record: Recorder,
        book: Notebook,
        notes: dict[int, Note],
        entry_id: int,
        note: Note,
        observation: Observation,
    ) -> None:
        """Link a new note, and change its nearest neighbours among `notes`."""
        found = await book.index.find(book.vector(entry_id), NEIGHBOURS + len(book.entries) - len(notes))
        neighbours = [(near_id, score) for near_id, score in found if near_id in notes][:NEIGHBOURS]
        if not neighbours:
            return
        retrieved = book.retrieved(neighbours)
        shown = "\n".join(f"{item.handle}. {item.text}" for item in retrieved)
        messages = record.messages(WRITE_SYSTEM, fill(EVOLVE, {"note": note.text(), "neighbours": shown}))
        view = MemoryView(query=note.text(), retrieved=retrieved, size=len(book.entries))
        step = await record.ask(messages, observation, view)
        record.note_query(step, note.text())
        for reply in read_objects(step)[:1]:
            seen = {item.handle: (item.entry_id, notes[item.entry_id]) for item in retrieved}
            await book.update(step, evolve(reply, entry_id, note, seen))


def evolve(reply: Mapping[str, Any], entry_id: int, note: Note, seen: Mapping[int, tuple[int, Note]]) -> dict[int, str]:
    """Change a new note and its neighbours as a reply says (sections 3.2, 3.3).

    Args:
        reply: The object that the model wrote; what has the wrong form in it is passed over.
        entry_id, note: The new note, which gets its links and tags.
        seen: Ids and notes of the neighbours, by the number under which the model saw them.

    Returns:
        The new texts of the notes that changed, by entry id.
    """
    before = {near_id: near.text() for near_id, near in [(entry_id, note), *seen.values()]}
    note.links = [seen[number][0] for number in _numbers(reply.get("links")) if number in seen]
    note.tags = clean_texts(reply.get("tags")) or note.tags
    changes = reply.get("neighbours")
    for change in changes if isinstance(changes, list) else []:
        number = change.get("number") if isinstance(change, dict) else None
        if type(number) is int and number in seen:
            near = seen[number][1]
            near.context = clean_text(change.get("context")) or near.context
            near.tags = clean_texts(change.get("tags")) or near.tags
    after = {near_id: near.text() for near_id, near in [(entry_id, note), *seen.values()]}
    return {near_id: text for near_id, text in after.items() if text != before[near_id]}


def parse_notes(replies: Sequence[dict[str, Any]]) -> list[Note]:
    """The notes of a reply; those without content are left out, and attributes of the wrong form."""
    return [
        Note(
            clean_text(item["content"]),
            clean_texts(item.get("keywords")),
            clean_text(item.get("context")),
            clean_texts(item.get("tags")),
        )
        for item in replies
        if clean_text(item.get("content"))
    ]


def _numbers(value: Any) -> list[int]:
    """The whole numbers in a list from a reply, each once."""
    items = value if isinstance(value, list) else []
    return list(dict.fromkeys(item for item in items if type(item) is int))
