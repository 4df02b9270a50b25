"""Mem0 (arXiv 2504.19413): facts, each of which is added, or changes or deletes a memory.

Section 2.1: the model extracts facts from a chunk; each is compared with its nearest memories, and
one call decides for all facts: add, update, delete or nothing. This follows ``mem0ai`` 0.1 and
1.0; from 2.0 on it only adds.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from atommem.envs.task import Task
from atommem.episode import Piece, Step
from atommem.eval.methods.baseline import Reader
from atommem.eval.methods.recorder import Recorder, merged, objects_in, text_of, texts_in

SIMILAR = 5  # nearest memories that each fact is compared with (``mem0ai``; the paper has 10)


class Mem0(Reader):
    """Keeps facts up to date, and answers from those nearest to each question."""

    name = "mem0"

    async def play(self, record: Recorder, task: Task) -> None:
        chunks = await self.chunks(task)
        for number, chunk in enumerate(chunks, start=1):
            label = f"chunk {number}/{len(chunks)}"
            part = Piece("part", {"part": chunk})
            _, reply = await record.ask_json(label, part, Piece("extract"))
            facts = facts_of(reply)
            if not facts:
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


async def apply(
    record: Recorder, step: Step, reply: Mapping[str, Any], near: Sequence[int]
) -> None:
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


def facts_of(reply: Mapping[str, Any]) -> list[str]:
    """Return the facts of a reply: strings, or objects with ``fact`` or ``text``."""
    facts = reply.get("facts")
    if not isinstance(facts, list):
        return []
    return texts_in(
        [item.get("fact") or item.get("text") if isinstance(item, dict) else item for item in facts]
    )
