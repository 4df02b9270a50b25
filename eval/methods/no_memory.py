"""No Memory: the question alone. What the model knows without having read anything."""

from __future__ import annotations

from atommem.envs.task import Task
from atommem.eval.methods.baseline import Reader, Recorder


class NoMemory(Reader):
    """Asks each question without any text."""

    name = "no_memory"
    reads = False  # also where there are tools, which it does without

    async def play(self, record: Recorder, task: Task) -> None:
        """Ask; nothing is read."""
        for index in range(len(task.questions)):
            await record.answer(range(index, index + 1))
