"""GRPO over episodes that are sampled while the trainer steps: every override of TRL's `AsyncGRPOTrainer` is here.

How it sits on trl 1.16. TRL's data loader hands out micro-batches of a stream and fetches one ahead, so
that with staleness 0 it would wait for samples that only the next weights can give. Here the loader only
counts updates; `training_step` takes the groups of one update from the worker, plans its micro-batches on
the main process, hands them to all ranks, and runs each through TRL's step. TRL's loss
(``-min(ratio * A, clip(ratio) * A)``, the ratio against the log-probabilities at sampling) stays; it is
divided by the update's normaliser instead of the micro-batch's tokens. Weight transfer, versions,
metrics and packing are TRL's. `tests/train/test_async_seam.py` guards the private names that are relied on.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import trl.experimental.async_grpo.async_grpo_trainer as trl_async
from accelerate.utils import broadcast_object_list
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers.trainer_utils import get_last_checkpoint
from trl.experimental.async_grpo import AsyncGRPOTrainer
from trl.experimental.async_grpo.packing import TreeRow

from atommem.envs.scoring.records import record_of
from atommem.episode_stats import episode_sums, means
from atommem.errors import ConfigError, OutageError
from atommem.train.async_config import AsyncTrainConfig
from atommem.train.loops.asynchronous.async_planning import plan_micro_batches
from atommem.train.loops.asynchronous.attention import has_flash_attention_3, use_torch_tree_attention
from atommem.train.loops.asynchronous.order import TaskOrder
from atommem.train.loops.asynchronous.reader import GroupReader
from atommem.train.loops.asynchronous.samplers import Sampler
from atommem.train.loops.asynchronous.updates import Group, Sample, make_update
from atommem.train.loops.asynchronous.worker import RolloutWorker
from atommem.train.loops.models import tune_lm_head_for_cpu
from atommem.train.objective.advantages import zero_variance_fraction
from atommem.train.packing.planning import pair_cost
from atommem.train.packing.tree_attention import why_no_tree
from atommem.train.resume.resumable_trainer import ResumableTrainer
from atommem.train.rollout.adapters import check_servable
from atommem.train.rollout.held_out import held_out_jobs, held_out_sampling, report_held_out
from atommem.train.rollout.rollout_trainer import EpisodesHook
from atommem.train.watch.rollout_log import SYNC, WAIT, RolloutLog, rollout_means

ROLLOUT_STATE = "rollout_state.json"
"""Beside each checkpoint, as TRL's own worker has it."""

_TOKEN_MEANS = ("ratio", "kl", "entropy", "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean")


