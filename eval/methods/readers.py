"""Baselines that keep no notes: Full Context, Vanilla RAG, and the bounds No Memory and Oracle."""

from __future__ import annotations

from atommem.envs.chunking import document_text, joined_text
from atommem.envs.longdoc.recall import gold_documents
from atommem.envs.task import Task
from atommem.errors import ConfigError, DataError
from atommem.eval.methods.baseline import Reader, Recorder, Setup
from atommem.eval.methods.notes import Notebook
from atommem.tokens import cut_position, token_offsets


class FullContext(Reader):
    """Asks all questions with the whole text, cut in the middle beyond the context window.

    The cut keeps the beginning and the end, like LongBench (arXiv 2308.14508, section 4.1).
    Metrics: ``truncated`` (1 if anything was cut) and ``context_kept`` (the smallest fraction of
    the text's tokens shown with a question).
    """

    name = "full_context"
    fills_context = True

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        if setup.context_tokens <= setup.sampling.max_tokens:
            raise ConfigError(
                f"context_tokens={setup.context_tokens}: must exceed max_tokens, which is "
                f"{setup.sampling.max_tokens}, to leave room for text."
            )

    async def play(self, record: Recorder, task: Task) -> None:
        """Ask with as much of the text as fits."""
        text = joined_text(task)
        offsets = token_offsets(self.setup.tokenizer, text)
        record.metrics = {"truncated": 0.0, "context_kept": 1.0}
        for asked in record.together:
            frame = len(record.prompt_ids(record.asking(asked, "")))
            # Joints between pieces may add a few tokens.
            room = max(0, self.setup.context_tokens - self.setup.sampling.max_tokens - frame - 8)
            shown = text
            if len(offsets) > room:
                shown = cut_middle(text, offsets, room)
                kept = min(room / len(offsets), record.metrics["context_kept"])
                record.metrics = {"truncated": 1.0, "context_kept": kept}
            await record.answer(asked, shown)


def cut_middle(text: str, offsets: list[tuple[int, int]], room: int) -> str:
    """Return the first and last ``room / 2`` tokens of `text`; an odd one goes to the beginning.

    Args:
        offsets: Character span of each token.
        room: Tokens to keep, fewer than there are.
    """
    tail = room // 2
    head = text[: cut_position(offsets, room - tail)]
    return head + (text[cut_position(offsets, len(offsets) - tail) :] if tail else "")


class VanillaRAG(Reader):
    """Asks with the `retrieve_k` documents most similar to each question (arXiv 2005.11401)."""

    name = "rag"

    async def play(self, record: Recorder, task: Task) -> None:
        """Embed every document once, retrieve, ask."""
        book = Notebook(record, self.setup.embedder)
        await book.hold(await self.texts(task))
        await book.answer(lambda vector: book.index.search(vector, self.setup.memory.retrieve_k))


class NoMemory(Reader):
    """Asks each question without any text: a lower bound."""

    name = "no_memory"
    reads = False

    async def play(self, record: Recorder, task: Task) -> None:
        """Ask; nothing is read."""
        for index in range(len(task.questions)):
            await record.answer(range(index, index + 1))


class Oracle(Reader):
    """Asks each question with its gold documents: an upper bound on memory."""

    name = "oracle"

    async def play(self, record: Recorder, task: Task) -> None:
        """Ask; raises DataError if the task marks no gold documents."""
        for index, question in enumerate(task.questions):
            documents = gold_documents(task, question)
            if not documents and "documents" not in question.metadata:
                raise DataError(
                    f"task {task.id!r} marks no document as gold. The method oracle needs tasks of "
                    "`atommem data build`, the synthetic world, or LoCoMo."
                )
            texts = [document_text(document, n) for n, document in enumerate(documents, start=1)]
            await record.answer(range(index, index + 1), "\n\n".join(texts) or None)
