"""Generative Agents (arXiv 2304.03442): a memory stream with reflections.

Section 4.1: the model rates the importance of each observation (a document); recency, importance
and relevance rank memories. Section 4.2: after enough importance, the model asks itself questions
and stores the insights that memories give. Planning, which serves acting, is left out.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from atommem.embedding.embedder import Vectors
from atommem.envs.task import Task
from atommem.episode import Piece
from atommem.eval.methods.baseline import Reader
from atommem.eval.methods.recorder import Found, Recorder, objects_in, texts_in

# From the authors' code: weights of recency, relevance and importance; decay per place in the order
# of last use; importance that triggers a reflection; questions, evidence and insights of one.
WEIGHTS = (0.5, 3.0, 2.0)
DECAY = 0.99
THRESHOLD = 150
QUESTIONS, EVIDENCE, INSIGHTS = 3, 30, 5  # as in the prompts
UNRATED = 4  # importance without a rating

Ratings = dict[int, float]  # importance of each memory by its id; the least recently used first


class GenerativeAgents(Reader):
    """Rates each document, reflects, and answers from the best memories of each question."""

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
        questions = texts_in(reply.get("questions"))[:QUESTIONS]
        if not questions:
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


def stream_scores(
    importance: Sequence[float], relevance: Sequence[float]
) -> npt.NDArray[np.float64]:
    """Return the weighted sum of recency, relevance and importance (section 4.1): shape (n,).

    Each part is min-max scaled; a constant part counts nothing. The least recently used memory
    comes first.
    """
    recency = DECAY ** np.arange(len(importance) - 1, -1, -1, dtype=float)
    total = np.zeros(len(importance))
    parts = (recency, np.asarray(relevance), np.asarray(importance))
    for weight, part in zip(WEIGHTS, parts, strict=True):
        if span := part.max() - part.min():
            total += weight * (part - part.min()) / span
    return total