class AsyncMemoryGRPOTrainer(ResumableTrainer, AsyncGRPOTrainer):
    """Trains a policy on whole episodes that a `RolloutWorker` samples meanwhile.

    Args:
        model: Path or hub name of the model.
        args: Settings.
        tasks: Training tasks; what the sampler's environment understands.
        processing_class: The tokenizer.
        make_sampler: Called on the main process with its device.
        on_episodes: Sees the update's number (from 0) and the episodes of every update, on the main process.
        held_out: Tasks to evaluate on, as `eval_strategy` says.
        kwargs: Further arguments of `ResumableTrainer` and `AsyncGRPOTrainer` (settings, peft_config, callbacks,
            optimizers).

    Raises:
        ConfigError: The tasks are too few, the batch is no multiple of the group, or the model cannot be packed.
    """

    _tag_names = ["trl", "async-grpo", "atommem"]  # noqa: RUF012  # as TRL declares it
    args: AsyncTrainConfig
    model_version: int
    _step_trained_tokens: float

    def __init__(
        self,
        model: str,
        args: AsyncTrainConfig,
        tasks: Sequence[Any],
        processing_class: Any,
        make_sampler: Callable[[Any], Sampler],
        on_episodes: EpisodesHook | None = None,
        held_out: Sequence[Any] = (),
        **kwargs: Any,
    ) -> None:
        self.groups_per_update = _groups_per_update(args, len(tasks))
        updates_per_epoch = len(tasks) // self.groups_per_update
        if args.max_steps <= 0:
            args.max_steps = max(1, int(args.num_train_epochs * updates_per_epoch))
        self._updates_per_epoch = updates_per_epoch
        self.tasks = tasks
        self.on_episodes = on_episodes
        self.held_out = held_out
        sampler = make_sampler(args.device) if args.process_index == 0 else None
        worker = None if sampler is None else _make_worker(sampler, tasks, args, self.groups_per_update)
        adapter_only = args.use_vllm and kwargs.get("peft_config") is not None
        # TRL probes a server for adapters where it gets no transfer; other ranks need no more than a stand-in.
        transfer = sampler.weights if sampler is not None else _Elsewhere()
        if args.use_vllm and not adapter_only:
            transfer = None
        # TRL's asynchronous trainer takes no tasks to evaluate on, and without any transformers takes no strategy.
        strategy, args.eval_strategy = args.eval_strategy, "no"
        with _peak_flops_off_gpu():
            super().__init__(
                model=model,
                reward_funcs=_environment_reward,
                args=args,
                train_dataset=Dataset.from_dict({"prompt": [""] * len(tasks)}),
                processing_class=processing_class,
                rollout_worker=worker,
                weight_transfer=transfer,
                **kwargs,
            )
        args.eval_strategy = strategy
        unwrapped = self.accelerator.unwrap_model(self.model)
        if not has_flash_attention_3(self.accelerator.device):
            reason = why_no_tree(unwrapped)
            if reason:
                raise ConfigError(f"{model} cannot be trained asynchronously here: {reason}. Use `atommem train grpo`.")
            use_torch_tree_attention()
        tune_lm_head_for_cpu(self.accelerator.device.type)
        if adapter_only:
            check_servable(unwrapped)
            self._lora_sync = True
            # A server may have outlived another run, and keeps the adapters that it has by their names.
            self._lora_name = f"atommem-{secrets.token_hex(4)}"
        self._pair_cost = pair_cost(self.model.config.get_text_config())
        self._rollout_log = RolloutLog([] if sampler is None else map(sampler.runner.environments.describe, tasks))
        self._reader = None
        if worker is not None:
            self._reader = GroupReader(
                worker,
                lambda: self.model_version,
                args.max_staleness,
                args.heartbeat_stale_after_s,
                self._metrics["train"],
                lambda: self.stop_request.requested,
            )
            # TRL reads and resets the reader's `wait_s` after each update.
            self._rollout_dataset = self._reader
        self._collate = trl_async.DataCollatorForRollout(
            self.processing_class.pad_token_id,
            groups_trained=self._trained_groups,
            metrics=self._metrics["train"],
            token_budget=args.token_budget,
        )

    # Data -----------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Counts the updates of an epoch: what an update trains on comes from the worker."""
        updates: Any = [{"update": index} for index in range(self._updates_per_epoch)]
        return DataLoader(updates, batch_size=1)

    def _next_update(self) -> list[dict[str, torch.Tensor]]:
        """This rank's part of the next update: one packed row for each micro-batch, the same number on all ranks."""
        payload: list[Any] = [None]
        outage: OutageError | None = None
        if self._reader is not None:
            try:
                with self._rollout_log.clock.busy(WAIT):
                    groups = self._reader.take(self.groups_per_update, self.state.global_step)
                if len(groups) == self.groups_per_update:
                    payload = [self._plan(groups)]
            except OutageError as error:
                outage = error
            except Exception as error:  # whatever it is, it is raised on every rank: the others wait for this one
                payload = [error]
        self.meet(outage)
        if self.accelerator.num_processes > 1:
            broadcast_object_list(payload)
        if isinstance(payload[0], Exception):
            raise payload[0]
        planned, normalizer = payload[0]
        return [self._pack(micro_batch, normalizer) for micro_batch in planned]

    def _plan(self, groups: Sequence[Group]) -> tuple[list[list[list[Sample]]], float]:
        """For each micro-batch the samples of each rank, and the update's normaliser."""
        self._log_groups(groups)
        args = self.args
        update = make_update(groups, str(args.scale_rewards), args.normalization, args.overlong_filtering)
        planned = plan_micro_batches(
            update.samples, self.accelerator.num_processes, args.token_budget or 1, self._pair_cost
        )
        return planned, update.normalizer

    def _pack(self, micro_batch: Sequence[Sequence[Sample]], normalizer: float) -> dict[str, torch.Tensor]:
        """This rank's row as TRL's collator gives it. Every rank packs its own: a trie is built token by token."""
        row = TreeRow()
        for sample in micro_batch[self.accelerator.process_index]:
            row.add(sample.tree_input())
        packed: dict[str, torch.Tensor] = self._collate([[row]])
        trained = sum(len(sample.logprobs) for part in micro_batch for sample in part)
        packed["global_n_tokens"] = torch.tensor([float(trained)])
        # For throughput only: ranks are balanced.
        packed["global_n_forward_tokens"] = packed["global_n_forward_tokens"] * self.accelerator.num_processes
        packed["normalizer"] = torch.tensor([normalizer])
        return packed

    def _log_groups(self, groups: Sequence[Group]) -> None:
        episodes = [episode for group in groups for episode in group.episodes]
        sums = episode_sums(episodes)
        # In the worker's thread: its clock is running there.
        timed = self.rollout_worker.call(self._rollout_log.sums, episodes, self.rollout_worker.runner.agent.activity)
        summary = means(sums) | rollout_means(timed, 1)
        rewards = [episode.reward for episode in episodes]
        summary["frac_reward_zero_std"] = zero_variance_fraction(rewards, self.args.num_generations)
        self.state.num_input_tokens_seen += int(sums["tokens/prompt"] + sums["tokens/completion"])
        summary["num_tokens"] = float(self.state.num_input_tokens_seen)
        for key, value in summary.items():
            self._metrics["train"][key].append(value)
        self.failed_step(self.state.global_step, episodes)
        if self.on_episodes is not None:
            self.on_episodes(self.state.global_step, episodes)
        self.check_failed_fraction(int(sums["failed"]), len(episodes), self.args.max_failed_fraction)

    # Update ---------------------------------------------------------------------------------------

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """The forward and backward passes of one update; returns this rank's summed loss.

        When no group has variance there is nothing to learn: gradients stay unset, and the optimizer's
        step changes nothing.
        """
        # Also where nothing will be trained: metrics are filed under "train" by this mode.
        model.train()
        micro_batches = self._next_update()
        started = time.perf_counter()
        loss = torch.zeros((), device=self.accelerator.device)
        for index, micro_batch in enumerate(micro_batches):
            last = index == len(micro_batches) - 1
            self.accelerator.gradient_state._set_sync_gradients(last)
            with contextlib.nullcontext() if last else self.accelerator.no_sync(model):
                loss += super().training_step(model, micro_batch, None)
        self._metrics["train"]["seconds/train"].append(time.perf_counter() - started)
        return loss

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """TRL's, over the update's normaliser instead of the micro-batch's tokens."""
        inputs = dict(inputs)
        tokens = inputs["global_n_tokens"]
        inputs["global_n_tokens"] = inputs.pop("normalizer")
        trained = self._step_trained_tokens
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        count = float(tokens[0])
        self._step_trained_tokens = trained + count
        for name in _TOKEN_MEANS:  # a micro-batch counts by its tokens
            values = self._metrics["train"][name]
            values[-1] = (values[-1] * count, count)
        return loss

    def _sync_weight(self) -> None:
        with self._rollout_log.clock.busy(SYNC):
            super()._sync_weight()

    def _sync_weight_lora(self, t0: float) -> tuple[float, float, float]:
        """Publish the adapter under the name of its version; requests in flight keep theirs, nothing pauses."""
        version = self.model_version + 1
        name = f"{self._lora_name}-v{version}"
        folder = Path(self._lora_dir) / name
        model = self.accelerator.unwrap_model(self.model)
        trl_async.save_lora_adapter(model, self.accelerator, self._adapter_name, str(folder))
        saved = time.time()
        outage: OutageError | None = None
        if self.accelerator.is_main_process:
            try:
                self.weight_transfer.publish(name, folder)
                self.rollout_worker.update_model_version(version)
            except OutageError as error:
                outage = error
        self.meet(outage)
        self.model_version = version
        return t0, t0, saved

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
        if self._reader is not None:
            jobs = held_out_jobs(self.args, self.held_out)
            sampling = held_out_sampling(self.args, self.rollout_worker.runner.agent.sampling)
            try:
                episodes = self.rollout_worker.run_beside(jobs, sampling, lambda: self.stop_request.requested)
                pairs = zip(jobs, episodes, strict=False)  # none where the run was asked to stop
                environments = self.rollout_worker.runner.environments
                payload = [
                    [
                        record_of(environments.describe(task), episode, environments.diagnose(task, episode))
                        for (task, _), episode in pairs
                    ]
                ]
            except Exception as error:  # whatever it is, it ends the run on every rank
                broken = error
        self.meet(broken)
        if self.accelerator.num_processes > 1:
            broadcast_object_list(payload)
        return report_held_out(self, payload[0], metric_key_prefix)

    # Position -------------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """As TRL's; a resumed run goes on with the groups that the stopped one had not trained on."""
        if resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(self.args.output_dir)
        if isinstance(resume_from_checkpoint, str):
            self._resume_position(Path(resume_from_checkpoint) / ROLLOUT_STATE)
        return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)

    def _resume_position(self, path: Path) -> None:
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} cannot be read ({error}): resume from another checkpoint.") from error
        self.model_version = state["model_version"]
        if self._reader is not None:
            self._reader.resume_at(state["prompt_index"], state["pending"])
            self.rollout_worker.resume_at(
                state["prompt_index"], state["pending"], state["updates"] * self.groups_per_update
            )
            self.rollout_worker.version = self.model_version

    def save_extra_state(self, folder: Path) -> None:
        """What the worker has yet to sample, where TRL's own worker would have left it."""
        if self._reader is not None:
            following, pending = self._reader.position(self.state.global_step)
            state = {
                "prompt_index": following,
                "pending": pending,
                "updates": self.state.global_step,
                "model_version": self.model_version,
            }
            (folder / ROLLOUT_STATE).write_text(json.dumps(state) + "\n", encoding="utf-8")


