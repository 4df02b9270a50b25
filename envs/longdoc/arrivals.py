"""When the questions about a long document are shown, and which part of it they need."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from random import Random

from atommem.envs.longdoc.recall import gold_documents
from atommem.envs.task import Task, document_text, joined_text
from atommem.text_safety import clean

MODES = ("reading", "answering", "arriving")
"""When questions are shown (`LongDocConfig.questions_shown`).

arXiv 2601.08323 shows them at every step. A memory that is served reads first and is asked later,
at any time, so its policy is trained on texts whose questions it does not see.
"""


def drawn_mode(modes: Sequence[str], task_id: str) -> str:
    """Return the mode of a task: the same for all of its episodes, in every run."""
    return modes[0] if len(modes) == 1 else Random(f"questions_shown/{task_id}").choice(list(modes))


def arrivals(earliest: Sequence[int], parts: int, task_id: str) -> list[int]:
    """Draw after how many of the `parts` of a text each question is asked, from `earliest` on."""
    rng = Random(f"arrivals/{task_id}")
    return [rng.randint(min(first, parts), parts) for first in earliest]


def needed_chunks(task: Task, chunks: Sequence[str]) -> list[int]:
    """Return for each question how many chunks reach its last gold document; all if unknown."""
    counts = _counts_of_documents(task, chunks)
    needed = []
    for question in task.questions:
        gold = gold_documents(task, question)
        documents = zip(task.documents, counts, strict=False)
        known = [count for document, count in documents if document in gold]
        needed.append(max(known, default=len(chunks)))
    return needed


def _counts_of_documents(task: Task, chunks: Sequence[str]) -> Sequence[int]:
    """Return how many chunks reach the end of each document; none if `task` has a context."""
    if task.context is not None:
        return ()
    if "".join(chunks) != clean(joined_text(task)):  # one chunk a document
        return range(1, len(chunks) + 1)
    texts = (document_text(document, n) for n, document in enumerate(task.documents, start=1))
    ends = list(accumulate(map(len, chunks)))
    after = accumulate(len(clean(text)) + 2 for text in texts)  # with the blank line between two
    return [bisect_left(ends, start - 2) + 1 for start in after]
