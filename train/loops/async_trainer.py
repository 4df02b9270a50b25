"""GRPO over episodes that are sampled while the trainer steps, on transformers' `Trainer`.

Its data loader only counts updates. `training_step` publishes the weights, takes the groups of an
update from the worker, and trains on their rows with the ratio to the sampled log-probabilities.
"""

import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

import torch
from accelerate.utils import broadcast_object_list
from peft import PeftModel

from atommem.episode import Episode
from atommem.errors import ConfigError
from atommem.policy.contract import Completion
from atommem.policy.decoding import Row as DecodeRow
from atommem.policy.local import LocalPolicy
from atommem.rollout import EpisodeRunner
from atommem.train.episode_logs import WAIT, RolloutLog
from atommem.train.loops.episode_trainer import EpisodeTrainer
from atommem.train.loops.models import load_model
from atommem.train.loops.rollout_worker import Group, RolloutWorker
from atommem.train.loops.update_step import Batch, batch_of
from atommem.train.objective.rows import has_variance
from atommem.train.rollout.backends import Backend, make_local_policy
from atommem.train.rollout.rollouts import Rollouts, TaskOrder
from atommem.train.rollout.server_backend import make_server_backend, make_server_pool
from atommem.train.rollout.weight_sync import check_servable, named_weights
from atommem.train.train_config import AsyncTrainConfig

Result = TypeVar("Result")