class _Elsewhere:
    """The weight transfer of a process that is not the main one: TRL never calls it there."""


def _make_worker(
    sampler: Sampler, tasks: Sequence[Any], args: AsyncTrainConfig, groups_per_update: int
) -> RolloutWorker:
    return RolloutWorker(
        loop=sampler.loop,
        runner=sampler.runner,
        tasks=tasks,
        order=TaskOrder(len(tasks), groups_per_update, args.shuffle_dataset, args.seed),
        group_size=args.num_generations,
        groups_per_version=groups_per_update * args.weight_sync_steps,
        max_staleness=args.max_staleness,
        total=groups_per_update * args.max_steps,
        max_in_flight=None if args.max_inflight_tasks < 0 else args.max_inflight_tasks,
    )


def _groups_per_update(args: AsyncTrainConfig, tasks: int) -> int:
    episodes = args.per_device_train_batch_size * args.world_size
    if episodes % args.num_generations:
        raise ConfigError(
            f"{episodes} episodes per update (per_device_train_batch_size x processes) are no multiple of "
            f"num_generations {args.num_generations}: change one of them."
        )
    groups = episodes // args.num_generations
    if tasks < groups:
        raise ConfigError(
            f"{tasks} tasks are fewer than the {groups} groups of one update: give more data, a smaller "
            "per_device_train_batch_size or a larger num_generations."
        )
    return groups


@contextlib.contextmanager
def _peak_flops_off_gpu() -> Iterator[None]:
    """TRL looks up the GPU's peak FLOPs for its utilisation metrics, without asking whether there is one."""
    if torch.cuda.is_available():
        yield
        return
    original = trl_async.get_peak_flops_per_device
    trl_async.get_peak_flops_per_device = lambda accelerator, dtype: None
    try:
        yield
    finally:
        trl_async.get_peak_flops_per_device = original


def _environment_reward(**_: Any) -> list[float]:
    """TRL wants a reward function; the environment scores episodes, so this one is never called."""
    raise AssertionError("episodes are scored by their environment")
