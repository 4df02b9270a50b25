"""Oracle: the gold documents of the question alone. What the model could answer if its memory were perfect."""

from __future__ import annotations

from atommem.errors import DataError
from envs.base import Document, Task
from envs.chunking import document_text
from eval.methods.base import Baseline, Recorder


class Oracle(Baseline):
    """Asks each question with the documents that are marked gold and that the question's supporting facts name.

    Where a question names none (or none that the task has), it gets all gold documents of its task.
    """

    name = "oracle"

    async def play(self, record: Recorder, task: Task) -> None:
        """Ask each question with its gold documents.

        Raises:
            DataError: No document of the task is marked gold (files with ready-joined text have no documents).
        """
        for index in range(len(task.questions)):
            documents = gold_documents(task, index)
            text = "\n\n".join(document_text(document, number) for number, document in enumerate(documents, start=1))
            await record.answer(index, text)


def gold_documents(task: Task, index: int) -> list[Document]:
    """The gold documents of question `index`, in the order of the task.

    Raises:
        DataError: No document of the task is marked gold.
    """
    gold = [document for document in task.documents if document.gold]
    if not gold:
        raise DataError(
            f"task {task.id!r} marks no document as gold: the method oracle needs tasks of `atommem data build` or of "
            "the synthetic world."
        )
    titles = {title for title, _ in task.questions[index].metadata.get("supporting", ())}
    return [document for document in gold if document.title in titles] or gold