class AsyncMemoryGRPOTrainer(EpisodeTrainer):
    """Trains a policy on whole episodes that a `RolloutWorker` samples meanwhile.

    `make_runner` makes the episode runner on the main process, given its device.
    """

    args: AsyncTrainConfig

    def __init__(
        self,
        model: str,
        args: AsyncTrainConfig,
        tasks: Sequence[Any],
        processing_class: Any,
        make_runner: Callable[[Any], EpisodeRunner],
        **kwargs: Any,
    ) -> None:
        episodes = args.per_device_train_batch_size * args.world_size
        if episodes % args.num_generations:
            raise ConfigError(
                f"num_generations={args.num_generations}: it does not divide the {episodes} "
                "episodes of an update (per_device_train_batch_size x processes). Change one."
            )
        groups = episodes // args.num_generations
        self._order = TaskOrder(len(tasks), groups, args.shuffle_dataset, args.seed)
        lora = kwargs.get("peft_config") is not None
        if args.beta and not lora:
            raise ConfigError(
                f"beta={args.beta}: asynchronous training has a KL term with an adapter only. Set "
                "use_peft: true or beta: 0."
            )
        update = {"token_budget": args.token_budget, "on_policy": False}
        super().__init__(model, args, tasks, processing_class, update=update, **kwargs)
        # One adapter more than requests may name: a version is loaded before the oldest one goes.
        kept = args.max_staleness + 2
        runner = make_runner(args.device) if args.process_index == 0 else None
        self.backend = CopyBackend(runner)
        if args.use_vllm:
            self.backend = make_server_backend(args, runner, lora, kept)
        self.model_version = 0  # how often the weights were published
        self._published = -1  # by this many updates
        self._rollout_log = RolloutLog(runner and runner.agent, tasks)
        self.rollout_worker: Any = None
        if runner is not None:
            self.rollout_worker = RolloutWorker(
                runner=runner,
                tasks=tasks,
                order=self._order,
                group_size=args.num_generations,
                groups_per_version=groups * args.weight_sync_steps,
                max_staleness=args.max_staleness,
                close=self.backend.close,
            )
        if args.use_vllm and lora:
            check_servable(self.accelerator.unwrap_model(self.model))

    def close(self) -> None:
        if self.rollout_worker is not None:
            self.rollout_worker.stop()

    def training_step(
        self, model: Any, inputs: Any, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        model.train()
        if not self.model_version or self.state.global_step % self.args.weight_sync_steps == 0:
            self.publish()
        return self.run_update(model, self._next_batch())

    def _next_batch(self) -> Batch:
        batch, broken = Batch([], 0.0), None
        if self.rollout_worker is not None:
            try:
                numbers = self._numbers(self.state.global_step, self.state.global_step + 1)
                stop, stale_after = self.stop_request, self.args.heartbeat_stale_after_s
                with self._rollout_log.clock.busy(WAIT):
                    groups = self.rollout_worker.take(numbers, stale_after, lambda: stop.requested)
                if len(groups) == len(numbers):
                    episodes = [episode for group in groups for episode in group.episodes]
                    self._log_groups(groups, episodes)
                    batch, shares = batch_of(episodes, self.args)
                    self.log_with_update(shares)
            except Exception as error:  # the other ranks wait for this one
                broken = error
        self.sync_stop(broken)
        (over,) = broadcast_object_list([batch.normalizer])
        return Batch(batch.rows, over)

    def _numbers(self, first: int, end: int) -> range:
        """Return the numbers of the groups of some updates."""
        count = self._order.groups_per_update
        return range(first * count, end * count)

    def _log_groups(self, groups: Sequence[Group], episodes: Sequence[Episode]) -> None:
        async def sums_in_loop() -> dict[str, float]:
            return self._rollout_log.sums(episodes)  # where the clock is running

        flat = [not has_variance([e.reward for e in group.episodes]) for group in groups]
        log = {"frac_reward_zero_std": sum(flat) / len(flat)}
        versions = [v for group in groups for steps in group.versions for v in steps]
        if stale := [self.model_version - version for version in versions]:
            log["sample/staleness_mean"] = sum(stale) / len(stale)
            log["sample/staleness_max"] = float(max(stale))
        rewards = [episode.reward for episode in episodes]
        self.log_rollout([self.run_async(sums_in_loop())], episodes, rewards, log)

    def publish(self) -> None:
        """Publish new weights as their next version, and start the worker; collective."""
        first, end = self.state.global_step, self.state.max_steps
        if self._published != first:  # it may be, for an evaluation
            super().publish()
            self._published = first
            self.model_version += 1
            if self.rollout_worker is not None:
                self.rollout_worker.update_model_version(self.model_version)
        if self.rollout_worker is not None and end:  # not in an evaluation before training
            self.rollout_worker.start(self._numbers(first, end))

    def run_async(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.rollout_worker.spawn(work).result()


class CopyPolicy(LocalPolicy):
    """A second model of this process, whose weights change between two sampling batches."""

    _lock = threading.Lock()  # there is one in a process

    def _sample(self, rows: list[DecodeRow]) -> list[Completion]:
        with self._lock:
            return super()._sample(rows)

    @torch.no_grad()
    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        with self._lock:
            for name, tensor in weights:
                self.model.get_parameter(name).copy_(tensor)


class CopyBackend(Backend):
    """Copies the trained weights, with a merged adapter, into the main process's `CopyPolicy`."""

    @torch.no_grad()
    def publish(self, trainer: Any) -> None:
        model = trainer.accelerator.unwrap_model(trainer.model)
        adapted = isinstance(model, PeftModel)
        # Merging and unmerging in 16 bits would change them a little, every time.
        before = [(p, p.clone()) for p in model.parameters() if adapted and p.element_size() == 2]
        if adapted:
            model.merge_adapter()
        try:
            weights = named_weights(trainer)
            if self.policy is None:
                deque(weights, maxlen=0)  # gathering a parameter takes all ranks
            else:
                self.policy.load_weights(weights)
        finally:
            if adapted:
                model.unmerge_adapter()
            for parameter, value in before:
                parameter.copy_(value)


def make_runner(rollouts: Rollouts, model_path: str, device: Any) -> EpisodeRunner:
    """Make the runner of the main process, on servers or on a copy of the model on `device`."""
    args: Any = rollouts.args
    if args.use_vllm:
        return rollouts.runner(make_server_pool(rollouts, timeout=args.request_timeout))
    model = load_model(model_path, args).to(device)
    return rollouts.runner(make_local_policy(rollouts, model, CopyPolicy))
