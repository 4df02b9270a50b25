"""Logs of a rollout: statistics, traces, and sample episodes as text files and tables.

Beside the episodes' own statistics these are scores by data source, the fill of limited stores at
the end (``store_fill``, 0 to 1), and the seconds of an update, each a mean over ranks:

``sync``      giving the sampling side the current weights
``rollout``   from the start of ``sync`` until the episodes of all ranks have ended
``generate``  at least one completion was awaited
``embed``     at least one episode awaited embeddings
``retrieve``  searching stores
``idle``      of the rollout, without a completion being awaited: for embeddings alone, for the
              environment, or for slower ranks
``train``     forward and backward passes

``sync + generate + idle`` make up ``rollout``, and ``rollout + train`` an update without the
optimizer's step and saving.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from atommem.config import MemoryConfig
from atommem.environment import TaskDescription
from atommem.episode import Episode, Step, add_value, episode_sums, means
from atommem.memory.log import POLICY, Contents
from atommem.process import ActivityClock
from atommem.trace import Trace, write_trace
from atommem.trace_view import render_trace
from atommem.train.logs.reporters import report_table

SYNC, EPISODES, WAIT = "sync", "episodes", "wait"
"""Stages that the trainer times: publishing weights, own episodes, waiting for other ranks."""

_TIME = "time/"


class RolloutLog:
    """Collects one rank's part of the log.

    Args:
        tasks: Those that episodes may be of, as their environment describes them.
        memory: The settings of the episodes.
    """

    def __init__(self, tasks: Iterable[TaskDescription], memory: MemoryConfig) -> None:
        self._memory = memory
        self._sources = {task.id: task.source for task in tasks}
        self.clock = ActivityClock()

    def sums(self, episodes: Sequence[Episode], activity: ActivityClock) -> dict[str, float]:
        """Return additive totals of `episodes`, and seconds by stage since the last call.

        `activity` is the runner's clock.
        """
        sums = episode_sums(episodes)
        for episode in episodes:
            capacity = self._memory.of_task(episode.task_id).capacity
            if capacity and not episode.failed:
                size = episode.steps[-1].store_size if episode.steps else 0
                add_value(sums, "store_fill", size / capacity)
            source = self._sources.get(episode.task_id)
            if source and episode.reward is not None:
                for name, value in {"reward": episode.reward, **episode.metrics}.items():
                    add_value(sums, f"{name}/{source}", value)
        for stage, seconds in {**activity.take(), **self.clock.take()}.items():
            sums[_TIME + stage] = seconds
        return sums


def rollout_means(sums: Mapping[str, float], ranks: int) -> dict[str, float]:
    """Return what is logged of `RolloutLog.sums`, added up over `ranks`."""
    log = means(sums)
    times = {key: value / ranks for key, value in sums.items() if key.startswith(_TIME)}
    for stage in (SYNC, "generate", "embed", "retrieve"):
        log[f"seconds/{stage}"] = times.get(_TIME + stage, 0.0)
    episodes, wait = times.get(_TIME + EPISODES, 0.0), times.get(_TIME + WAIT, 0.0)
    log["seconds/idle"] = max(episodes - log["seconds/generate"], 0.0) + wait
    return log


FOLDER = "samples"
COLUMNS = [
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
]
_PROMPT_TOKENS = 300


def trace_writer(
    folder: Path,
    tasks: Sequence[Any],
    describe_task: Callable[[Any], TaskDescription],
    memory: MemoryConfig,
) -> Callable[[int, Sequence[Episode]], None]:
    """Return a hook that writes all episodes to ``folder/step-N/task-INDEX.SAMPLE.jsonl``."""
    numbered = {task.id: (index, task) for index, task in enumerate(tasks)}

    def write(update: int, episodes: Sequence[Episode]) -> None:
        for episode in episodes:
            index, task = numbered[episode.task_id]
            path = folder / f"step-{update + 1}" / f"task-{index}.{episode.sample}.jsonl"
            write_trace(path, episode, describe_task(task).to_json(), {"memory": asdict(memory)})

    return write


@dataclass
class SampleEpisodes:
    """Writes the best and the worst episodes of an update (a hook of the trainer).

    Attributes:
        folder: Gets ``step-N.txt``, as ``atommem trace`` would print them.
        tasks: The training tasks.
        describe_task: Of the environment.
        tokenizer: Decodes the end of prompts.
        memory: The settings of the episodes.
        count: Episodes each time.
        every: Updates between two times; the first update is always shown.
        report_to: Services that get a table ``episodes`` of all steps.
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
        """Write some of `episodes` if it is time; `update` counts from 0, files from 1."""
        number = update + 1
        if number != 1 and number % self.every:
            return
        chosen = best_and_worst(episodes, self.count)
        self._write(number, chosen)
        rows = [row for episode in chosen for row in self.rows(number, episode)]
        report_table("episodes", COLUMNS, rows, self.report_to)

    def rows(self, update: int, episode: Episode) -> Iterator[tuple[Any, ...]]:
        """Yield one row per step, in the order of `COLUMNS`."""
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
                trace = Trace(header, {"memory": asdict(self.memory)}, episode, True)
                console.print(render_trace(trace))
                console.print()


def best_and_worst(episodes: Sequence[Episode], count: int) -> list[Episode]:
    """Return the best, the worst, the second best, ... `count` episodes that did not fail."""
    scored = [episode for episode in episodes if episode.reward is not None]
    ranked = sorted(scored, key=lambda episode: episode.reward or 0.0, reverse=True)
    chosen: list[Episode] = []
    while ranked and len(chosen) < count:
        chosen.append(ranked.pop(0 if len(chosen) % 2 == 0 else -1))
    return chosen


def describe(contents: Contents) -> str:
    """Return what a memory holds, as lines of text."""
    lines = [f"scratchpad: {contents.scratchpad or '(empty)'}"]
    lines += [f"query: {contents.query or '(none)'}"]
    return "\n".join(lines + [f"entry {e.id}: {e.text}" for e in contents.entries.values()])


def _actions(step: Step) -> str:
    outcomes = []
    for operation in step.operations:
        actor = "" if operation.actor == POLICY else f" by {operation.actor}"
        if operation.kind != "retrieve":
            outcomes.append(f"{operation.kind}: {operation.outcome}{actor}")
    return ", ".join([*outcomes, *(f"malformed: {problem.reason}" for problem in step.problems)])
