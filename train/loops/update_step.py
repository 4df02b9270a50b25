"""One update on rows of episodes: forward and backward passes, the same whichever way the rows were sampled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate.utils import DistributedType
from torch.utils.data import DataLoader
from transformers.utils import logging
from trl.trainer.utils import use_adapter

from atommem.episode import Episode
from atommem.train.loops.models import reduce_in_float32
from atommem.train.objective.loss import MASKED, Objective
from atommem.train.objective.sequences import (
    EpisodeSize,
    Row,
    Tokens,
    episode_rows,
    merge_equal_rows,
    normalizer,
)
from atommem.train.packing.micro_batches import MicroBatchPlanner
from atommem.train.packing.padding import MicroBatch, pad_rows
from atommem.train.packing.planning import pair_cost
from atommem.train.packing.tree_attention import (
    ATTENTION_NAME,
    register_tree_attention,
    use_tree_attention,
    why_no_tree,
)
from atommem.train.packing.trie import pack_rows
from atommem.train.train_config import EpisodeConfig

DIFFERENCE = "sampling/sampling_logp_difference/mean"
"""Logged: how far log-probabilities when trained are from those when sampled (nats)."""

logger = logging.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Batch:
    """What one rank trains on in one update.

    Attributes:
        rows: Its rows; a rank may have none.
        normalizer: What the loss is divided by: that of the rows of all ranks.
    """

    rows: list[Row]
    normalizer: float

    @classmethod
    def of(
        cls,
        args: EpisodeConfig,
        episodes: Sequence[Episode],
        advantages: Sequence[float | Sequence[float]],
        sizes: Sequence[EpisodeSize],
        on_policy: bool = False,
    ) -> Batch:
        """The steps of this rank's `episodes`, equal ones together where that is exact; `sizes` are of all ranks."""
        beta = getattr(args, "beta", 0.0)  # TRL's asynchronous configuration has none
        rows = episode_rows(
            episodes, advantages, args.normalization, args.overlong_filtering, with_kl=beta != 0
        )
        over = normalizer(sizes, args.normalization, args.max_completion_length)
        return cls(merge_equal_rows(rows) if on_policy else rows, over)


