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


def trace_writer(
    folder: Path, tasks: Sequence[Any], describe_task: Callable[[Any], TaskDescription], memory: MemoryConfig
) -> Callable[[int, Sequence[Episode]], None]:
    """An `on_episodes` of the trainer that writes the episodes of every update to ``folder/step-N/``, one file each:
    the number of the task in the data, and of the sample.

    Args:
        folder: Made when the first episodes come.
        tasks: The training tasks.
        describe_task: Says what the reader of a trace wants to see of one.
        memory: The settings that the episodes ran under.
    """
    numbered = {task.id: (index, task) for index, task in enumerate(tasks)}

    def write(update: int, episodes: Sequence[Episode]) -> None:
        for episode in episodes:
            index, task = numbered[episode.task_id]
            path = folder / f"step-{update + 1}" / f"task-{index}.{episode.sample}.jsonl"
            write_trace(path, episode, describe_task(task).to_json(), {"memory": asdict(memory)})

    return write
