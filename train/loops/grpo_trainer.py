"""GRPO over whole episodes on transformers' `Trainer`.

Its data loader only counts updates, and `training_step` is one update: it runs the episodes of a
rollout, makes a row of every step, and trains on them (`atommem.train.loops.update_step`).
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate.utils import gather_object

from atommem.episode import Episode
from atommem.process import no_full_collection
from atommem.rollout import EpisodeRunner
from atommem.train.episode_logs import RolloutLog
from atommem.train.loops.episode_trainer import EpisodeTrainer
from atommem.train.loops.update_step import Batch, load_batches, make_batches, save_batches
from atommem.train.objective.rows import (
    EpisodeSize,
    advantages_of_steps,
    gradient_shares,
    group_advantages,
    merge_equal_rows,
)
from atommem.train.rollout.backends import Backend
from atommem.train.rollout.rollouts import TaskOrder, gather_outcomes, plan_groups, run_groups
from atommem.train.train_config import TrainConfig

Result = TypeVar("Result")


class MemoryGRPOTrainer(EpisodeTrainer):
    """Trains a policy on whole episodes, with a rollout before each update or few of them.

    `make_backend` gets the training model, unwrapped, with its adapter.
    """

    args: TrainConfig

    def __init__(
        self,
        model: Any,
        args: TrainConfig,
        tasks: Sequence[Any],
        processing_class: Any,
        make_backend: Callable[[Any], Backend],
        **kwargs: Any,
    ) -> None:
        groups = (args.generation_batch_size or 0) // args.num_generations
        self._order = TaskOrder(len(tasks), groups, bool(args.shuffle_dataset), args.seed)
        update = {
            "token_budget": args.token_budget,
            "prefix_sharing": args.prefix_sharing,
            "on_policy": args.updates_per_rollout == 1,
        }
        super().__init__(model, args, tasks, processing_class, update=update, **kwargs)
        self.backend = make_backend(self.model)
        self._sampled, self._batches = -1, list[Batch]()  # of the running rollout
        self._loop = asyncio.Runner()
        self._rollout_log = RolloutLog(self.runner.agent, tasks)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as `ResumableTrainer.train`; garbage is collected before each rollout."""
        with no_full_collection():
            return super().train(*args, **kwargs)

    def close(self) -> None:
        self.run_async(self.backend.close())
        self._loop.close()

    def run_async(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._loop.run(work)

    def training_step(
        self, model: Any, inputs: Any, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Run one update, with a rollout if it is the first on it; returns this rank's loss."""
        model.train()
        rollout, update = divmod(self.state.global_step, self.args.updates_per_rollout)
        if self._sampled != rollout:
            self._sampled, self._batches = rollout, self._make_batches(model, rollout)
        return self.run_update(model, self._batches[update % len(self._batches)])

    def collect(self, rollout: int) -> tuple[list[Episode], list[list[float]], list[EpisodeSize]]:
        """Run this rank's share of a rollout, and compare the episodes of each group; collective.

        The global batch is group after group, and each rank has an equal share of it. Returns this
        rank's episodes, one advantage per step of each, and the sizes of all ranks' episodes.
        """
        args, started = self.args, time.perf_counter()
        rank, ranks = self.accelerator.process_index, self.accelerator.num_processes
        size = self._order.groups_per_update * args.num_generations // ranks
        own = range(rank * size, (rank + 1) * size)
        groups = plan_groups(args, self._order, self.tasks, rollout, own)
        self._rollout_log.sums([])  # an evaluation's time is not its
        runner = self.rollout_runner(rollout)
        self.publish()
        self.run_rollout(lambda on_episode: run_groups(runner, groups, on_episode), size)
        rewards, sizes, log = gather_outcomes(groups, args)
        log["seconds/rollout"] = time.perf_counter() - started
        every = [e for group in groups for e in (*group.episodes, *group.replaced)]
        sums = gather_object([self._rollout_log.sums(every)])
        self.log_rollout(sums, every, rewards, log)
        advantages = group_advantages(rewards, args.num_generations, str(args.scale_rewards))
        self.log_with_update(gradient_shares(sizes, advantages, args.normalization))
        episodes = [episode for group in groups for episode in group.episodes]
        return episodes, advantages_of_steps(advantages[own.start : own.stop], episodes), sizes

    def _make_batches(self, model: Any, rollout: int) -> list[Batch]:
        """Make the batches of a rollout's updates; `num_iterations` repeats all of them."""
        episodes, advantages, sizes = self.collect(rollout)
        first = self.accelerator.process_index * len(episodes)
        updates = self.args.steps_per_generation or 1
        batches = make_batches(episodes, advantages, sizes, self.args, updates, first)
        if self._update.on_policy:
            return [Batch(merge_equal_rows(rows), over) for rows, over in batches]
        if self.args.use_vllm:
            # Log-probabilities of another engine differ slightly from the model's.
            make = self._update.with_old_logprobs
            return [Batch(make(model, rows), over) for rows, over in batches]
        return batches

    def rollout_runner(self, rollout: int) -> EpisodeRunner:
        """Return the runner of a rollout, whose seeds a resumed run repeats."""
        sampling = self.runner.agent.sampling
        seed = self._order.seed(rollout * self._order.groups_per_update)
        return self.runner.copy(sampling=replace(sampling, seed=seed))

    def save_extra_state(self, folder: Path) -> None:
        """Save this rank's rows, if there are further updates on the rollout."""
        if self.state.global_step % self.args.updates_per_rollout:
            save_batches(folder, self.accelerator.process_index, self._sampled, self._batches)

    def load_extra_state(self, folder: Path) -> None:
        """Load the rows of the rollout that the checkpoint interrupted."""
        rank, ranks = self.accelerator.process_index, self.accelerator.num_processes
        self._sampled, self._batches = load_batches(folder, rank, ranks)
