"""Readers that keep notes: A-Mem, Generative Agents and Mem0."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from atommem.embedding.embedder import Vectors
from atommem.envs.task import Task
from atommem.episode import Piece, Step
from atommem.eval.methods.baseline import Reader
from atommem.eval.methods.recorder import Found, Recorder, merged, objects_in, text_of, texts_in
from atommem.memory.rules import Numbers

NEIGHBOURS = 5  # nearest notes that a new one is compared with (as in the authors' code)
EVOLUTIONS = 100  # notes that changed something before all are embedded anew
NO_CONTEXT = "General"

Reply = Mapping[str, Any]


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
    """A-Mem (arXiv 2502.12110): notes with attributes that link and change each other.

    Section 3: the model gives a note its attributes (3.1), links it to some of its nearest notes,
    and rewrites context and tags of those neighbours (3.2, 3.3). A question gets the nearest notes
    and their links (3.4). A note is a document and takes two calls, as in the authors' code.
    """

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


def evolve(reply: Reply, note: Note, notes: Mapping[int, Note], near: Sequence[int]) -> list[int]:
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


# From the authors' code: weights of recency, relevance and importance; decay per place in the order
# of last use; importance that triggers a reflection; questions, evidence and insights of one.
WEIGHTS = (0.5, 3.0, 2.0)
DECAY = 0.99
THRESHOLD = 150
QUESTIONS, EVIDENCE, INSIGHTS = 3, 30, 5  # as in the prompts
UNRATED = 4  # importance without a rating

Ratings = dict[int, float]  # importance of each memory by its id; the least recently used first


class GenerativeAgents(Reader):
    """Generative Agents (arXiv 2304.03442): a memory stream with reflections.

    Section 4.1: the model rates the importance of each observation (a document); recency,
    importance and relevance rank memories. Section 4.2: after enough importance, it asks itself
    questions and stores the insights that memories give. Planning, for acting, is left out.
    """

    name = "generative_agents"

    async def play(self, record: Recorder, task: Task) -> None:
        ratings: Ratings = {}
        texts = await self.texts(task)
        fresh, importance = 0, 0.0
        for number, text in enumerate(texts, start=1):
            label = f"document {number}/{len(texts)}"
            importance += await self._keep(record, ratings, text, label)
            fresh += 1
            if importance >= THRESHOLD:
                await self._reflect(record, ratings, fresh, label)
                fresh, importance = 0, 0.0

        k = self.setup.retrieve_k
        await record.answer_from(lambda vector: best_memories(record, ratings, vector, k))

    async def _keep(self, record: Recorder, ratings: Ratings, text: str, label: str) -> float:
        statement = Piece("statement", {"statement": text})
        step, reply = await record.ask_json(label, statement, Piece("rate"))
        found = reply.get("importance")
        rating = float(min(10, max(1, found)) if isinstance(found, int | float) else UNRATED)
        (vector,) = await record.embed([text])
        ratings[record.create(step, text, vector)] = rating
        return rating

    async def _reflect(self, record: Recorder, ratings: Ratings, fresh: int, label: str) -> None:
        """Ask questions about the latest memories, and store insights (section 4.2)."""
        latest = record.view("", [(entry_id, 0.0) for entry_id in list(ratings)[-fresh:]])
        _, reply = await record.ask_json(f"{label}, reflection", Piece("wonder"), view=latest)
        if not (questions := texts_in(reply.get("questions"))[:QUESTIONS]):
            return
        vectors = await record.embed(questions, kind="query")
        recalled = [best_memories(record, ratings, vector, EVIDENCE) for vector in vectors]
        for question, found in zip(questions, recalled, strict=True):
            view = record.view(question, found)
            step, reply = await record.ask_json(f"{label}, insights", Piece("infer"), view=view)
            record.log_query(step, question)
            insights = [item.get("insight") for item in objects_in(reply.get("insights"))]
            for insight in texts_in(insights)[:INSIGHTS]:
                await self._keep(record, ratings, insight, f"{label}, an insight")


def best_memories(record: Recorder, ratings: Ratings, query: Vectors, k: int) -> Found:
    """Return the `k` best memories, and mark them as used."""
    if not ratings:
        return []
    ids = list(ratings)
    scores = stream_scores([*ratings.values()], (record.index.rows(ids) @ query).tolist())
    best = np.argsort(-scores, kind="stable")[:k].tolist()
    found = [(ids[place], float(scores[place])) for place in best]
    for entry_id, _ in sorted(found):
        ratings[entry_id] = ratings.pop(entry_id)
    return found


def stream_scores(importance: Sequence[float], relevance: Sequence[float]) -> Numbers:
    """Return the weighted sum of recency, relevance and importance (section 4.1): shape (n,).

    Each part is min-max scaled, a constant one counts nothing; the least recently used comes first.
    """
    recency = DECAY ** np.arange(len(importance) - 1, -1, -1, dtype=float)
    total = np.zeros(len(importance))
    parts = (recency, np.asarray(relevance), np.asarray(importance))
    for weight, part in zip(WEIGHTS, parts, strict=True):
        if span := part.max() - part.min():
            total += weight * (part - part.min()) / span
    return total


SIMILAR = 5  # nearest memories that each fact is compared with (``mem0ai``; the paper has 10)


class Mem0(Reader):
    """Mem0 (arXiv 2504.19413): facts, each of which is added, or changes or deletes a memory.

    Section 2.1: the model extracts facts from a chunk; each is compared with its nearest memories,
    and one call decides for all facts: add, update, delete or nothing. This follows ``mem0ai`` 0.1
    and 1.0; from 2.0 on it only adds.
    """

    name = "mem0"

    async def play(self, record: Recorder, task: Task) -> None:
        chunks = await self.chunks(task)
        for number, chunk in enumerate(chunks, start=1):
            label = f"chunk {number}/{len(chunks)}"
            part = Piece("part", {"part": chunk})
            _, reply = await record.ask_json(label, part, Piece("extract"))
            if not (facts := facts_of(reply)):
                continue
            vectors = await record.embed(facts)
            found = merged(record.index.search(vector, SIMILAR) for vector in vectors)
            view = record.view("\n".join(facts), found, range(len(found)))
            lines = tuple(Piece("fact", {"fact": fact}) for fact in facts)
            step, reply = await record.ask_json(
                label, Piece("facts", {"facts": lines}), Piece("decide"), view=view
            )
            for fact in facts:
                record.log_query(step, fact)
            await apply(record, step, reply, [entry_id for entry_id, _ in found])
        await record.answer_from(lambda vector: record.index.search(vector, self.setup.retrieve_k))


async def apply(record: Recorder, step: Step, reply: Reply, near: Sequence[int]) -> None:
    """Apply a reply to the store; malformed parts are skipped, like in ``mem0ai``.

    `near` are the ids of the entries shown, by their number there.
    """
    ids = {str(number): entry_id for number, entry_id in enumerate(near)}
    decided = [
        (item.get("event"), text, text_of(item.get("id")))
        for item in objects_in(reply.get("memory"))
        if (text := text_of(item.get("text")))
    ]
    written = [text for event, text, _ in decided if event in ("ADD", "UPDATE")]
    vectors = dict(zip(written, await record.embed(written), strict=True)) if written else {}
    for event, text, number in decided:
        entry_id = ids.get(number, 0)
        if event == "ADD":
            record.create(step, text, vectors[text])
        elif event == "UPDATE" and entry_id in record.texts:
            record.update(step, entry_id, text, vectors[text])
        elif event == "DELETE" and entry_id in record.texts:
            record.delete(step, entry_id)


def facts_of(reply: Reply) -> list[str]:
    """Return the facts of a reply: strings, or objects with ``fact`` or ``text``."""
    facts = reply.get("facts")
    if not isinstance(facts, list):
        return []
    return texts_in(
        [item.get("fact") or item.get("text") if isinstance(item, dict) else item for item in facts]
    )
