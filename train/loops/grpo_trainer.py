"""GRPO over whole episodes on TRL's `GRPOTrainer`.

How it sits on trl 1.16. TRL makes the models (fused LM head, adapter, reference), the optimizer and the logs. Two of
its methods are replaced: the data loader only counts updates, and `training_step` is one on-policy update. It runs
the update's episodes (`atommem.train.rollout.rollout_trainer`), turns every step of theirs into a row, and leaves the
rows to `atommem.train.loops.update_step`. The loss is ours (`atommem.train.objective.loss`), not TRL's.
`tests/train/loops/test_trl_seam.py` guards the private names that are relied on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from trl import GRPOTrainer

from atommem.episode import Episode
from atommem.train.loops.models import tune_lm_head_for_cpu
from atommem.train.loops.update_step import DIFFERENCE, Batch, UpdateStep, environment_reward, updates_of_epoch
from atommem.train.objective.advantages import group_advantages, zero_variance_fraction
from atommem.train.objective.loss import Objective
from atommem.train.objective.sequences import EpisodeSize, episode_rows, merge_equal_rows, normalizer
from atommem.train.rollout.backend import Backend
from atommem.train.rollout.dynamic_sampling import replacement_tasks
from atommem.train.rollout.rollout_trainer import EpisodesHook, RolloutTrainer
from atommem.train.rollout.task_order import TaskOrder
from atommem.train.train_config import TrainConfig


class MemoryGRPOTrainer(RolloutTrainer, GRPOTrainer):
    """Trains a policy on whole episodes.

    Args:
        model: A model, or the path or hub name of one.
        args: Settings.
        tasks: Training tasks; what the runner's environment understands.
        processing_class: The tokenizer.
        make_backend: Gets the training model (unwrapped, with its adapter) and returns what samples
            episodes from its weights.
        on_episodes: Sees the episodes of every update.
        held_out: Tasks to evaluate on, as `eval_strategy` says.
        kwargs: Further arguments of `ResumableTrainer` and `GRPOTrainer` (settings, failed_step, peft_config,
            quantization_config, callbacks, optimizers).

    Raises:
        ConfigError: There are fewer tasks than one update needs.
    """

    _tag_names = ["trl", "grpo", "atommem"]  # noqa: RUF012  # as TRL declares it
    args: TrainConfig

    def __init__(
        self,
        model: Any,
        args: TrainConfig,
        tasks: Sequence[Any],
        processing_class: Any,
        make_backend: Callable[[Any], Backend],
        on_episodes: EpisodesHook | None = None,
        held_out: Sequence[Any] = (),
        **kwargs: Any,
    ) -> None:
        groups = (args.generation_batch_size or 0) // (args.num_generations or 1)
        self._order = TaskOrder(len(tasks), groups, bool(args.shuffle_dataset), args.seed)
        # With use_vllm TRL would build its own engine, whose every call waits for the prompts of all ranks.
        use_vllm, args.use_vllm = args.use_vllm, False
        super().__init__(
            model=model,
            reward_funcs=environment_reward,
            args=args,
            train_dataset=Dataset.from_dict({"prompt": [""] * len(tasks)}),
            # Only that there is one: `evaluate` is ours.
            eval_dataset=Dataset.from_dict({"prompt": [""] * len(held_out)}) if held_out else None,
            processing_class=processing_class,
            **kwargs,
        )
        args.use_vllm = use_vllm
        tune_lm_head_for_cpu(self.accelerator.device.type)
        self._update = UpdateStep(
            self.accelerator,
            self.model,
            Objective(
                args.epsilon,
                args.epsilon if args.epsilon_high is None else args.epsilon_high,
                args.delta,
                args.beta,
                bool(args.use_bias_correction_kl),
                args.vllm_importance_sampling_mode if use_vllm and args.vllm_importance_sampling_correction else None,
                args.vllm_importance_sampling_clip_min,
                args.vllm_importance_sampling_clip_max,
            ),
            args.micro_batch_tokens,
            self._tokenizer.pad_token_id,
            prefix_sharing=args.prefix_sharing,
            reference=self.ref_model,
        )
        self.set_up_rollouts(make_backend(self.model), tasks, held_out, on_episodes)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Counts the updates of an epoch."""
        return updates_of_epoch(self._order.updates_per_epoch)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """One on-policy update: its episodes, then the forward and backward passes; returns this rank's loss."""
        # Also where nothing will be trained: TRL files its metrics under "train" by this mode.
        model.train()
        batch = self._sample()
        started = time.perf_counter()
        loss, log = self._update.run(model, batch)
        self.check_loss(log.pop("loss", 0.0))
        if self.args.temperature != 1.0:  # a policy reports log-probabilities of the unscaled distribution
            log.pop(DIFFERENCE, None)
        self.log_with_update(log | {"seconds/train": time.perf_counter() - started})
        return loss

    def _sample(self) -> Batch:
        """Run this rank's episodes of the update and turn them into rows; groups may straddle ranks."""
        started = time.perf_counter()
        update, group_size = self.state.global_step, self.args.num_generations or 1
        groups = [update * self._order.groups_per_update + i for i in range(self._order.groups_per_update)]
        tasks = [self.tasks[self._order.task(group)] for group in groups]
        count = self.args.per_device_train_batch_size
        own = range(self.accelerator.process_index * count, (self.accelerator.process_index + 1) * count)
        # Seeds depend on the run's seed and the update, not on the state of a generator: a resumed run repeats them.
        agent = self.backend.runner.agent
        agent.sampling = replace(agent.sampling, seed=self._order.seed(groups[0]))
        self.publish()
        everything = episodes = self.run_episodes([(tasks[i // group_size], i % group_size) for i in own])
        rewards, sizes = self._gather_outcomes(episodes)
        self.log_with_update({"frac_reward_zero_std": zero_variance_fraction(rewards, group_size)})
        seen, replaced = {task.id for task in tasks}, 0
        for round_ in range(self.args.dynamic_sampling_rounds):
            seed = f"{self.args.seed}/{update}/{round_}"
            drawn = replacement_tasks(rewards, group_size, self.tasks, seen, seed)
            if not drawn:
                break
            seen, replaced = seen | {task.id for task in drawn.values()}, replaced + len(drawn)
            again = [i for i in own if i // group_size in drawn]
            fresh = self.run_episodes([(drawn[i // group_size], i % group_size) for i in again])
            everything = everything + fresh
            episodes = [*(dict(zip(own, episodes, strict=True)) | dict(zip(again, fresh, strict=True))).values()]
            rewards, sizes = self._gather_outcomes(episodes)
        if self.args.dynamic_sampling_rounds:
            self.log_with_update({"dynamic_sampling/replaced_groups": float(replaced)})
        self.end_rollout(everything, rewards, time.perf_counter() - started)
        advantages = group_advantages(rewards, group_size, str(self.args.scale_rewards))[own.start : own.stop]
        rows = episode_rows(episodes, advantages, self.args.normalization, self.args.overlong_filtering)
        return Batch(merge_equal_rows(rows), normalizer(sizes, self.args.normalization))

    def _gather_outcomes(self, episodes: Sequence[Episode]) -> tuple[list[float | None], list[EpisodeSize]]:
        """Reward (None: failed) and size of every episode of the global batch, in its order."""
        sizes = [EpisodeSize.of(episode, self.args.overlong_filtering) for episode in episodes]
        table = torch.tensor(
            [
                [math.nan if episode.reward is None else episode.reward, size.tokens, size.steps]
                for episode, size in zip(episodes, sizes, strict=True)
            ],
            dtype=torch.float32,
            device=self.accelerator.device,
        )
        outcomes = self.accelerator.gather(table).tolist()
        rewards = [None if math.isnan(reward) else reward for reward, _, _ in outcomes]
        return rewards, [EpisodeSize(int(tokens), int(steps)) for _, tokens, steps in outcomes]
