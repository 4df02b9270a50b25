"""Evidence recall, as LoCoMo's ``task_eval/evaluation.py`` has it for retrieval, for a memory that a policy wrote.

There, it is the share of a question's evidence turns among the turns (or in the sessions) that were retrieved. Here
what is retrieved are entries, and what is known of an entry is which chunks were read when it was written. So evidence
counts as recalled if it stands in such a chunk of an entry that was shown while the question was asked. It says that
the right passage was written down from and found again, not that the entry says what it should (`fact_recall` asks
that), and it is the coarser the longer the chunks are. The scratchpad, which all chunks may have gone into, counts for
nothing.
"""

from __future__ import annotations

from atommem.envs.chunking import chunks_of_documents
from atommem.envs.task import Task
from atommem.episode import Episode
from atommem.memory.log import Outcome


def evidence_recall(task: Task, episode: Episode) -> list[dict[str, float]]:
    """For each question ``evidence_recall``, in [0, 1]; nothing where its evidence is not marked.

    Only tasks about a conversation (``sample_id``) have it: elsewhere, supporting-fact recall says more.
    """
    marked = [
        question.metadata.get("documents") if "sample_id" in task.metadata else ()
        for question in task.questions
    ]
    chunks = {
        step.observation.origin or "": str(piece.values["chunk"])
        for step in episode.steps
        for piece in step.observation.stream
        if "chunk" in piece.values
    }
    places = chunks_of_documents(task, list(chunks.values())) if any(marked) and chunks else []
    if not places:
        return [{} for _ in task.questions]
    names = list(chunks)
    origins: dict[int, set[str]] = {}
    found: list[set[str]] = [set() for _ in task.questions]
    for step in episode.steps:
        for index in step.observation.asked:
            found[index].update(*(origins.get(item.entry_id, ()) for item in step.view.retrieved))
        for operation in step.operations:
            written = (
                operation.kind in ("create", "update") and operation.outcome is Outcome.APPLIED
            )
            if (
                written
                and operation.entry_id is not None
                and operation.source
                and operation.source.piece
            ):
                origins.setdefault(operation.entry_id, set()).add(operation.source.piece)
    return [
        {
            "evidence_recall": sum(
                any(names[at] in hit for at in places[place]) for place in wanted
            )
            / len(wanted)
        }
        if wanted
        else {}
        for wanted, hit in zip(marked, found, strict=True)
    ]
