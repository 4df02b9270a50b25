"""GRPO over episodes that are sampled while the trainer steps, on TRL's `AsyncGRPOTrainer`.

How it sits on trl 1.16. TRL makes the model, the optimizer and the logs; its weight transfer and versions stay. Its
data loader hands out micro-batches of a stream and fetches one ahead, so that with staleness 0 it would wait for
samples that only the next weights can give. Here the loader only counts updates: `training_step` takes the groups of
one update from the worker, and trains on their rows as on-policy training does (`atommem.train.loops.update_step`), but
with the ratio against the log-probabilities at sampling. `tests/train/loops/test_trl_seam.py` guards
the private names that are relied on.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar
from unittest.mock import patch

import torch
import trl.experimental.async_grpo.async_grpo_trainer as trl_async
from accelerate.utils import broadcast_object_list
from datasets import Dataset
from torch.utils.data import DataLoader
from trl.distributed import DistributedBackend
from trl.experimental.async_grpo import AsyncGRPOTrainer
from trl.trainer.utils import add_fused_lm_head, create_model_from_path

from atommem.config import MemoryConfig
from atommem.episode_runner import EpisodeRunner
from atommem.errors import BudgetSpentError, ConfigError, OutageError
from atommem.train.async_config import AsyncTrainConfig
from atommem.train.loops.asynchronous.worker import Group, RolloutWorker
from atommem.train.loops.models import shard_reference, tune_lm_head_for_cpu
from atommem.train.loops.update_step import Batch, UpdateStep, environment_reward, updates_of_epoch
from atommem.train.objective.advantages import group_advantages, zero_variance_fraction
from atommem.train.objective.loss import Objective
from atommem.train.objective.sequences import EpisodeSize
from atommem.train.resume.resumable_trainer import ResumableTrainer
from atommem.train.rollout.adapters import check_servable
from atommem.train.rollout.held_out import (
    held_out_jobs,
    held_out_records,
    held_out_sampling,
    report_held_out,
)
from atommem.train.rollout.rollout_trainer import EpisodesHook
from atommem.train.rollout.server_backend import weight_sync
from atommem.train.rollout.task_order import TaskOrder
from atommem.train.train_config import EpisodeConfig
from atommem.train.watch.rollout_log import SYNC, WAIT, RolloutLog, rollout_means

Result = TypeVar("Result")


class AsyncMemoryGRPOTrainer(ResumableTrainer, AsyncGRPOTrainer):
    """Trains a policy on whole episodes that a `RolloutWorker` samples meanwhile.

    Args:
        model: Path or hub name of the model.
        args: Settings.
        tasks: Training tasks; what the runner's environment understands.
        processing_class: The tokenizer.
        make_runner: Makes what runs the episodes; called on the main process with its device.
        on_episodes: Sees the update's number (from 0) and the episodes of every update, on the main process.
        held_out: Tasks to evaluate on, as `eval_strategy` says.
        kwargs: Further arguments of `ResumableTrainer` and `AsyncGRPOTrainer` (settings, peft_config, callbacks,
            optimizers).

    Raises:
        ConfigError: The tasks are too few, or the batch is no multiple of the group.
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
        held_out: Sequence[Any] = (),
        **kwargs: Any,
    ) -> None:
        episodes = args.per_device_train_batch_size * args.world_size
        if episodes % args.num_generations:
            raise ConfigError(
                f"{episodes} episodes per update (per_device_train_batch_size x processes) are no multiple of "
                f"num_generations {args.num_generations}: change one of them."
            )
        self._order = TaskOrder(
            len(tasks), episodes // args.num_generations, args.shuffle_dataset, args.seed
        )
        if args.max_steps <= 0:
            args.max_steps = max(1, int(args.num_train_epochs * self._order.updates_per_epoch))
        self.tasks = tasks
        self.on_episodes = on_episodes
        self.held_out = held_out
        runner = make_runner(args.device) if args.process_index == 0 else None
        worker = None
        if runner is not None:
            count = self._order.groups_per_update
            worker = RolloutWorker(
                runner=runner,
                tasks=tasks,
                order=self._order,
                group_size=args.num_generations,
                groups_per_version=count * args.weight_sync_steps,
                max_staleness=args.max_staleness,
                total=count * args.max_steps,
                first=lambda: self.state.global_step * count,
                max_in_flight=None if args.max_inflight_tasks < 0 else args.max_inflight_tasks,
            )
        # One adapter more than may be asked for: a version is loaded before the oldest one goes.
        lora, kept = kwargs.get("peft_config") is not None, args.max_staleness + 2
        self._weights = weight_sync(args, lora, kept) if args.use_vllm else None
        # TRL's asynchronous trainer takes no tasks to evaluate on, and without any transformers takes no strategy.
        strategy, args.eval_strategy = args.eval_strategy, "no"
        with _peak_flops_off_gpu():
            super().__init__(
                model=model,
                reward_funcs=environment_reward,
                args=args,
                train_dataset=Dataset.from_dict({"prompt": [""] * len(tasks)}),
                processing_class=processing_class,
                rollout_worker=worker,
                # TRL would make its own, for one server, where it gets none.
                weight_transfer=runner.agent.policy
                if runner and self._weights is None
                else _Elsewhere(),
                **kwargs,
            )
        args.eval_strategy = strategy
        tune_lm_head_for_cpu(self.accelerator.device.type)
        self._dist = DistributedBackend(self.accelerator)
        if args.use_vllm and lora:
            check_servable(self.accelerator.unwrap_model(self.model))
        self._update = UpdateStep(
            self.accelerator,
            self.model,
            Objective.of(args),
            args.token_budget or 1,
            self.processing_class.pad_token_id,
            on_policy=False,
            reference=self._reference(model) if args.beta and not lora else None,
        )
        agent = None if runner is None else runner.agent
        described = [] if agent is None else map(agent.environments.describe, tasks)
        self._rollout_log = RolloutLog(described, MemoryConfig() if agent is None else agent.memory)

    def _reference(self, model: str) -> Any:
        """The model of the KL term where all weights are trained, made as `GRPOTrainer` makes its own."""
        settings = {
            "dtype": self.model.dtype,
            **(self.args.model_init_kwargs or {}),
            "device_map": None,
        }
        reference = create_model_from_path(model, **settings)
        add_fused_lm_head(reference, temperature=self.args.temperature)
        if self.is_fsdp_enabled:
            return shard_reference(reference, self.accelerator)
        return self.accelerator.prepare_model(reference, evaluation_mode=True)

    # Data -----------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Counts the updates of an epoch: what an update trains on comes from the worker."""
        return updates_of_epoch(self._order.updates_per_epoch)

    def training_step(
        self, model: Any, inputs: Any, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """One update: its groups, then the forward and backward passes; returns this rank's loss."""
        # Also where nothing will be trained: TRL files its metrics under "train" by this mode.
        model.train()
        batch = self._next_batch()
        started = time.perf_counter()
        loss, log = self._update.run(model, batch)
        self.check_loss(log.pop("loss", 0.0))
        self.log_with_update(log | {"seconds/train": time.perf_counter() - started})
        return loss

    def _next_batch(self) -> Batch:
        """The rows of the next update, all of them on the main process."""
        batch, payload = Batch([], 0.0), list[Any]([None])
        broken: OutageError | BudgetSpentError | None = None
        if self.rollout_worker is not None:
            try:
                count, update = self._order.groups_per_update, self.state.global_step
                numbers = range(update * count, (update + 1) * count)
                with self._rollout_log.clock.busy(WAIT):
                    groups = self.rollout_worker.take(
                        numbers, self.args.heartbeat_stale_after_s, self._stopped
                    )
                if len(groups) == count:
                    self._log_groups(groups)
                    batch = batch_of(groups, self.args)
                    payload = [batch.normalizer]
            except (OutageError, BudgetSpentError) as error:
                broken = error
            except (
                Exception
            ) as error:  # whatever it is, it is raised on every rank: the others wait for this one
                payload = [error]
        self.meet(broken)
        broadcast_object_list(payload)
        if isinstance(payload[0], Exception):
            raise payload[0]
        return Batch(batch.rows, payload[0])

    def _stopped(self) -> bool:
        return self.stop_request.requested

    def _log_groups(self, groups: Sequence[Group]) -> None:
        episodes = [episode for group in groups for episode in group.episodes]
        # In the worker's thread: its clock is running there.
        sums = self.rollout_worker.call(
            self._rollout_log.sums, episodes, self.rollout_worker.runner.agent.activity
        )
        summary = rollout_means(sums, 1)
        rewards = [episode.reward for episode in episodes]
        summary["frac_reward_zero_std"] = zero_variance_fraction(rewards, self.args.num_generations)
        self.state.num_input_tokens_seen += int(sums["tokens/prompt"] + sums["tokens/completion"])
        summary["num_tokens"] = float(self.state.num_input_tokens_seen)
        self.log_with_update(summary)
        if stale := [
            self.model_version - v for group in groups for steps in group.versions for v in steps
        ]:
            self._metrics["train"]["sample/staleness_mean"].append(
                (float(sum(stale)), float(len(stale)))
            )
            self._metrics["train"]["sample/staleness_max"].append(float(max(stale)))
        self.failed_step(self.state.global_step, episodes)
        if self.on_episodes is not None:
            self.on_episodes(self.state.global_step, episodes)
        self.check_failed_fraction(
            int(sums["failed"]), len(episodes), self.args.max_failed_fraction
        )

    def _log_step_metrics(self) -> None:
        """TRL's accounting of its stream of micro-batches: there is none."""

    def _sync_weight(self) -> None:
        """Publish the weights as their next version. Servers go on meanwhile with requests for an older adapter."""
        with self._rollout_log.clock.busy(SYNC):
            if self._weights is None:
                super()._sync_weight()
                return
            outage: OutageError | None = None
            try:
                self._weights.publish(
                    self,
                    None
                    if self.rollout_worker is None
                    else self.rollout_worker.runner.agent.policy,
                )
            except OutageError as error:
                outage = error
            self.meet(outage)
            self.model_version += 1
            if self.rollout_worker is not None:
                self.rollout_worker.update_model_version(self.model_version)

    def run_async(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine in the event loop that the episodes run in; on the main process."""
        return self.rollout_worker.loop.spawn(work).result()

    # Evaluation -----------------------------------------------------------------------------------

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Episodes on the held-out tasks with the weights that were published last, beside those of training.

        Arguments and result are those of `RolloutTrainer.evaluate`.

        Raises:
            TrainingInterrupted, RolloutFailedError: As in training.
        """
        payload: list[Any] = [[]]
        broken: Exception | None = None
        if self.rollout_worker is not None:
            jobs = held_out_jobs(self.args, self.held_out)
            sampling = held_out_sampling(self.args, self.rollout_worker.runner.agent.sampling)
            try:
                episodes = self.rollout_worker.run_beside(jobs, sampling, self._stopped)
                payload = [
                    held_out_records(self.rollout_worker.runner.environments, jobs, episodes)
                ]
            except Exception as error:  # whatever it is, it ends the run on every rank
                broken = error
        self.meet(broken)
        broadcast_object_list(payload)
        return report_held_out(self, payload[0], metric_key_prefix)


def batch_of(groups: Sequence[Group], args: EpisodeConfig) -> Batch:
    """One row per step of the groups of an update that have variance; those without count in the normaliser."""
    episodes = [episode for group in groups for episode in group.episodes]
    rewards = [episode.reward for episode in episodes]
    advantages = group_advantages(rewards, len(groups[0].episodes), str(args.scale_rewards))
    sizes = [EpisodeSize.of(episode, args.overlong_filtering) for episode in episodes]
    return Batch.of(args, episodes, advantages, sizes)


class _Elsewhere:
    """TRL's weight transfer where it transfers nothing: on other processes, and where a `WeightSync` does it."""

    def init_weight_transfer(self) -> None:
        """Called as training begins."""

    def destroy(self) -> None:
        """Called as it ends."""


def _peak_flops_off_gpu() -> contextlib.AbstractContextManager[Any]:
    """TRL looks up the GPU's peak FLOPs for its utilisation metrics, without asking whether there is one."""
    if torch.cuda.is_available():
        return contextlib.nullcontext()
    return patch.object(trl_async, "get_peak_flops_per_device", lambda accelerator, dtype: None)
