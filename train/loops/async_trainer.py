"""GRPO over episodes that are sampled while the trainer steps, on TRL's `AsyncGRPOTrainer`.

How it uses trl 1.16: TRL makes the model, the optimizer and the logs, and counts weight versions.
Its data loader prefetches micro-batches of a stream, so with staleness 0 it would wait for samples
that need the next weights. Here the loader only counts updates: `training_step` takes the groups of
one update from the worker and trains on their rows (`atommem.train.loops.update_step`), with the
ratio against the log-probabilities at sampling.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar
from unittest.mock import patch

import torch
import trl.experimental.async_grpo.async_grpo_trainer as trl_async
from accelerate.utils import broadcast_object_list
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM
from trl.distributed import DistributedBackend
from trl.experimental.async_grpo import AsyncGRPOTrainer

from atommem.config import MemoryConfig
from atommem.errors import BudgetSpentError, ConfigError, OutageError
from atommem.policy.contract import Completion
from atommem.policy.decoding import Row as DecodeRow
from atommem.policy.local import LocalPolicy
from atommem.rollout import EpisodeRunner
from atommem.train.async_config import AsyncTrainConfig
from atommem.train.episode_logs import SYNC, WAIT, EpisodesHook, RolloutLog
from atommem.train.loops.episode_trainer import EpisodeTrainer
from atommem.train.loops.models import tune_lm_head_for_cpu
from atommem.train.loops.rollout_worker import Group, RolloutWorker
from atommem.train.loops.update_step import (
    Batch,
    UpdateStep,
    environment_reward,
    policy_loss,
    update_counter,
)
from atommem.train.objective.advantages import group_advantages, has_variance
from atommem.train.objective.rows import (
    EpisodeSize,
    advantages_of_steps,
    episode_rows,
    normalizer,
)
from atommem.train.objective.shares import gradient_shares
from atommem.train.rollout.rollouts import Rollouts, TaskOrder
from atommem.train.rollout.server_backend import make_server_pool, make_weight_sync
from atommem.train.rollout.weight_sync import check_servable

Result = TypeVar("Result")


class AsyncMemoryGRPOTrainer(EpisodeTrainer, AsyncGRPOTrainer):
    """Trains a policy on whole episodes that a `RolloutWorker` samples meanwhile.

    Arguments are those of `MemoryGRPOTrainer`, but `make_runner` makes the episode runner on the
    main process, given its device.
    """

    _tag_names = ["trl", "async-grpo", "atommem"]  # noqa: RUF012  # as TRL declares it
    args: AsyncTrainConfig
    model_version: int

    def __init__(
        self,
        model: str,
        args: AsyncTrainConfig,
        tasks: Sequence[Any],
        processing_class: Any,
        make_runner: Callable[[Any], EpisodeRunner],
        on_episodes: EpisodesHook | None = None,
        **kwargs: Any,
    ) -> None:
        self.args = args
        self._rollout_log = RolloutLog([], MemoryConfig())
        episodes = args.per_device_train_batch_size * args.world_size
        if episodes % args.num_generations:
            raise ConfigError(
                f"num_generations={args.num_generations}: it does not divide the {episodes} "
                "episodes of an update (per_device_train_batch_size x processes). Change one."
            )
        groups = episodes // args.num_generations
        self._order = TaskOrder(len(tasks), groups, args.shuffle_dataset, args.seed)
        if args.max_steps <= 0:
            args.max_steps = max(1, int(args.num_train_epochs * self._order.updates_per_epoch))
        self.tasks = tasks
        self.on_episodes = on_episodes
        lora = kwargs.get("peft_config") is not None
        if args.beta and not lora:
            raise ConfigError(
                f"beta={args.beta}: asynchronous training has a KL term with an adapter only. Set "
                "use_peft: true or beta: 0."
            )
        # One adapter more than requests may name: a version is loaded before the oldest one goes.
        kept = args.max_staleness + 2
        self._weight_sync = make_weight_sync(args, lora, kept) if args.use_vllm else None
        worker = self._make_worker(make_runner(args.device)) if args.process_index == 0 else None
        transfer: Any = _NoTransfer()  # TRL would make its own for one server
        if worker is not None and self._weight_sync is None:
            transfer = worker.runner.agent.policy
        # TRL looks up the peak FLOPs of a GPU.
        peak = patch.object(trl_async, "get_peak_flops_per_device", lambda *_: None)
        with nullcontext() if torch.cuda.is_available() else peak:
            super().__init__(
                model=model,
                reward_funcs=environment_reward,
                args=args,
                train_dataset=Dataset.from_dict({"prompt": [""] * len(tasks)}),
                processing_class=processing_class,
                rollout_worker=worker,
                weight_transfer=transfer,
                **kwargs,
            )
        tune_lm_head_for_cpu(self.accelerator.device.type)
        self._dist = DistributedBackend(self.accelerator)
        if args.use_vllm and lora:
            check_servable(self.accelerator.unwrap_model(self.model))
        self._update = UpdateStep(
            self.accelerator,
            self.model,
            policy_loss(args),
            args.token_budget or 1,
            self.processing_class.pad_token_id,
            on_policy=False,
        )

    def _make_worker(self, runner: EpisodeRunner) -> RolloutWorker:
        args, groups = self.args, self._order.groups_per_update
        self._rollout_log = RolloutLog(
            map(runner.agent.factory.describe, self.tasks), runner.agent.memory
        )
        return RolloutWorker(
            runner=runner,
            tasks=self.tasks,
            order=self._order,
            group_size=args.num_generations,
            groups_per_version=groups * args.weight_sync_steps,
            max_staleness=args.max_staleness,
            total=groups * args.max_steps,
            first=lambda: self.state.global_step * groups,
            max_in_flight=None if args.max_inflight_tasks < 0 else args.max_inflight_tasks,
        )

    # Updates ------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return a loader that counts the updates of an epoch."""
        return update_counter(self._order.updates_per_epoch)

    def training_step(
        self, model: Any, inputs: Any, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Run one update; returns this rank's loss."""
        model.train()  # TRL files metrics under "train" by this mode
        return self.run_update(model, self._next_batch())

    def _next_batch(self) -> Batch:
        """Make the rows of the next update, all of them on the main process; collective."""
        batch, payload = Batch([], 0.0), list[Any]([None])
        broken: Exception | None = None
        if self.rollout_worker is not None:
            try:
                count, update = self._order.groups_per_update, self.state.global_step
                numbers = range(update * count, (update + 1) * count)
                stale_after = self.args.heartbeat_stale_after_s
                with self._rollout_log.clock.busy(WAIT):
                    groups = self.rollout_worker.take(numbers, stale_after, self._is_stopped)
                if len(groups) == count:
                    self._log_groups(groups)
                    batch, shares = batch_of(groups, self.args)
                    self.log_with_update(shares)
                    payload = [batch.normalizer]
            except (OutageError, BudgetSpentError) as error:
                broken = error
            except Exception as error:  # raised on every rank below: the others wait for this one
                payload = [error]
        self.sync_stop(broken)
        broadcast_object_list(payload)
        if isinstance(payload[0], Exception):
            raise payload[0]
        return Batch(batch.rows, payload[0])

    def _is_stopped(self) -> bool:
        return self.stop_request.requested

    def _log_groups(self, groups: Sequence[Group]) -> None:
        episodes = [episode for group in groups for episode in group.episodes]
        activity = self.rollout_worker.runner.agent.activity

        async def sums_in_loop() -> dict[str, float]:
            return self._rollout_log.sums(episodes, activity)  # where the clock is running

        flat = [not has_variance([e.reward for e in group.episodes]) for group in groups]
        log = {"frac_reward_zero_std": sum(flat) / len(flat)}
        versions = [v for group in groups for steps in group.versions for v in steps]
        if stale := [self.model_version - version for version in versions]:
            log["sample/staleness_mean"] = sum(stale) / len(stale)
            log["sample/staleness_max"] = float(max(stale))
        rewards = [episode.reward for episode in episodes]
        self.log_rollout([self.run_async(sums_in_loop())], episodes, rewards, log)

    def _log_step_metrics(self) -> None:
        """Do nothing: TRL's metrics are of its stream of micro-batches."""

    def _sync_weight(self) -> None:
        """Publish the weights as their next version; collective."""
        with self._rollout_log.clock.busy(SYNC):
            if self._weight_sync is None:
                super()._sync_weight()
                return
            worker, outage = self.rollout_worker, None
            try:
                self._weight_sync.publish(self, worker and worker.runner.agent.policy)
            except OutageError as error:
                outage = error
            self.sync_stop(outage)
            self.model_version += 1
            if worker is not None:
                worker.update_model_version(self.model_version)

    def run_async(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine in the event loop of the episodes, on the main process."""
        return self.rollout_worker.spawn(work).result()


def batch_of(groups: Sequence[Group], args: AsyncTrainConfig) -> tuple[Batch, dict[str, float]]:
    """Make the batch of the groups of one update; also returns its `gradient_shares`."""
    episodes = [episode for group in groups for episode in group.episodes]
    rewards = [episode.reward for episode in episodes]
    advantages = group_advantages(rewards, args.num_generations, str(args.scale_rewards))
    sizes = [EpisodeSize.of(episode, args.overlong_filtering) for episode in episodes]
    rows = episode_rows(
        episodes,
        advantages_of_steps(advantages, episodes),
        args.normalization,
        args.overlong_filtering,
        with_kl=args.beta != 0,
    )
    batch = Batch(rows, normalizer(sizes, args.normalization, args.max_completion_length))
    return batch, gradient_shares(sizes, advantages, args.normalization)


class CopyPolicy(LocalPolicy):
    """A second model of this process, and TRL's ``WeightTransferProtocol`` into it.

    It has the parameters of the trained model (an adapter arrives merged), which are replaced
    between two sampling batches.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lock = threading.Lock()

    def _sample(self, rows: list[DecodeRow]) -> list[Completion]:
        with self._lock:
            return super()._sample(rows)

    def init_weight_transfer(self) -> None: ...

    def pause(self) -> None:
        """Wait for the running batch, and start no other."""
        self._lock.acquire()

    @torch.no_grad()
    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Copy every ``(name, tensor)``."""
        for name, tensor in iterator:
            self.model.get_parameter(name).copy_(tensor)

    def resume(self) -> None:
        """Sample again, with the new weights."""
        self._lock.release()

    def destroy(self) -> None:
        """Let sampling end, also after an aborted transfer."""
        if self._lock.locked():
            self._lock.release()


class _NoTransfer:
    """TRL's weight transfer on other processes, and where `make_weight_sync` does the work."""

    def init_weight_transfer(self) -> None: ...

    def destroy(self) -> None: ...


def make_runner(rollouts: Rollouts, model_path: str, device: Any) -> EpisodeRunner:
    """Make the runner of the main process, on servers or on a copy of the model on `device`."""
    args: Any = rollouts.args
    if args.use_vllm:
        return rollouts.runner(make_server_pool(rollouts, timeout=args.request_timeout))
    loading = {"dtype": args.dtype, **(args.model_init_kwargs or {})}
    model: Any = AutoModelForCausalLM.from_pretrained(model_path, **loading)
    copy = CopyPolicy(
        model.to(device),
        rollouts.tokenizer,
        max_batch_size=args.rollout_batch_size,
        max_batch_tokens=args.rollout_batch_tokens,
    )
    return rollouts.runner(copy)
