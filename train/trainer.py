"""GRPO over whole episodes: every override of TRL's `GRPOTrainer`, and nothing else, is in this file.

How it sits on trl 1.16. TRL's sampler repeats each task `num_generations` times and hands every rank
its share of the batch. Here `_generate_and_score_completions` runs these episodes and returns one row
per step, `_prepare_inputs` passes them on without TRL's shuffling and splitting, and `training_step`
walks micro-batches of them under gradient accumulation, so that one trainer step is one on-policy
update. The loss itself is TRL's `_compute_loss` with ``loss_type="dapo"``::

    sum(mask * token loss) / (num_items_in_batch / num_processes),  mask = completion_mask * tool_mask

where `tool_mask` carries the weights and `num_items_in_batch` the normaliser of `train.sequences`.
`tests/train/test_seam.py` guards the private names that are relied on.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, TypeVar

import torch
from accelerate.utils import DistributedType, gather_object
from datasets import Dataset
from trl import GRPOTrainer
from trl.trainer.utils import RepeatSampler, use_adapter

from atommem.episode_stats import add_sums, episode_sums, means
from atommem.errors import ConfigError
from atommem.records import Episode
from train.advantages import group_advantages, zero_variance_fraction
from train.backends.base import Backend
from train.batching import Padded, pad_rows, plan_micro_batches
from train.config import TrainConfig
from train.lm_head import use_narrow_tiles_on_cpu
from train.sequences import EpisodeSize, Row, episode_rows, longest, merge_equal_rows, normalizer

_Result = TypeVar("_Result")
EpisodesHook = Callable[[int, Sequence[Episode]], None]
"""Called after each rollout with the update's number (from 0) and this rank's episodes."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """What one rank trains on in one update: its rows, and the global batch's loss normaliser."""

    rows: list[Row]
    normalizer: float


