"""The sampling half of training: weights out, episodes in, on every rank, and evaluation on held-out tasks."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

from accelerate.utils import gather_object

from atommem.episode import Episode
from atommem.episode_stats import add_sums
from atommem.errors import OutageError
from atommem.garbage import no_full_collection
from atommem.train.resume.resumable_trainer import ResumableTrainer
from atommem.train.rollout.backend import Backend
from atommem.train.rollout.dynamic_sampling import GroupPart
from atommem.train.rollout.held_out import (
    held_out_jobs,
    held_out_records,
    held_out_sampling,
    report_held_out,
)
from atommem.train.train_config import TrainConfig
from atommem.train.watch.progress import OnEpisode
from atommem.train.watch.rollout_log import EPISODES, SYNC, WAIT, RolloutLog, rollout_means

Result = TypeVar("Result")

EpisodesHook = Callable[[int, Sequence[Episode]], None]
"""Called after each rollout with the update's number (from 0) and this rank's episodes."""


class RolloutTrainer(ResumableTrainer):
    """A trainer whose data are episodes that a backend samples; call `set_up_rollouts` before training."""

    args: TrainConfig
    backend: Backend
    tasks: Sequence[Any]
    held_out: Sequence[Any]

    def set_up_rollouts(
        self,
        backend: Backend,
        tasks: Sequence[Any],
        held_out: Sequence[Any],
        on_episodes: EpisodesHook | None,
    ) -> None:
        """Say what samples, on which tasks, and who sees the episodes of every update."""
        self.backend = backend
        self.tasks = tasks
        self.held_out = held_out
        self.on_episodes = on_episodes
        self.carried: list[GroupPart] | None = None
        """Groups that were begun in the update before; none before the first update of this process."""
        self._loop = asyncio.Runner()
        agent = backend.runner.agent
        self._rollout_log = RolloutLog(map(agent.environments.describe, tasks), agent.memory)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As below; see `sample` for when garbage is collected."""
        with no_full_collection():
            return super().train(*args, **kwargs)

    def close(self) -> None:
        """Free what the backend and the embedder hold. The trainer cannot train afterwards."""
        self.run_async(self.backend.close())
        self.run_async(self.backend.runner.agent.embedder.close())
        self._loop.close()

    def run_async(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine in the event loop that the episodes run in."""
        return self._loop.run(work)

    def publish(self) -> None:
        """Give the sampling side the current weights; all ranks together.

        Raises:
            RolloutFailedError: It is out of reach.
        """
        broken = None
        with self._rollout_log.clock.busy(SYNC):
            try:
                self.backend.publish(self)
            except OutageError as error:
                broken = error
        self.meet(broken)

    def sample(
        self,
        work: Callable[[OnEpisode | None], Coroutine[Any, Any, Result]],
        count: int,
        name: str = "episodes",
    ) -> Result:
        """What `work` gives, which runs this rank's episodes; returns when all ranks have theirs.

        Args:
            work: Given what is to be called as each episode ends.
            count: Its episodes, for the bar.
            name: The bar's.

        Raises:
            TrainingInterrupted, BudgetSpentError: A rank was asked to stop, or may spend nothing more: the episodes are
                given up.
            RolloutFailedError: On a rank, the sampling side broke down for good.
        """
        clock = self._rollout_log.clock
        broken: Exception | None = None
        done: Result | None = None
        gc.collect()  # here, where the last update's episodes are gone
        try:
            with (
                self.backend.rollout(self),
                self.progress.rollout(count, name)
                if self.progress
                else nullcontext() as on_episode,
                clock.busy(EPISODES),
            ):
                try:
                    done = self.run_async(self.stop_request.guard(work(on_episode)))
                except (
                    Exception
                ) as error:  # whatever an engine dies of: the weights before this update are good
                    broken = error
        except Exception as error:  # or as it wakes, or goes to sleep
            broken = error
        with clock.busy(WAIT):
            self.meet(broken)
        assert done is not None, "a rank that gave up its rollout made all of them stop"
        return done

    def end_rollout(
        self, episodes: Sequence[Episode], rewards: Sequence[float | None], seconds: float
    ) -> None:
        """Log an update's rollout, keep its episodes, show them to `on_episodes`.

        Args:
            episodes: All that this rank ran.
            rewards: Of the episodes that are trained on, of all ranks.
            seconds: The rollout's wall-clock time.

        Raises:
            RolloutFailedError: Too many episodes failed.
        """
        parts = gather_object(
            [self._rollout_log.sums(episodes, self.backend.runner.agent.activity)]
        )
        sums = add_sums(parts)
        summary = rollout_means(sums, len(parts))
        summary["seconds/rollout"] = seconds
        summary |= add_sums(gather_object([self.backend.metrics()]))
        self.state.num_input_tokens_seen += int(sums["tokens/prompt"] + sums["tokens/completion"])
        self.log_with_update(summary)
        self._metrics["train"]["num_tokens"] = [self.state.num_input_tokens_seen]
        self.failed_step(self.state.global_step, episodes)
        self.check_failed_fraction(rewards.count(None), len(rewards), self.args.max_failed_fraction)
        if self.on_episodes is not None:
            self.on_episodes(self.state.global_step, episodes)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Episodes on the held-out tasks, scored as ``atommem eval`` does, with the weights as they are.

        Every evaluation of a run uses the same seeds. The arguments are those of `Trainer.evaluate`, which
        calls this when ``eval_strategy`` says so; only the prefix is used.

        Returns:
            What is logged (`held_out_metrics`), the prefix and an underscore before each name.

        Raises:
            TrainingInterrupted, RolloutFailedError: As in training.
        """
        rank, ranks = self.accelerator.process_index, self.accelerator.num_processes
        jobs, runner = held_out_jobs(self.args, self.held_out)[rank::ranks], self.backend.runner
        agent = runner.agent
        sampling = agent.sampling
        agent.sampling = held_out_sampling(self.args, sampling)
        try:
            self.publish()
            episodes = self.sample(
                lambda on_episode: runner.run_all(jobs, on_episode), len(jobs), "evaluation"
            )
        finally:
            agent.sampling = sampling
        mine = held_out_records(agent.environments, jobs, episodes)
        # Neither its time nor the backend's counters belong to the next update.
        self._rollout_log.sums([], agent.activity)
        self.backend.metrics()
        return report_held_out(self, gather_object(mine), metric_key_prefix)
