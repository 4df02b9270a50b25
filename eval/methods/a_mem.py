"""A-Mem (arXiv 2502.12110): notes with keywords, context and tags that link and change each other.

Section 3: the model gives a note its attributes (3.1), links it to some of its nearest notes, and
rewrites context and tags of those neighbours (3.2, 3.3). A question gets the nearest notes and
their links (3.4). A note is a document and takes two calls, as in the authors' code.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atommem.embedding.embedder import Vectors
from atommem.envs.task import Task
from atommem.episode import Piece
from atommem.eval.methods.baseline import Reader
from atommem.eval.methods.recorder import Found, Recorder, text_of, texts_in

NEIGHBOURS = 5  # nearest notes that a new one is compared with (as in the authors' code)
EVOLUTIONS = 100  # notes that changed something before all are embedded anew
NO_CONTEXT = "General"


@dataclass
class Note:
    """One note; `links` are ids of others."""

    content: str
    keywords: list[str] = field(default_factory=list)
    context: str = NO_CONTEXT
    tags: list[str] = field(default_factory=list)
    links: list[int] = field(default_factory=list)

    def text(self) -> str:
        """Return the content with its attributes (equation 3), as embedded and shown."""
        keywords, tags = ", ".join(self.keywords), ", ".join(self.tags)
        return f"{self.content}\ncontext: {self.context}; keywords: {keywords}; tags: {tags}"


class AMem(Reader):
    """Makes a note of each document, lets notes evolve, and answers from the nearest ones."""

    name = "a_mem"

    async def play(self, record: Recorder, task: Task) -> None:
        notes: dict[int, Note] = {}
        evolved = 0
        texts = await self.texts(task)
        for number, text in enumerate(texts, start=1):
            label, shown = f"note {number}/{len(texts)}", Piece("note", {"note": text})
            step, reply = await record.ask_json(label, shown, Piece("describe"))
            keywords, tags = texts_in(reply.get("keywords")), texts_in(reply.get("tags"))
            note = Note(text, keywords, text_of(reply.get("context")) or NO_CONTEXT, tags)
            changed: list[int] = []
            if notes:
                (vector,) = await record.embed([text])
                found = record.index.search(vector, NEIGHBOURS)
                near = [entry_id for entry_id, _ in found]
                step, reply = await record.ask_json(
                    label,
                    shown,
                    Piece("context", {"context": note.context}),
                    Piece("keywords", {"keywords": ", ".join(note.keywords)}),
                    Piece("evolve", {"count": len(found)}),
                    view=record.view(text, found, [entry_id - 1 for entry_id in near]),
                )
                record.log_query(step, text)
                changed = evolve(reply, note, notes, near)
                evolved += bool(reply.get("should_evolve"))
            for entry_id in changed:
                record.update(step, entry_id, notes[entry_id].text())
            notes[record.create(step, note.text(), (await record.embed([note.text()]))[0])] = note
            if evolved == EVOLUTIONS:
                evolved = 0
                vectors = await record.embed([note.text() for note in notes.values()])
                record.index.update(dict(zip(notes, vectors, strict=True)))

        def find(vector: Vectors) -> Found:
            """Return the nearest notes, each followed by its links."""
            k = self.setup.retrieve_k
            ids = dict.fromkeys(
                near_id
                for entry_id, _ in record.index.search(vector, k)
                for near_id in (entry_id, *notes[entry_id].links[: k + 1])
            )
            return list(zip(ids, (record.index.rows(list(ids)) @ vector).tolist(), strict=True))

        await record.answer_from(find)


def evolve(
    reply: Mapping[str, Any], note: Note, notes: Mapping[int, Note], near: Sequence[int]
) -> list[int]:
    """Change a new note and its neighbours (sections 3.2, 3.3); returns ids of those that changed.

    Malformed parts of `reply` are skipped. The model numbers `notes`, the others by id, from 0;
    `near` are the neighbours' ids in the order shown.
    """
    before = {entry_id: notes[entry_id].text() for entry_id in near}

    def values(name: str) -> list[Any]:
        value = reply.get(name)
        return value if isinstance(value, list) else []

    actions = values("actions") if reply.get("should_evolve") else []
    if "strengthen" in actions:
        linked = [number + 1 for number in values("suggested_connections") if type(number) is int]
        note.links = [entry_id for entry_id in linked if entry_id in notes]
        note.tags = texts_in(reply.get("tags_to_update"))
    if "update_neighbor" in actions:
        tags, contexts = values("new_tags_neighborhood"), values("new_context_neighborhood")
        for entry_id, own in zip(near, tags, strict=False):
            notes[entry_id].tags = texts_in(own)
        for entry_id, context in zip(near[: len(tags)], contexts, strict=False):
            notes[entry_id].context = text_of(context)
    return [entry_id for entry_id in near if notes[entry_id].text() != before[entry_id]]
