"""Vanilla RAG: whole documents, found by the question (Lewis et al. 2020, arXiv 2005.11401, without its training)."""

from __future__ import annotations

from atommem.envs.task import Task
from atommem.eval.methods.baseline import Reader, Recorder
from atommem.memory.entries import MemoryView, Retrieved
from atommem.memory.index import VectorIndex


class VanillaRAG(Reader):
    """Embeds every document of the task once, and asks all questions with the `retrieve_k` most similar to each."""

    name = "rag"

    async def play(self, record: Recorder, task: Task) -> None:
        """Embed, retrieve, ask."""
        texts = await self.texts(task)
        index = VectorIndex(self.setup.embedder.dim)
        if texts:
            index.add(range(len(texts)), await self.setup.embedder.embed(texts, "entry"))
        for asked in record.together:
            questions = [task.questions[place].text for place in asked]
            found: dict[int, float] = {}
            for query in await self.setup.embedder.embed(questions, "query"):
                for number, score in await index.find(query, self.setup.memory.retrieve_k):
                    found.setdefault(number, score)
            retrieved = tuple(
                Retrieved(rank, number + 1, texts[number], score)
                for rank, (number, score) in enumerate(found.items(), start=1)
            )
            step = await record.answer(asked, view=MemoryView(query="\n".join(questions), retrieved=retrieved))
            for question in questions:
                record.note_query(step, question)
