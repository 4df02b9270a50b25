"""Progress bars in a terminal: the run with its time left, and the rollout that is under way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from transformers import TrainerCallback

from atommem.episode import Episode

OnEpisode = Callable[[int, Episode], None]


class ProgressBars(TrainerCallback):
    """One bar for the updates of the run, one for the episodes of the rollout that is under way.

    Args:
        console: A terminal. What else is printed there appears above the bars.
    """

    def __init__(self, console: Console) -> None:
        self._bars = Progress(
            TextColumn("{task.description:>10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._run = self._bars.add_task("updates", total=None, note="")

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called once, when the state of a resumed run is loaded."""
        self._bars.reset(self._run, total=state.max_steps, completed=state.global_step, note="")
        self._bars.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called after every update."""
        self._bars.update(self._run, completed=state.global_step)

    def close(self) -> None:
        """Remove the bars."""
        self._bars.stop()

    @contextmanager
    def rollout(self, total: int, name: str) -> Iterator[OnEpisode]:
        """A bar with the score so far (exact match, or the reward) and the number of failed episodes.

        Entered around a rollout of `total` episodes; gives what is called as each one ends.
        """
        bar = self._bars.add_task(name, total=total, note="")
        scores: list[float] = []
        failed = 0
        name_of_score = "reward"

        def on_episode(index: int, episode: Episode) -> None:
            nonlocal failed, name_of_score
            if episode.failed:
                failed += 1
            elif episode.reward is not None:
                name_of_score = "em" if "em" in episode.metrics else "reward"
                scores.append(episode.metrics.get("em", episode.reward))
            note = f"{name_of_score} {sum(scores) / len(scores):.3f}" if scores else ""
            self._bars.update(bar, advance=1, note=f"{note} {failed} failed" if failed else note)

        try:
            yield on_episode
        finally:
            self._bars.remove_task(bar)
