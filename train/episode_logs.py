"""Logs of a rollout: statistics, traces, and sample episodes.

Beside the episodes' own statistics these are scores by data source, the fill of limited stores at
the end (``store_fill``, 0 to 1), and seconds of an update, means over ranks:

``sync``      giving the sampling side the current weights
``rollout``   from the start of ``sync`` until the episodes of all ranks have ended: ``sync``,
              ``generate`` and ``idle``
``generate``  at least one completion was awaited
``embed``     at least one episode awaited embeddings, or searched its store
``idle``      no completion was awaited: for embeddings, the environment, or slower ranks
``train``     forward and backward passes, without the optimizer's step
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from atommem.config import MemoryConfig
from atommem.environment import TaskDescription
from atommem.episode import Episode, add_sums, add_value, episode_sums, means
from atommem.process import ActivityClock
from atommem.trace import Trace, write_trace
from atommem.trace_view import render_trace
from atommem.train.errors import RolloutFailedError

SYNC, EPISODES, WAIT = "sync", "episodes", "wait"  # publishing, own episodes, other ranks

EpisodesHook = Callable[[int, Sequence[Episode]], None]  # gets the update, from 0

COLUMNS = ("task", "source", "sample", "reward", "stop", "episode")  # of wandb's table
_TIME = "time/"


class RolloutLog:
    """Collects one rank's part of the log, for an agent's episodes of `tasks`."""

    def __init__(self, agent: Any, tasks: Sequence[Any]) -> None:
        described = map(agent.factory.describe, tasks) if agent else ()
        self._sources = {task.id: task.source for task in described}
        self._agent, self.clock = agent, ActivityClock()

    def sums(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Return additive totals of `episodes`, and seconds by stage since the last call."""
        sums = episode_sums(episodes)
        for episode in episodes:
            capacity = self._agent.memory.of_task(episode.task_id).capacity
            if capacity and not episode.failed:
                size = episode.steps[-1].store_size if episode.steps else 0
                add_value(sums, "store_fill", size / capacity)
            source = self._sources.get(episode.task_id)
            if source and episode.reward is not None:
                for name, value in {**episode.metrics, "reward": episode.reward}.items():
                    add_value(sums, f"{name}/{source}", value)
        seconds = self._agent.activity.take() | self.clock.take()
        return sums | {_TIME + stage: value for stage, value in seconds.items()}


def rollout_entry(
    state: Any, by_rank: Sequence[Mapping[str, float]], further: Mapping[str, float]
) -> dict[str, float]:
    """Return what is logged of `RolloutLog.sums` by rank, and count the tokens in `state`."""
    sums, ranks = add_sums(by_rank), len(by_rank)
    state.num_input_tokens_seen += int(sums["tokens/prompt"] + sums["tokens/completion"])
    log = means(sums)
    stages = (SYNC, EPISODES, WAIT, "generate", "embed")
    seconds = {stage: sums.get(_TIME + stage, 0.0) / ranks for stage in stages}
    log |= {f"seconds/{stage}": seconds[stage] for stage in (SYNC, "generate", "embed")}
    log["seconds/idle"] = max(seconds[EPISODES] - seconds["generate"], 0.0) + seconds[WAIT]
    return {**log, **further, "num_tokens": float(state.num_input_tokens_seen)}


def check_failed(args: Any, failed: int, of: int, errors: Sequence[str | None], what: str) -> None:
    """End the run if more than `max_failed_fraction` of some episodes failed."""
    if failed > args.max_failed_fraction * of:
        reason = min((error for error in errors if error), default="see the other processes")
        raise RolloutFailedError(
            f"{failed} of {of} episodes of {what} failed, more than "
            f"max_failed_fraction={args.max_failed_fraction:g}: {reason}"
        )


class EpisodeFiles:
    """An `EpisodesHook` that writes episodes to the output folder of the run `args`.

    With ``save_traces`` all of them; the best and the worst ``log_episodes`` as text, and as a
    table to wandb, in the first update, then every ``log_episodes_steps``.
    """

    def __init__(self, args: Any, tasks: Iterable[TaskDescription], memory: MemoryConfig) -> None:
        self._args = args
        self._tasks = {task.id: (index, task) for index, task in enumerate(tasks)}
        self._settings = {"memory": asdict(memory)}

    def __call__(self, update: int, episodes: Sequence[Episode]) -> None:
        args, number, folder = self._args, update + 1, Path(self._args.output_dir)
        if args.save_traces:
            for episode in episodes:
                index, task = self._tasks[episode.task_id]
                path = folder / "traces" / f"step-{number}" / f"task-{index}.{episode.sample}.jsonl"
                write_trace(path, episode, asdict(task), self._settings)
        is_due = number == 1 or number % args.log_episodes_steps == 0
        if args.log_episodes and args.process_index == 0 and is_due:
            self._write_samples(folder / "samples" / f"step-{number}.txt", episodes)

    def _write_samples(self, path: Path, episodes: Sequence[Episode]) -> None:
        rows = []
        for episode in best_and_worst(episodes, self._args.log_episodes):
            _, task = self._tasks[episode.task_id]
            console = Console(width=120, color_system=None, legacy_windows=False, quiet=False)
            with console.capture() as capture:
                console.print(render_trace(Trace(asdict(task), self._settings, episode, True)))
            outcome = (episode.sample, episode.reward, str(episode.stop_reason))
            rows.append((task.id, task.source, *outcome, capture.get()))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(row[-1] for row in rows), encoding="utf-8")
        if "wandb" in self._args.report_to:
            import wandb

            wandb.log({"episodes": wandb.Table(list(COLUMNS), rows)}, commit=False)


def best_and_worst(episodes: Sequence[Episode], count: int) -> list[Episode]:
    """Return the best, the worst, the second best, ... `count` episodes that did not fail."""
    scored = [episode for episode in episodes if episode.reward is not None]
    ranked = sorted(scored, key=lambda episode: episode.reward or 0.0, reverse=True)
    places = (place // 2 if place % 2 == 0 else ~(place // 2) for place in range(len(ranked)))
    return [ranked[place] for place in places][:count]
