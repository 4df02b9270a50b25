"""Vanilla RAG: whole documents, found by the question (Lewis et al. 2020, arXiv 2005.11401, without its training)."""

from __future__ import annotations

from atommem.envs.task import Task
from atommem.eval.methods.baseline import Reader, Recorder
from atommem.eval.methods.notes import Notebook


class VanillaRAG(Reader):
    """Embeds every document of the task once, and asks all questions with the `retrieve_k` most similar to each."""

    name = "rag"

    async def play(self, record: Recorder, task: Task) -> None:
        """Embed, retrieve, ask."""
        book = Notebook(record, self.setup.embedder)
        await book.hold(await self.texts(task))
        await book.answer(lambda vector: book.index.search(vector, self.setup.memory.retrieve_k))
