"""Evidence recall, as LoCoMo's ``task_eval/evaluation.py`` has it for retrieval, for a memory that a policy wrote.

There, it is the share of a question's evidence turns among the turns (or in the sessions) that were retrieved. Here
what is retrieved are entries, and what is known of an entry is which chunks were read when it was written. So evidence
counts as recalled if it stands in such a chunk of an entry that was shown while the question was asked. It says that
the right passage was written down from and found again, not that the entry says what it should (`fact_recall` asks
that), and it is the coarser the longer the chunks are. The scratchpad, which all chunks may have gone into, counts for
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from atommem.envs.chunking import document_text, joined_text
from atommem.envs.task import Task
from atommem.episode import Episode
from atommem.memory.operations import Outcome
from atommem.untrusted import clean


def evidence_recall(task: Task, episode: Episode) -> list[dict[str, float]]:
    """For each question ``evidence_recall``, in [0, 1]; nothing where its evidence is not marked.

    Only tasks about a conversation (``sample_id``) have it: elsewhere, supporting-fact recall says more.
    """
    marked = [question.metadata.get("documents") if "sample_id" in task.metadata else () for question in task.questions]
    chunks = {
        step.observation.origin or "": str(piece.values["chunk"])
        for step in episode.steps
        for piece in step.observation.stream
        if piece.name == "chunk"
    }
    places = _chunks_of_documents(task, list(chunks.values())) if any(marked) and chunks else []
    if not places:
        return [{} for _ in task.questions]
    names = list(chunks)
    origins: dict[int, set[str]] = {}
    found: list[set[str]] = [set() for _ in task.questions]
    for step in episode.steps:
        for index in step.observation.asked:
            found[index].update(*(origins.get(item.entry_id, ()) for item in step.view.retrieved))
        for operation in step.operations:
            written = operation.kind in ("create", "update") and operation.outcome is Outcome.APPLIED
            if written and operation.entry_id is not None and operation.source and operation.source.piece:
                origins.setdefault(operation.entry_id, set()).add(operation.source.piece)
    return [
        {"evidence_recall": sum(any(names[at] in hit for at in places[place]) for place in wanted) / len(wanted)}
        if wanted
        else {}
        for wanted, hit in zip(marked, found, strict=True)
    ]


def _chunks_of_documents(task: Task, chunks: Sequence[str]) -> list[range]:
    """For each document the places of the chunks that it stands in; [] where the chunks are not those of the task."""
    if len(chunks) == len(task.documents) and all(
        clean(document.text) in chunk for document, chunk in zip(task.documents, chunks, strict=True)
    ):
        return [range(place, place + 1) for place in range(len(chunks))]  # one chunk a document
    if "".join(chunks) != clean(joined_text(task)):
        return []
    ends: list[int] = []
    for chunk in chunks:
        ends.append((ends[-1] if ends else 0) + len(chunk))
    found, start, first = [], 0, 0
    for number, document in enumerate(task.documents, start=1):
        end = start + len(clean(document_text(document, number)))
        while ends[first] <= start:
            first += 1
        last = first
        while ends[last] < end:
            last += 1
        found.append(range(first, last + 1))
        start = end + 2  # the blank line between two
    return found
