"""Whole episodes of training: all of them as traces, and samples to be read while it runs, as text files and as a table
where a run is reported to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from atommem.config import MemoryConfig
from atommem.description import TaskDescription
from atommem.episode import Episode, Step
from atommem.memory.log import POLICY, Contents
from atommem.trace import Trace, write_trace
from atommem.trace_view import render_trace
from atommem.train.watch.reporters import report_table

FOLDER = "samples"
COLUMNS = (
    "update",
    "task",
    "source",
    "sample",
    "reward",
    "stop",
    "step",
    "phase",
    "prompt_end",
    "completion",
    "actions",
    "memory_before",
    "memory_after",
)
_PROMPT_TOKENS = 300


def trace_writer(
    folder: Path,
    tasks: Sequence[Any],
    describe_task: Callable[[Any], TaskDescription],
    memory: MemoryConfig,
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


@dataclass
class SampleEpisodes:
    """Shows a few episodes of an update, the best and the worst (an `on_episodes` of the trainer).

    Attributes:
        folder: Gets ``step-N.txt``, one file per update, as ``atommem trace`` would print it.
        tasks: The training tasks.
        describe_task: Says what the reader of a trace wants to see of one.
        tokenizer: Decodes the end of the prompts.
        memory: The settings that the episodes ran under.
        count: Episodes each time.
        every: Updates between two times; the first update is shown always.
        report_to: Services that get a table of all steps named ``episodes`` (`report_table`).
    """

    folder: Path
    tasks: Sequence[Any]
    describe_task: Callable[[Any], TaskDescription]
    tokenizer: Any
    memory: MemoryConfig
    count: int
    every: int
    report_to: Collection[str] = ()

    def __post_init__(self) -> None:
        self._tasks = {task.id: task for task in self.tasks}

    def __call__(self, update: int, episodes: Sequence[Episode]) -> None:
        """Show some of `episodes` if it is time; `update` counts from 0, what is shown from 1."""
        number = update + 1
        if number != 1 and number % self.every:
            return
        chosen = best_and_worst(episodes, self.count)
        self._write(number, chosen)
        rows = [row for episode in chosen for row in self.rows(number, episode)]
        report_table("episodes", COLUMNS, rows, number, self.report_to)

    def rows(self, update: int, episode: Episode) -> Iterator[tuple[Any, ...]]:
        """One row per step, in the order of `COLUMNS`."""
        source = self.describe_task(self._tasks[episode.task_id]).source
        before, contents = describe(Contents()), Contents()
        for step in episode.steps:
            for operation in step.operations:
                contents.apply(operation)
            after = describe(contents)
            yield (
                update,
                episode.task_id,
                source,
                episode.sample,
                episode.reward,
                str(episode.stop_reason),
                step.index + 1,
                step.observation.phase,
                self.tokenizer.decode(step.prompt_ids[-_PROMPT_TOKENS:]),
                step.text,
                _actions(step),
                before,
                after,
            )
            before = after

    def _write(self, update: int, episodes: Sequence[Episode]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"step-{update}.txt").open("w", encoding="utf-8") as file:
            console = Console(file=file, width=120, color_system=None, legacy_windows=False)
            for episode in episodes:
                header = self.describe_task(self._tasks[episode.task_id]).to_json()
                console.print(
                    render_trace(Trace(header, {"memory": asdict(self.memory)}, episode, True))
                )
                console.print()


def best_and_worst(episodes: Sequence[Episode], count: int) -> list[Episode]:
    """The best, the worst, the second best, ... of those that did not fail: `count` of them, or all."""
    ranked = sorted(
        (e for e in episodes if e.reward is not None), key=lambda e: e.reward or 0.0, reverse=True
    )
    chosen: list[Episode] = []
    while ranked and len(chosen) < count:
        chosen.append(ranked.pop(0 if len(chosen) % 2 == 0 else -1))
    return chosen


def describe(contents: Contents) -> str:
    """What a memory holds, as lines of text."""
    lines = [
        f"scratchpad: {contents.scratchpad or '(empty)'}",
        f"query: {contents.query or '(none)'}",
    ]
    return "\n".join(
        [*lines, *(f"entry {entry.id}: {entry.text}" for entry in contents.entries.values())]
    )


def _actions(step: Step) -> str:
    outcomes = [
        f"{operation.kind}: {operation.outcome}"
        + ("" if operation.actor == POLICY else f" by {operation.actor}")
        for operation in step.operations
        if operation.kind != "retrieve"
    ]
    problems = [f"malformed: {problem.reason}" for problem in step.problems]
    return ", ".join([*outcomes, *problems])
