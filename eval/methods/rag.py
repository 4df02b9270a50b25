"""Vanilla RAG: whole documents, found by the question (Lewis et al. 2020, arXiv 2005.11401, without its training)."""

from __future__ import annotations

import re

from atommem.envs.longdoc.chunking import document_text
from atommem.envs.task import Document, Task
from atommem.eval.methods.baseline import Baseline, Recorder
from atommem.memory.entries import MemoryView, Retrieved
from atommem.memory.index import VectorIndex

# How MemAgent's files, and our own joined text, begin a document.
_HEADING = re.compile(r"^Document \d+:[ \n]", re.MULTILINE)


class VanillaRAG(Baseline):
    """Embeds every document of the task once and asks each question with the `retrieve_k` most similar ones.

    Tasks that bring their text ready joined are split where a document begins ("Document 7:"), or else into chunks.
    """

    name = "rag"

    async def play(self, record: Recorder, task: Task) -> None:
        """Embed, retrieve, ask."""
        documents = await self._documents(task)
        texts = [document_text(document, number) for number, document in enumerate(documents, start=1)]
        vectors = VectorIndex(self.setup.embedder.dim)
        if texts:
            vectors.add(range(len(texts)), await self.setup.embedder.embed(texts, "entry"))
        for index, question in enumerate(task.questions):
            (query,) = await self.setup.embedder.embed([question.text], "query")
            found = await vectors.find(query, self.setup.memory.retrieve_k)
            retrieved = tuple(
                Retrieved(handle, number + 1, texts[number], score)
                for handle, (number, score) in enumerate(found, start=1)
            )
            view = MemoryView(query=question.text, retrieved=retrieved)
            step = await record.answer(index, "\n\n".join(item.text for item in retrieved), view)
            record.note_query(step, question.text)

    async def _documents(self, task: Task) -> list[Document]:
        if task.context is None:
            return list(task.documents)
        starts = [match.start() for match in _HEADING.finditer(task.context)]
        if not starts:
            return [Document("", chunk) for chunk in await self.chunks(task)]
        pieces = [task.context[a:b] for a, b in zip(starts, [*starts[1:], None], strict=True)]
        return [Document("", _HEADING.sub("", piece, count=1)) for piece in pieces]
