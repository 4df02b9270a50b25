"""Baselines that keep no notes: Full Context, Vanilla RAG, and the bounds No Memory and Oracle."""

from __future__ import annotations

from atommem.envs.longdoc.evidence import gold_documents
from atommem.envs.question_answering import QAEnvironments
from atommem.envs.task import Task, document_text, joined_text
from atommem.errors import DataError
from atommem.eval.methods.baseline import Reader
from atommem.eval.methods.recorder import Recorder
from atommem.tokens import cut_position, token_offsets


class FullContext(Reader):
    """Asks all questions with the whole text, cut in the middle beyond the context window.

    The cut keeps the beginning and the end, like LongBench (arXiv 2308.14508, section 4.1).
    Metrics: ``truncated`` (1 if anything was cut) and ``context_kept`` (the smallest fraction of
    the text's tokens shown with a question).
    """

    name = "full_context"

    async def play(self, record: Recorder, task: Task) -> None:
        text = joined_text(task)
        offsets = token_offsets(self.setup.tokenizer, text)
        record.metrics = {"truncated": 0.0, "context_kept": 1.0}
        for asked in record.together:
            frame = record.count_tokens(record.asking(asked, ""))
            room = max(0, self.setup.prompt_room - frame - 8)  # joints may add a few tokens
            shown = text
            if len(offsets) > room:
                tail = room // 2
                shown = text[: cut_position(offsets, room - tail)]
                shown += text[cut_position(offsets, len(offsets) - tail) :] if tail else ""
                kept = min(room / len(offsets), record.metrics["context_kept"])
                record.metrics = {"truncated": 1.0, "context_kept": kept}
            await record.answer(asked, shown)


class VanillaRAG(Reader):
    """Asks with the `retrieve_k` documents most similar to each question (arXiv 2005.11401)."""

    name = "rag"

    async def play(self, record: Recorder, task: Task) -> None:
        await record.hold(await self.texts(task))
        await record.answer_from(lambda vector: record.index.search(vector, self.setup.retrieve_k))


class NoMemory(Reader):
    """Asks each question without any text: a lower bound."""

    name = "no_memory"
    needs = QAEnvironments

    async def play(self, record: Recorder, task: Task) -> None:
        for index in range(len(task.questions)):
            await record.answer(range(index, index + 1))


class Oracle(Reader):
    """Asks each question with its gold documents: an upper bound on memory."""

    name = "oracle"

    async def play(self, record: Recorder, task: Task) -> None:
        for index, question in enumerate(task.questions):
            documents = gold_documents(task, question)
            if not documents and "documents" not in question.metadata:
                raise DataError(
                    f"task {task.id!r} marks no document as gold. The method oracle needs tasks of "
                    "`atommem data build`, the synthetic world, or LoCoMo."
                )
            texts = [document_text(document, n) for n, document in enumerate(documents, start=1)]
            await record.answer(range(index, index + 1), "\n\n".join(texts) or None)
