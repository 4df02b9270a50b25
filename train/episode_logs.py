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

import importlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from atommem.config import MemoryConfig
from atommem.environment import TaskDescription
from atommem.episode import Episode, add_value, episode_sums, means
from atommem.process import ActivityClock
from atommem.trace import Trace, write_trace
from atommem.trace_view import render_trace

SYNC, EPISODES, WAIT = "sync", "episodes", "wait"
"""Stages that the trainer times: publishing weights, own episodes, waiting for other ranks."""

EpisodesHook = Callable[[int, Sequence[Episode]], None]
"""Called after each rollout with the update's number (from 0) and this rank's episodes."""

SAMPLES = "samples"
COLUMNS = ("update", "task", "source", "sample", "reward", "stop", "episode")
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
    for stage in (SYNC, "generate", "embed"):
        log[f"seconds/{stage}"] = times.get(_TIME + stage, 0.0)
    episodes, wait = times.get(_TIME + EPISODES, 0.0), times.get(_TIME + WAIT, 0.0)
    log["seconds/idle"] = max(episodes - log["seconds/generate"], 0.0) + wait
    return log


def trace_writer(
    folder: Path,
    tasks: Sequence[Any],
    describe_task: Callable[[Any], TaskDescription],
    memory: MemoryConfig,
) -> EpisodesHook:
    """Return a hook that writes all episodes to ``folder/step-N/task-INDEX.SAMPLE.jsonl``."""
    numbered = {task.id: (index, task) for index, task in enumerate(tasks)}

    def write(update: int, episodes: Sequence[Episode]) -> None:
        for episode in episodes:
            index, task = numbered[episode.task_id]
            path = folder / f"step-{update + 1}" / f"task-{index}.{episode.sample}.jsonl"
            write_trace(path, episode, describe_task(task).to_json(), {"memory": asdict(memory)})

    return write


def sample_writer(
    args: Any,
    tasks: Sequence[Any],
    describe_task: Callable[[Any], TaskDescription],
    memory: MemoryConfig,
) -> EpisodesHook:
    """Return a hook that writes the best and the worst `log_episodes` episodes as text.

    They go to ``samples/step-N.txt``, as ``atommem trace`` would print them, and to the services of
    `report_to` as a table ``episodes``: in the first update, then every `log_episodes_steps`.
    """
    described = {task.id: describe_task(task) for task in tasks}
    folder = Path(args.output_dir) / SAMPLES

    def write(update: int, episodes: Sequence[Episode]) -> None:
        number = update + 1
        if number != 1 and number % args.log_episodes_steps:
            return
        rows = []
        for episode in best_and_worst(episodes, args.log_episodes):
            task = described[episode.task_id]
            text = _render(Trace(task.to_json(), {"memory": asdict(memory)}, episode, True))
            facts = (number, task.id, task.source, episode.sample, episode.reward)
            rows.append((*facts, str(episode.stop_reason), text))
        folder.mkdir(parents=True, exist_ok=True)
        text = "\n".join(row[-1] for row in rows)
        (folder / f"step-{number}.txt").write_text(text, encoding="utf-8")
        report_table("episodes", COLUMNS, rows, args.report_to)

    return write


def _render(trace: Trace) -> str:
    console = Console(width=120, color_system=None, legacy_windows=False, quiet=False)
    with console.capture() as capture:
        console.print(render_trace(trace))
    return capture.get()


def best_and_worst(episodes: Sequence[Episode], count: int) -> list[Episode]:
    """Return the best, the worst, the second best, ... `count` episodes that did not fail."""
    scored = [episode for episode in episodes if episode.reward is not None]
    ranked = sorted(scored, key=lambda episode: episode.reward or 0.0, reverse=True)
    chosen: list[Episode] = []
    while ranked and len(chosen) < count:
        chosen.append(ranked.pop(0 if len(chosen) % 2 == 0 else -1))
    return chosen


def report_table(
    name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], to: Collection[str]
) -> None:
    """Log a table to wandb and trackio, if they are in `to`, with the update's entry."""
    for service in {"wandb", "trackio"} & set(to):
        import pandas

        module = importlib.import_module(service)
        later = {"commit": False} if service == "wandb" else {}
        table = module.Table(dataframe=pandas.DataFrame(list(rows), columns=list(columns)))
        module.log({name: table}, **later)
