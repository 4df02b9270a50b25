"""GRPO over whole episodes on TRL's `GRPOTrainer`.

How it sits on trl 1.16. TRL makes the models (fused LM head, adapter, reference), the optimizer and the logs. Two of
its methods are replaced: the data loader only counts updates, and `training_step` is one update. It runs the episodes
(`atommem.train.rollout.collect`), turns every step of theirs into a row, and leaves the rows to
`atommem.train.loops.update_step`. The loss is ours (`atommem.train.objective.loss`), not TRL's.
`tests/train/loops/test_trl_seam.py` guards the private names that are relied on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from trl import GRPOTrainer

from atommem.train.loops.models import sharding_references, tune_lm_head_for_cpu
from atommem.train.loops.rollout_file import load_rollout, save_rollout
from atommem.train.loops.update_step import Batch, UpdateStep, environment_reward, updates_of_epoch
from atommem.train.objective.loss import Objective
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
        with sharding_references():
            super().__init__(
                model=model,
                reward_funcs=environment_reward,
                args=args,
                train_dataset=Dataset.from_dict({"prompt": [""] * len(tasks)}),
                # Only that there is one: `evaluate` is ours.
                eval_dataset=Dataset.from_dict({"prompt": [""] * len(held_out)})
                if held_out
                else None,
                processing_class=processing_class,
                **kwargs,
            )
        args.use_vllm = use_vllm
        tune_lm_head_for_cpu(self.accelerator.device.type)
        self._update = UpdateStep(
            self.accelerator,
            self.model,
            Objective.of(args),
            args.micro_batch_tokens,
            self._tokenizer.pad_token_id,
            prefix_sharing=args.prefix_sharing,
            on_policy=args.updates_per_rollout == 1 and not args.carried_groups,
            reference=self.ref_model,
        )
        self._sampled, self._batches = -1, list[Batch]()
        """The rollout, from 0, whose episodes updates train on now, and what is in each of them."""
        self.set_up_rollouts(make_backend(self.model), tasks, held_out, on_episodes)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Counts the updates of an epoch."""
        return updates_of_epoch(self._order.updates_per_epoch * self.args.updates_per_rollout)

    def training_step(
        self, model: Any, inputs: Any, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """One update: its episodes, then the forward and backward passes; returns this rank's loss."""
        # Also where nothing will be trained: TRL files its metrics under "train" by this mode.
        model.train()
        rollout, update = divmod(self.state.global_step, self.args.updates_per_rollout)
        if self._sampled != rollout:
            self._sampled, self._batches = rollout, self._sample(model)
        else:  # its data, should it fail, are those of the update before
            self.failed_step(self.state.global_step, self.failed_step.episodes)
        batch = self._batches[update % len(self._batches)]
        started = time.perf_counter()
        loss, log = self._update.run(model, batch)
        self.check_loss(log.pop("loss", 0.0))
        self.log_with_update(log | {"seconds/train": time.perf_counter() - started})
        return loss

    def _sample(self, model: Any) -> list[Batch]:
        """Run the next rollout's episodes; returns what each of its updates trains on.

        As in TRL, updates share a rollout's episodes evenly (`steps_per_generation`), all of them `num_iterations`
        times; the loss of each is divided by their mean size.
        """
        args, collected = self.args, collect(self, self._order)
        updates, first = (
            args.steps_per_generation or 1,
            self.accelerator.process_index * len(collected.episodes),
        )
        batches = []
        for update in range(updates):
            # Of the global batch, so that it is the same on any number of ranks.
            ends = [len(collected.sizes) * index // updates for index in (update, update + 1)]
            part = slice(*(max(0, end - first) for end in ends))
            batch = Batch.of(
                args,
                collected.episodes[part],
                collected.advantages[part],
                collected.sizes,
                self._update.on_policy,
            )
            batch = Batch(batch.rows, batch.normalizer / updates)
            # Where another engine sampled, its log-probabilities are not quite those of the weights in training. But
            # the old ones of what was carried over are of the weights that sampled it.
            again = args.use_vllm and not self._update.on_policy and not args.carried_groups
            batches.append(self._update.with_old_logprobs(model, batch) if again else batch)
        return batches

    def save_extra_state(self, folder: Path) -> None:
        """Between two updates on a rollout, what this rank has of it."""
        if self.state.global_step % self.args.updates_per_rollout:
            save_rollout(folder, self.accelerator.process_index, self._sampled, self._batches)

    def load_extra_state(self, folder: Path) -> None:
        """Go on with the rollout that the checkpoint was written in."""
        accelerator = self.accelerator
        self._sampled, self._batches = load_rollout(
            folder, accelerator.process_index, accelerator.num_processes
        )
