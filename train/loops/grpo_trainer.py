"""GRPO over whole episodes: every override of TRL's `GRPOTrainer`, and nothing else, is in this file.

How it sits on trl 1.16. TRL's sampler repeats each task `num_generations` times and hands every rank
its share of the batch. Here `_generate_and_score_completions` runs these episodes and returns one row
per step, `_prepare_inputs` passes them on without TRL's shuffling and splitting, and `training_step`
walks micro-batches of them under gradient accumulation, so that one trainer step is one on-policy
update. The loss itself is TRL's `_compute_loss` with ``loss_type="dapo"``::

    sum(mask * token loss) / (num_items_in_batch / num_processes),  mask = completion_mask * tool_mask

where `tool_mask` carries the weights and `num_items_in_batch` the normaliser of `atommem.train.objective.sequences`.
`_get_per_token_logps_and_entropies`, which TRL calls for the policy and we call for the reference, computes
each distinct token of a micro-batch once (`atommem.train.packing.trie`, `atommem.train.packing.tree_attention`).
`tests/train/test_seam.py` guards the private names that are relied on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from accelerate.utils import DistributedType, gather_object
from datasets import Dataset
from transformers.utils import logging
from trl import GRPOTrainer
from trl.trainer.utils import use_adapter

from atommem.episode import Episode
from atommem.errors import ConfigError
from atommem.train.loops.models import tune_lm_head_for_cpu
from atommem.train.objective.advantages import group_advantages, zero_variance_fraction
from atommem.train.objective.importance import importance_ratio
from atommem.train.objective.sequences import EpisodeSize, Row, episode_rows, longest, merge_equal_rows, normalizer
from atommem.train.packing.micro_batches import MicroBatchPlanner
from atommem.train.packing.padding import Padded, filler_row, pad_rows
from atommem.train.packing.planning import pair_cost
from atommem.train.packing.tree_attention import (
    ATTENTION_NAME,
    register_tree_attention,
    use_tree_attention,
    why_no_tree,
)
from atommem.train.packing.trie import Packed, pack_rows, packed_forward
from atommem.train.rollout.backend import Backend
from atommem.train.rollout.dynamic_sampling import replacement_tasks
from atommem.train.rollout.epoch_sampler import EpochSampler
from atommem.train.rollout.rollout_trainer import EpisodesHook, RolloutTrainer
from atommem.train.train_config import TrainConfig

logger = logging.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Rollout:
    """What one rank trains on in one update: its rows, and the global batch's loss normaliser."""

    rows: list[Row]
    normalizer: float


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
        if len(tasks) < groups:
            raise ConfigError(
                f"{len(tasks)} tasks are fewer than the {groups} groups of one update: give more data, a smaller "
                "per_device_train_batch_size or a larger num_generations."
            )
        # With use_vllm TRL would build its own engine, whose every call waits for the prompts of all ranks.
        use_vllm, args.use_vllm = args.use_vllm, False
        super().__init__(
            model=model,
            reward_funcs=_environment_reward,
            args=args,
            train_dataset=Dataset.from_dict({"prompt": [""] * len(tasks), "task": list(range(len(tasks)))}),
            # Only that there is one: `evaluate` is ours.
            eval_dataset=Dataset.from_dict({"prompt": [""] * len(held_out)}) if held_out else None,
            processing_class=processing_class,
            **kwargs,
        )
        args.use_vllm = use_vllm
        tune_lm_head_for_cpu(self.accelerator.device.type)
        self._prefix_sharing = args.prefix_sharing and self._can_share_prefixes()
        self._planner = MicroBatchPlanner(
            pair_cost(self.accelerator.unwrap_model(self.model).config.get_text_config()),
            args.micro_batch_tokens,
            self._prefix_sharing,
            self.accelerator.process_index,
        )
        # TRL's own vLLM client gathers all ranks' prompts at every call; our backends do not. What stays of the setting
        # is the correction for the sampler's slightly different probabilities, in TRL's loss.
        self.use_vllm = args.use_vllm
        self.set_up_rollouts(make_backend(self.model), tasks, held_out, on_episodes)
        self._trained_logps: torch.Tensor | None = None
        self._packed: Packed | None = None
        self._micro_batch_inputs: dict[str, torch.Tensor] = {}

    def _get_train_sampler(self, dataset: Any = None) -> EpochSampler:
        """TRL's sampler, made to continue where a resumed run stopped (`EpochSampler`)."""
        return EpochSampler(
            data_source=self.train_dataset if dataset is None else dataset,
            mini_repeat_count=self.num_generations,
            batch_size=self.args.generation_batch_size // self.num_generations,
            shuffle=self.shuffle_dataset,
            seed=self.args.seed,
            epoch=lambda: int(self.state.epoch or 0),
        )

    # Rollout ------------------------------------------------------------------------------------

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """Dataset rows become a `Rollout`; a micro-batch of tensors passes through."""
        if isinstance(generation_batch, dict):
            return generation_batch
        return self._generate_and_score_completions(generation_batch)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> Rollout:
        """Run this rank's episodes and turn them into rows; groups may straddle ranks."""
        started = time.perf_counter()
        first = self.accelerator.process_index * len(inputs)
        jobs = [(self.tasks[item["task"]], (first + i) % self.num_generations) for i, item in enumerate(inputs)]
        # Seeds depend on the run's seed and the update, not on the state of a generator: a resumed run repeats them.
        agent = self.backend.runner.agent
        agent.sampling = replace(agent.sampling, seed=self.args.seed * 1_000_003 + self.state.global_step)
        self.publish()
        everything = episodes = self.run_episodes(jobs)
        rewards, sizes = self._gather_outcomes(episodes)
        self._log_variance(rewards)
        count = 0
        for round_ in range(self.args.dynamic_sampling_rounds):
            seen = set(gather_object([task.id for task, _ in jobs]))
            seed = f"{self.args.seed}/{self.state.global_step}/{round_}"
            drawn = replacement_tasks(rewards, self.num_generations, self.tasks, seen, seed)
            if not drawn:
                break
            count += len(drawn)
            groups = {i: (first + i) // self.num_generations for i in range(len(jobs))}
            replaced = {i: (drawn[group], jobs[i][1]) for i, group in groups.items() if group in drawn}
            again = sorted(replaced)
            for i, episode in zip(again, self.run_episodes([replaced[i] for i in again]), strict=True):
                everything, jobs[i] = [*everything, episode], replaced[i]
                episodes = [*episodes[:i], episode, *episodes[i + 1 :]]
            rewards, sizes = self._gather_outcomes(episodes)
        if self.args.dynamic_sampling_rounds:
            self._metrics["train"]["dynamic_sampling/replaced_groups"].append(float(count))
        seconds = time.perf_counter() - started

        advantages = group_advantages(rewards, self.num_generations, self.args.scale_rewards)
        normalization = self.args.normalization
        own = advantages[first : first + len(inputs)]
        rows = episode_rows(episodes, own, normalization, longest(sizes), self.args.overlong_filtering)
        self.end_rollout(everything, rewards, seconds)
        return Rollout(rows, normalizer(sizes, normalization))

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

    def _log_variance(self, rewards: Sequence[float | None]) -> None:
        fraction = zero_variance_fraction(rewards, self.num_generations)
        self._metrics["train"]["frac_reward_zero_std"].append(fraction)

    # Update -------------------------------------------------------------------------------------

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """One on-policy update's forward and backward passes; returns this rank's summed loss.

        All ranks run the same number of micro-batches: one that has run out takes part with an empty
        row. When no group of the global batch has variance there is nothing to learn: no rank runs a
        backward pass, gradients stay unset, and the optimizer's step changes nothing.
        """
        # Also where nothing will be trained: TRL files its metrics under "train" by this mode.
        model.train()
        rollout: Rollout = self._prepare_inputs(inputs)
        started = time.perf_counter()
        micro_batches = self._planner.plan(merge_equal_rows(rollout.rows))
        logged = {key: len(values) for key, values in self._metrics["train"].items()}
        totals = torch.zeros(5, device=self.accelerator.device)  # loss, log-prob difference, tokens, rows', computed
        with use_tree_attention(self.accelerator.unwrap_model(model)) if self._prefix_sharing else nullcontext():
            for index, micro_batch in enumerate(micro_batches):
                last = index == len(micro_batches) - 1
                padded = pad_rows(
                    micro_batch.rows, micro_batch.count, self._tokenizer.pad_token_id, prompts=not self._prefix_sharing
                )
                if self._prefix_sharing:
                    rows = micro_batch.rows or [filler_row(self._tokenizer.pad_token_id)]
                    self._packed = pack_rows(rows).to(self.accelerator.device)
                # DeepSpeed steps inside the backward pass that this flag marks.
                self.accelerator.gradient_state._set_sync_gradients(last)
                with self._accumulating(model, last):
                    self._micro_batch_inputs = self._tensors(padded, rollout.normalizer)
                    # Trainer's own step: TRL's would count every micro-batch as an update.
                    totals[0] += super(GRPOTrainer, self).training_step(model, self._micro_batch_inputs, None)
                totals[1:3] += self._logp_difference(padded)
                totals[3] += sum(map(len, micro_batch.rows))
                totals[4] += self._packed.tree.length if self._packed else padded.weights.shape[0] * padded.width
        self._packed, self._micro_batch_inputs = None, {}
        self._merge_micro_batch_metrics(logged, [micro_batch.weight for micro_batch in micro_batches])
        self._log_update(totals, time.perf_counter() - started)
        self._step += 1
        return totals[0]

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, *args: Any, **kwargs: Any
    ) -> Any:
        """TRL's, computed on the packed row of the micro-batch where prefixes are shared.

        (rows, logits_to_keep) each; where nothing is scored, packing gives 0. Keeps the training pass's
        log-probabilities, to compare them with those at sampling.
        """
        if self._packed is None:
            result = super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, *args, **kwargs
            )
        else:
            result = self._packed_logps_and_entropies(model, input_ids, self._packed)
        if torch.is_grad_enabled():
            self._trained_logps = result[0].detach()
            if self.use_vllm and self.vllm_importance_sampling_correction:
                self._correct_for_sampler()
        return result

    def _packed_logps_and_entropies(self, model: Any, completion_ids: torch.Tensor, packed: Packed) -> Any:
        with self.accelerator.autocast():
            logps, entropies = packed_forward(model, packed)
        place = packed.places(completion_ids.size(1))
        empty = logps.new_zeros(completion_ids.shape)
        # The reference model computes no entropy.
        return empty.index_put(place, logps), None if entropies is None else empty.index_put(place, entropies), None

    def _correct_for_sampler(self) -> None:
        """TRL's loss multiplies by ``importance_sampling_ratio``. On-policy, the old policy is the one in training."""
        assert self._trained_logps is not None
        inputs = self._micro_batch_inputs
        ratio = importance_ratio(
            self._trained_logps,
            inputs["sampling_per_token_logps"],
            inputs["tool_mask"] > 0,
            self.vllm_importance_sampling_mode,
            self.vllm_importance_sampling_clip_min,
            self.vllm_importance_sampling_clip_max,
        )
        inputs["importance_sampling_ratio"] = ratio

    def _logp_difference(self, padded: Padded) -> torch.Tensor:
        """Sum of |log-prob when trained - when sampled| over the tokens with a weight, and their number."""
        counted = torch.from_numpy(padded.weights > 0).to(self.accelerator.device)
        sampled = torch.from_numpy(padded.logprobs).to(self.accelerator.device)
        assert self._trained_logps is not None
        difference = (self._trained_logps - sampled).abs() * counted
        return torch.stack([difference.sum(), counted.sum()])

    def _log_update(self, totals: torch.Tensor, seconds: float) -> None:
        metrics = self._metrics["train"]
        loss, difference, tokens, raw, computed = self.accelerator.reduce(totals, reduction="sum").tolist()
        self.check_loss(loss)
        # A policy reports log-probabilities of the unscaled distribution: comparable at temperature 1 only.
        if tokens and self.temperature == 1.0:
            metrics["sampling/sampling_logp_difference/mean"].append(difference / tokens)
        if computed:
            metrics["packing_ratio"].append(raw / computed)
        metrics["seconds/train"].append(seconds)

    def _accumulating(self, model: Any, last: bool) -> Any:
        if last or self.accelerator.distributed_type == DistributedType.DEEPSPEED:
            return nullcontext()
        return self.accelerator.no_sync(model)

    def _can_share_prefixes(self) -> bool:
        reason = why_no_tree(self.accelerator.unwrap_model(self.model))
        if reason is not None:
            logger.warning(f"prefix_sharing is off: rows are padded instead, because {reason}.")
            return False
        register_tree_attention()
        if self.ref_model is not None:
            self.accelerator.unwrap_model(self.ref_model).set_attn_implementation(ATTENTION_NAME)
        return True

    def _tensors(self, padded: Padded, loss_normalizer: float) -> dict[str, torch.Tensor]:
        device = self.accelerator.device
        micro_batch = {
            "prompt_ids": torch.from_numpy(padded.prompt_ids).to(device),
            "prompt_mask": torch.from_numpy(padded.prompt_mask).to(device),
            "completion_ids": torch.from_numpy(padded.completion_ids).to(device),
            "completion_mask": torch.from_numpy(padded.completion_mask).to(device),
            "tool_mask": torch.from_numpy(padded.weights).to(device),
            "advantages": torch.from_numpy(padded.advantages).to(device),
            "num_items_in_batch": torch.tensor(loss_normalizer, device=device),
            "sampling_per_token_logps": torch.from_numpy(padded.logprobs).to(device),
        }
        if self.beta != 0.0:
            micro_batch["ref_per_token_logps"] = self._reference_logps(micro_batch)
        return micro_batch

    @torch.no_grad()
    def _reference_logps(self, micro_batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Log-probabilities under TRL's reference: its copy of the model, or the model without its adapter."""
        arguments = (
            torch.cat([micro_batch["prompt_ids"], micro_batch["completion_ids"]], dim=1),
            torch.cat([micro_batch["prompt_mask"], micro_batch["completion_mask"]], dim=1),
            micro_batch["completion_ids"].size(1),
        )
        if self.ref_model is not None:
            return self._get_per_token_logps_and_entropies(self.ref_model, *arguments)[0]
        peft_model = self.accelerator.unwrap_model(self.model)
        with use_adapter(peft_model, adapter_name="ref" if "ref" in peft_model.peft_config else None):
            return self._get_per_token_logps_and_entropies(self.model, *arguments)[0]

    def _merge_micro_batch_metrics(self, logged: dict[str, int], weights: Sequence[float]) -> None:
        """TRL appended its metrics once per micro-batch: leave one weighted mean per update."""
        for key, values in self._metrics["train"].items():
            start = logged.get(key, 0)
            pairs = [(v, w) for v, w in zip(values[start:], weights, strict=False) if not math.isnan(v)]
            total = sum(weight for _, weight in pairs)
            if total > 0:
                values[start:] = [sum(value * weight for value, weight in pairs) / total]


def _environment_reward(**_: Any) -> list[float]:
    """TRL wants a reward function; the environment scores episodes, so this one is never called."""
    raise AssertionError("episodes are scored by their environment")
