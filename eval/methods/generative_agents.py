"""Generative Agents (Park et al. 2023, arXiv 2304.03442): a memory stream, retrieved by recency, importance, relevance.

Section 4.1: the score of a memory is the sum of the three, each scaled to [0, 1] over all memories (all weights 1).
Recency decays by 0.995 with the time since the memory was last retrieved; importance is the model's own rating from 1
to 10; relevance is the cosine to the query. Reflection and planning, which serve acting, are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from atommem.envs.task import Task
from atommem.eval.methods.baseline import NOTHING_REMEMBERED, REMEMBERED, Baseline, Recorder
from atommem.eval.methods.notes import Notebook, clean_text, read_objects

DECAY = 0.995

OBSERVE_SYSTEM = "You keep a stream of memories about a long text that you read part by part."
OBSERVE = """Part of the text:
{chunk}

Write down what this part says, as single statements that can be understood without the text. Rate how important each \
is, from 1 (of no consequence) to 10 (of the greatest). Reply with a JSON list and nothing else:
[{"memory": "...", "importance": 5}, ...]"""


class GenerativeAgents(Baseline):
    """Turns every chunk into rated statements, and answers from the `retrieve_k` best of them."""

    name = "generative_agents"
    prompts = (*Baseline.prompts, REMEMBERED, NOTHING_REMEMBERED, OBSERVE_SYSTEM, OBSERVE)

    async def play(self, record: Recorder, task: Task) -> None:
        """Read chunk by chunk, then answer."""
        book = Notebook(record, self.setup.embedder)
        importance: dict[int, float] = {}
        chunks = await self.chunks(task)
        async for step in record.read(chunks, OBSERVE_SYSTEM, OBSERVE):
            rated = rated_memories(read_objects(step))
            ids = await book.create(step, [text for text, _ in rated])
            importance.update(zip(ids, (rating for _, rating in rated), strict=True))
        last_used = {entry.id: entry.created for entry in book.entries.values()}
        for index, question in enumerate(task.questions):
            now = len(chunks) + index
            ids = list(importance)
            scores: npt.NDArray[np.float64] = np.zeros(0)
            if ids:
                (query,) = await self.setup.embedder.embed([question.text], "query")
                scores = stream_scores(
                    [now - last_used[entry_id] for entry_id in ids],
                    [importance[entry_id] for entry_id in ids],
                    [float(book.vector(entry_id) @ query) for entry_id in ids],
                )
            best = np.argsort(-scores, kind="stable")[: self.setup.memory.retrieve_k]
            found = [(ids[i], float(scores[i])) for i in best]
            last_used.update((entry_id, now) for entry_id, _ in found)
            await book.answer(index, found)


def stream_scores(
    ages: Sequence[float], importance: Sequence[float], relevance: Sequence[float]
) -> npt.NDArray[np.float64]:
    """Section 4.1: recency + importance + relevance, each min-max scaled; a part that is the same for all is 0.

    Args:
        ages: Steps since each memory was last retrieved (or made).
        importance: Ratings.
        relevance: Cosines to the query.
    """
    parts = (np.power(DECAY, np.asarray(ages, dtype=float)), np.asarray(importance), np.asarray(relevance))
    total = np.zeros(len(ages))
    for part in parts:
        span = part.max() - part.min()
        if span > 0:
            total += (part - part.min()) / span
    return total


def rated_memories(replies: Sequence[dict[str, Any]]) -> list[tuple[str, float]]:
    """Statements and ratings of a reply. A rating that is no number is 5; one out of 1 to 10 becomes the nearest."""
    memories = []
    for item in replies:
        text, rating = clean_text(item.get("memory")), item.get("importance")
        if not isinstance(rating, int | float):
            rating = 5
        if text:
            memories.append((text, float(min(10, max(1, rating)))))
    return memories