class EpochSampler(RepeatSampler):
    """A `RepeatSampler` whose order depends on the seed and the epoch alone.

    TRL's goes on drawing from one generator, so that a run that is resumed in its second epoch would
    repeat the order of the first.
    """

    def __init__(self, *args: Any, epoch: Callable[[], int], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        if self.shuffle:
            self.generator.manual_seed(self.seed + 1_000_003 * self._epoch())
        return super().__iter__()


class MemoryGRPOTrainer(GRPOTrainer):
    """Trains a policy on whole episodes.

    Args:
        model: A model, or the path or hub name of one.
        args: Settings.
        tasks: Training tasks; what the runner's environment understands.
        processing_class: The tokenizer.
        make_backend: Gets the training model (unwrapped, with its adapter) and returns what samples
            episodes from its weights.
        on_episodes: Sees the episodes of every update.
        kwargs: Further arguments of `GRPOTrainer` (peft_config, quantization_config, callbacks,
            optimizers).

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
            processing_class=processing_class,
            **kwargs,
        )
        args.use_vllm = use_vllm
        use_narrow_tiles_on_cpu(self.accelerator.device.type)
        self.tasks = tasks
        self.on_episodes = on_episodes
        self.backend = make_backend(self.model)
        self._loop = asyncio.Runner()
        self._trained_logps: torch.Tensor | None = None

    def close(self) -> None:
        """Free what the backend and the embedder hold. The trainer cannot train afterwards."""
        self.run_async(self.backend.close())
        self.run_async(self.backend.runner.embedder.close())
        self._loop.close()

    def run_async(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run a coroutine in the event loop that the episodes run in."""
        return self._loop.run(work)

    def _get_train_sampler(self, dataset: Any = None) -> RepeatSampler:
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
        episodes = self._run_episodes(jobs)
        seconds = time.perf_counter() - started

        rewards, sizes = self._gather_outcomes(episodes)
        advantages = group_advantages(rewards, self.num_generations, self.args.scale_rewards)
        normalization = self.args.normalization
        rows = episode_rows(episodes, advantages[first : first + len(inputs)], normalization, longest(sizes))
        self._log_rollout(episodes, rewards, seconds)
        if self.on_episodes is not None:
            self.on_episodes(self.state.global_step, episodes)
        return Rollout(rows, normalizer(sizes, normalization))

    def _run_episodes(self, jobs: Sequence[tuple[Any, int]]) -> list[Episode]:
        # Seeds depend on the run's seed and the update, not on the state of a generator: a resumed run repeats them.
        runner = self.backend.runner
        runner.sampling = replace(runner.sampling, seed=self.args.seed * 1_000_003 + self.state.global_step)
        self.backend.publish(self)
        with self.backend.rollout(self):
            return self.run_async(runner.run_all(jobs))

    def _gather_outcomes(self, episodes: Sequence[Episode]) -> tuple[list[float | None], list[EpisodeSize]]:
        """Reward (None: failed) and size of every episode of the global batch, in its order."""
        sizes = [EpisodeSize.of(episode) for episode in episodes]
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

    def _log_rollout(self, episodes: Sequence[Episode], rewards: Sequence[float | None], seconds: float) -> None:
        sums = add_sums(gather_object([episode_sums(episodes)]))
        summary = means(sums)
        summary["frac_reward_zero_std"] = zero_variance_fraction(rewards, self.num_generations)
        summary["seconds/rollout"] = seconds
        summary |= add_sums(gather_object([self.backend.metrics()]))
        for key, value in summary.items():
            self._metrics["train"][key].append(value)
        self.state.num_input_tokens_seen += int(sums["tokens/prompt"] + sums["tokens/completion"])
        self._metrics["train"]["num_tokens"] = [self.state.num_input_tokens_seen]

    # Update -------------------------------------------------------------------------------------

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """One on-policy update's forward and backward passes; returns this rank's summed loss.

        All ranks run the same number of micro-batches of the same number of rows: one that has run
        out fills up with empty rows. When no group of the global batch has variance there is nothing to learn: no rank
        runs a backward pass, gradients stay unset, and the optimizer's step changes nothing.
        """
        # Also where nothing will be trained: TRL files its metrics under "train" by this mode.
        model.train()
        rollout: Rollout = self._prepare_inputs(inputs)
        started = time.perf_counter()
        rows = sorted(merge_equal_rows(rollout.rows), key=len, reverse=True)
        counts, weights = self._plan(rows)
        logged = {key: len(values) for key, values in self._metrics["train"].items()}
        totals = torch.zeros(3, device=self.accelerator.device)  # loss, log-prob difference, tokens
        start = 0
        for index, count in enumerate(counts):
            last = index == len(counts) - 1
            padded = pad_rows(rows[start : start + count], count, self._tokenizer.pad_token_id)
            start += count
            # DeepSpeed steps inside the backward pass that this flag marks.
            self.accelerator.gradient_state._set_sync_gradients(last)
            with self._accumulating(model, last):
                micro_batch = self._micro_batch(padded, rollout.normalizer)
                # Trainer's own step: TRL's would count every micro-batch as an update.
                totals[0] += super(GRPOTrainer, self).training_step(model, micro_batch, None)
            totals[1:] += self._logp_difference(padded)
        self._merge_micro_batch_metrics(logged, weights)
        self._log_update(totals, time.perf_counter() - started)
        self._step += 1
        return totals[0]

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        """TRL's; keeps the training pass's log-probabilities, to be compared with those at sampling."""
        result = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if torch.is_grad_enabled():
            self._trained_logps = result[0].detach()
        return result

    def _logp_difference(self, padded: Padded) -> torch.Tensor:
        """Sum of |log-prob when trained - when sampled| over the tokens with a weight, and their number."""
        counted = torch.from_numpy(padded.weights > 0).to(self.accelerator.device)
        sampled = torch.from_numpy(padded.logprobs).to(self.accelerator.device)
        assert self._trained_logps is not None
        difference = (self._trained_logps - sampled).abs() * counted
        return torch.stack([difference.sum(), counted.sum()])

    def _log_update(self, totals: torch.Tensor, seconds: float) -> None:
        metrics = self._metrics["train"]
        difference, tokens = self.accelerator.reduce(totals[1:], reduction="sum").tolist()
        # A policy reports log-probabilities of the unscaled distribution: comparable at temperature 1 only.
        if tokens and self.temperature == 1.0:
            metrics["sampling/sampling_logp_difference/mean"].append(difference / tokens)
        metrics["seconds/train"].append(seconds)

    def _accumulating(self, model: Any, last: bool) -> Any:
        if last or self.accelerator.distributed_type == DistributedType.DEEPSPEED:
            return contextlib.nullcontext()
        return self.accelerator.no_sync(model)

    def _plan(self, rows: Sequence[Row]) -> tuple[list[int], list[float]]:
        """Row count of each micro-batch, and its loss weight over all ranks."""
        ranks = gather_object([[(len(row), row.weight * len(row.completion_ids)) for row in rows]])
        counts = plan_micro_batches([[length for length, _ in rank] for rank in ranks], self.args.micro_batch_tokens)
        ends = list(accumulate(counts))
        weights = [
            sum(weight for rank in ranks for _, weight in rank[end - count : end])
            for end, count in zip(ends, counts, strict=True)
        ]
        return counts, weights

    def _micro_batch(self, padded: Padded, loss_normalizer: float) -> dict[str, torch.Tensor]:
        device = self.accelerator.device
        micro_batch = {
            "prompt_ids": torch.from_numpy(padded.prompt_ids).to(device),
            "prompt_mask": torch.from_numpy(padded.prompt_mask).to(device),
            "completion_ids": torch.from_numpy(padded.completion_ids).to(device),
            "completion_mask": torch.from_numpy(padded.completion_mask).to(device),
            "tool_mask": torch.from_numpy(padded.weights).to(device),
            "advantages": torch.from_numpy(padded.advantages).to(device),
            "num_items_in_batch": torch.tensor(loss_normalizer, device=device),
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
