"""GRPO over whole episodes on TRL's `GRPOTrainer`.

How it sits on trl 1.16. TRL makes the models (fused LM head, adapter, reference), the optimizer and the logs. Two of
its methods are replaced: the data loader only counts updates, and `training_step` is one on-policy update. It runs
the update's episodes (`atommem.train.rollout.collect`), turns every step of theirs into a row, and leaves the
rows to `atommem.train.loops.update_step`. The loss is ours (`atommem.train.objective.loss`), not TRL's.
`tests/train/loops/test_trl_seam.py` guards the private names that are relied on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from trl import GRPOTrainer

from atommem.train.loops.models import tune_lm_head_for_cpu
from atommem.train.loops.update_step import DIFFERENCE, Batch, UpdateStep, environment_reward, updates_of_epoch
from atommem.train.objective.loss import Objective
from atommem.train.objective.sequences import episode_rows, merge_equal_rows, normalizer
from atommem.train.rollout.backend import Backend
from atommem.train.rollout.collect import collect
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
        args, collected = self.args, collect(self, self._order)
        started = time.perf_counter()
        rows = episode_rows(collected.episodes, collected.advantages, args.normalization, args.overlong_filtering)
        batch = Batch(merge_equal_rows(rows), normalizer(collected.sizes, args.normalization))
        loss, log = self._update.run(model, batch)
        self.check_loss(log.pop("loss", 0.0))
        if args.temperature != 1.0:  # a policy reports log-probabilities of the unscaled distribution
            log.pop(DIFFERENCE, None)
        self.log_with_update(log | {"seconds/train": time.perf_counter() - started})
        return loss
