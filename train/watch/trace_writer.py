"""What is kept of training episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from atommem.config import MemoryConfig
from atommem.description import TaskDescription
from atommem.episode import Episode
from atommem.trace import write_trace


class TraceWriter:
    """Writes the episodes of every update to ``folder/step-N/`` (an `on_episodes` of the trainer).

    Args:
        folder: Made when the first episodes come.
        tasks: The training tasks.
        describe_task: Says what the reader of a trace wants to see of one.
        memory: The settings that the episodes ran under.
    """

    def __init__(
        self,
        folder: str | Path,
        tasks: Sequence[Any],
        describe_task: Callable[[Any], TaskDescription],
        memory: MemoryConfig,
    ) -> None:
        self.folder = Path(folder)
        self.memory = memory
        self._describe = describe_task
        self._tasks = {task.id: (index, task) for index, task in enumerate(tasks)}

    def __call__(self, update: int, episodes: Sequence[Episode]) -> None:
        """Write `episodes`, one file each: the number of the task in the data, and of the sample."""
        for episode in episodes:
            index, task = self._tasks[episode.task_id]
            path = self.folder / f"step-{update + 1}" / f"task-{index}.{episode.sample}.jsonl"
            write_trace(path, episode, self._describe(task).to_json(), {"memory": asdict(self.memory)})