class UpdateStep:
    """The passes of an update.

    Args:
        accelerator: Of the trainer.
        model: What is trained; it has TRL's fused LM head.
        objective: What is minimised.
        token_budget: Most tokens in a micro-batch of more than one row: distinct ones with prefix sharing, padded ones
            without.
        pad_token_id: Fills padded rows.
        prefix_sharing: Whether rows are packed as tries, where the model's attention can follow them.
        on_policy: Whether rows are trained on with the very weights that sampled them. Else the ratio is taken to their
            old log-probabilities.
        reference: Model of the KL term; unset is `model` without its adapter.
    """

    def __init__(
        self,
        accelerator: Any,
        model: Any,
        objective: Objective,
        token_budget: int,
        pad_token_id: int,
        *,
        prefix_sharing: bool = True,
        on_policy: bool = True,
        reference: Any = None,
    ) -> None:
        self.accelerator = accelerator
        self.objective = objective
        self.on_policy = on_policy
        reduce_in_float32(accelerator)
        unwrapped = accelerator.unwrap_model(model)
        obstacle = why_no_tree(unwrapped)
        if prefix_sharing and obstacle is not None:
            logger.warning(f"prefix_sharing is off: rows are padded instead, because {obstacle}.")
        self.prefix_sharing = prefix_sharing and obstacle is None
        cost = pair_cost(unwrapped.config.get_text_config())
        self.planner = MicroBatchPlanner(
            cost, token_budget, self.prefix_sharing, accelerator.process_index
        )
        self._pad_token_id = pad_token_id
        self._reference = reference
        if self.prefix_sharing:
            register_tree_attention()
            if reference is not None:
                accelerator.unwrap_model(reference).set_attn_implementation(ATTENTION_NAME)

    def run(self, model: Any, batch: Batch) -> tuple[torch.Tensor, dict[str, float]]:
        """Add the update's gradients to the parameters; collective.

        All ranks run the same number of micro-batches. When no rank has a row there is nothing to learn: no rank runs a
        backward pass, gradients stay unset, and the optimizer's step changes nothing.

        Returns:
            This rank's loss, of which the mean over ranks is the update's; and what is logged, the same on all ranks:
            that mean, means over tokens by their weights, and raw over computed tokens.
        """
        sums: dict[str, torch.Tensor] = defaultdict(
            lambda: torch.zeros((), device=self.accelerator.device)
        )
        micro_batches = self._plan(batch.rows)
        with self._sharing(model):
            for index, rows in enumerate(micro_batches):
                last = index == len(micro_batches) - 1
                # DeepSpeed steps inside the backward pass that this flag marks.
                self.accelerator.gradient_state._set_sync_gradients(last)
                with self._accumulating(model, last):
                    for name, value in self._backward(model, rows, batch.normalizer).items():
                        sums[name] += value
        loss = sums["loss"]
        if not micro_batches:
            return loss, {}
        totals = self.accelerator.reduce(torch.stack(list(sums.values())), reduction="sum").tolist()
        log = dict(zip(sums, totals, strict=True))
        loss_mean = log.pop("loss") / self.accelerator.num_processes
        packing_ratio, weight = log.pop("raw") / log.pop("computed"), log.pop("weight")
        means = {name: total / weight for name, total in log.items()}
        if means.get(MASKED, 0.0) > 0.5:
            logger.warning_once(
                f"vllm_importance_sampling_mode masks or truncates most tokens ({MASKED} in the log): what is trained "
                "is not what the engine samples from. Look at dtypes, temperature and weights."
            )
        return loss, means | {"loss": loss_mean, "packing_ratio": packing_ratio}

    @torch.no_grad()
    def with_old_logprobs(self, model: Any, batch: Batch) -> Batch:
        """The same rows, with their log-probabilities under the weights as they are; collective: rows change ranks."""
        micro_batches = self._plan(batch.rows)
        with self._sharing(model), self.accelerator.autocast():
            for rows in micro_batches:
                logps = self._inputs(rows).score(model)[0].float().cpu().numpy()
                ends = np.cumsum([len(row.logprobs) for row in rows])
                for row, of_row in zip(rows, np.split(logps, ends), strict=False):
                    row.old_logprobs = of_row
        return Batch(
            [row for rows in micro_batches for row in rows if row.weight], batch.normalizer
        )

    def _plan(self, rows: Sequence[Row]) -> list[list[Row]]:
        """This rank's micro-batches; where others have more, it takes part with a row that weighs nothing."""
        pad = [self._pad_token_id]
        return [
            rows or [Row(pad, pad, [0.0], 0, advantage=0.0, weight=0.0)]
            for rows in self.planner.plan(rows)
        ]

    def _sharing(self, model: Any) -> AbstractContextManager[Any]:
        return (
            use_tree_attention(self.accelerator.unwrap_model(model))
            if self.prefix_sharing
            else nullcontext()
        )

    def _inputs(self, rows: Sequence[Row]) -> MicroBatch:
        inputs = pack_rows(rows) if self.prefix_sharing else pad_rows(rows, self._pad_token_id)
        return inputs.to(self.accelerator.device)

    def _backward(self, model: Any, rows: list[Row], normalizer: float) -> dict[str, Any]:
        """The passes of one micro-batch; returns sums over its tokens, by what they are logged as."""
        raw = sum(len(row) for row in rows if row.weight)
        tokens, inputs = Tokens.of(rows, self.accelerator.device), self._inputs(rows)
        reference = self._reference_logps(model, inputs) if self.objective.beta else None
        with self.accelerator.autocast():
            logps, entropies = inputs.score(model)
        assert entropies is not None, "TRL's head of a policy computes them"
        total, log = self.objective(
            logps, tokens, None if self.on_policy else tokens.old, reference
        )
        # The gradients of all ranks are averaged.
        loss = total * self.accelerator.num_processes / normalizer
        # It would divide by a number of micro-batches that it is not told; transformers asks for the same.
        deepspeed = self.accelerator.distributed_type == DistributedType.DEEPSPEED
        self.accelerator.backward(loss, **({"scale_wrt_gas": False} if deepspeed else {}))
        log |= {"entropy": entropies.detach(), DIFFERENCE: (logps.detach() - tokens.sampled).abs()}
        sums = {name: (tokens.weights * value).sum() for name, value in log.items()}
        return sums | {
            "loss": loss.detach(),
            "weight": tokens.weights.sum(),
            "raw": raw,
            "computed": inputs.computed,
        }

    @torch.no_grad()
    def _reference_logps(self, model: Any, inputs: MicroBatch) -> torch.Tensor:
        """Log-probabilities under TRL's reference: its copy of the model, or the model without its adapter."""
        with self.accelerator.autocast():
            if self._reference is not None:
                return inputs.score(self._reference)[0]
            adapted = self.accelerator.unwrap_model(model)
            trained = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
            with use_adapter(adapted, adapter_name="ref" if "ref" in adapted.peft_config else None):
                # peft freezes them, and by what is trained FSDP2 chooses the dtypes of gradients, in this first pass.
                for parameter in trained:
                    parameter.requires_grad_(True)
                return inputs.score(adapted)[0]

    def _accumulating(self, model: Any, last: bool) -> AbstractContextManager[Any]:
        """Under DDP, ranks wait for each other only in the last micro-batch. FSDP2 would keep the gradients of all
        parameters on every rank meanwhile, in the dtype of the pass: there every micro-batch is reduced to shards."""
        if (
            last
            or self.accelerator.distributed_type == DistributedType.DEEPSPEED
            or self.accelerator.is_fsdp2
        ):
            return nullcontext()
        return self.accelerator.no_sync(model)


def updates_of_epoch(count: int) -> DataLoader[Any]:
    """A data loader that does no more than count: what an update trains on is sampled when it begins."""
    # With a generator of its own, for it would draw from the global one.
    updates: Any = [{"update": index} for index in range(count)]
    return DataLoader(updates, generator=torch.Generator())


def environment_reward(**_: Any) -> list[float]:
    """TRL wants a reward function; the environment scores episodes, so this one is never called."""
    raise AssertionError("episodes are scored by their environment")
