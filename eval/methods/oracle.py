"""Oracle: the gold documents of the question alone. What the model could answer if its memory were perfect."""

from __future__ import annotations

from atommem.envs.chunking import document_text
from atommem.envs.longdoc.fact_recall import gold_documents
from atommem.envs.task import Task
from atommem.errors import DataError
from atommem.eval.methods.baseline import Reader, Recorder


class Oracle(Reader):
    """Asks each question with its own gold documents (`gold_documents`), and without any text where it has none."""

    name = "oracle"

    async def play(self, record: Recorder, task: Task) -> None:
        """Ask each question with its gold documents.

        Raises:
            DataError: No document of the task is marked gold (files with ready-joined text have no documents).
        """
        for index, question in enumerate(task.questions):
            documents = gold_documents(task, question)
            if not documents and "documents" not in question.metadata:
                raise DataError(
                    f"task {task.id!r} marks no document as gold: the method oracle needs tasks of "
                    "`atommem data build`, of the synthetic world, or of LoCoMo."
                )
            text = "\n\n".join(
                document_text(document, number)
                for number, document in enumerate(documents, start=1)
            )
            await record.answer(range(index, index + 1), text or None)
