"""One update on rows of episodes: forward and backward passes, on-policy or asynchronous."""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, InitVar, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate.utils import DistributedType, gather_object
from transformers import logging

from atommem.config import field_names
from atommem.episode import Episode
from atommem.train.errors import MemoryFault
from atommem.train.loops.models import reduce_in_float32, use_reference
from atommem.train.objective.loss import CORRECTION, PolicyLoss, corrections_by_length
from atommem.train.objective.rows import (
    EpisodeSize,
    Row,
    Tokens,
    advantages_of_steps,
    episode_rows,
    gradient_shares,
    group_advantages,
    normalizer,
)
from atommem.train.packing.micro_batch import (
    MicroBatch,
    pack_rows,
    pad_rows,
    pair_cost,
    plan_micro_batches,
)
from atommem.train.packing.tree_attention import (
    ATTENTION_NAME,
    describe_kernel,
    tree_obstacle,
    use_tree_attention,
)

DIFFERENCE = "sampling/sampling_logp_difference/mean"  # of training and sampling, nats
MOST_DIFFERENCE = 0.1  # between vLLM and a trainer in bfloat16, others measured half of it

_PASSES_BY_RANK = (DistributedType.MULTI_GPU, DistributedType.MULTI_CPU)  # under DDP

logger = logging.get_logger(__name__)


class Batch(NamedTuple):
    """The rows of one rank in one update, and the normalizer of all ranks' rows."""

    rows: list[Row]
    normalizer: float


def batch_of(episodes: Sequence[Episode], args: Any) -> tuple[Batch, dict[str, float]]:
    """Make the batch of an update's episodes, group after group; also returns `gradient_shares`."""
    rewards = [episode.reward for episode in episodes]
    advantages = group_advantages(rewards, args.num_generations, str(args.scale_rewards))
    sizes = [EpisodeSize.of(episode, args.overlong_filtering) for episode in episodes]
    (batch,) = make_batches(episodes, advantages_of_steps(advantages, episodes), sizes, args)
    return batch, gradient_shares(sizes, advantages, args.normalization)


def make_batches(
    episodes: Sequence[Episode],
    advantages: Sequence[Sequence[float]],
    sizes: Sequence[EpisodeSize],
    args: Any,
    updates: int = 1,
    first: int = 0,
) -> list[Batch]:
    """Make the batches of the `updates` that share out a rollout's episodes evenly.

    The loss of each is divided by their mean size. `episodes` are this rank's, beginning with
    number `first` of all ranks', `advantages` one for each step of each, `sizes` of all ranks.
    """
    over = normalizer(sizes, args.normalization, args.max_completion_length or 1) / updates
    batches = []
    for update in range(updates):
        # Parts of the global batch, so that they are the same on any number of ranks.
        ends = [len(sizes) * index // updates for index in (update, update + 1)]
        part = slice(*(max(0, end - first) for end in ends))
        settings = (args.normalization, args.overlong_filtering, args.beta != 0)
        batches.append(Batch(episode_rows(episodes[part], advantages[part], *settings), over))
    return batches


def policy_loss(args: Any) -> PolicyLoss:
    """Make the loss of an `EpisodeConfig`; asynchronous training corrects nothing."""
    given = {name: getattr(args, name) for name in field_names(PolicyLoss) if hasattr(args, name)}
    if args.epsilon_high is None:
        given["epsilon_high"] = args.epsilon
    if not (args.use_vllm and getattr(args, "vllm_importance_sampling_correction", False)):
        given["vllm_importance_sampling_mode"] = None
    return PolicyLoss(**given)


@dataclass(eq=False)
class UpdateStep:
    """The passes of an update of `model`, which has TRL's fused LM head.

    With `prefix_sharing` rows are packed as tries, if attention can follow them. Unless
    `on_policy`, the ratio is against the rows' old log-probabilities. The KL term is against
    `reference`, or `model` without its adapter. See `plan_micro_batches` for `token_budget`.
    """

    accelerator: Any
    model: InitVar[Any]
    loss: PolicyLoss
    token_budget: int
    pad_token_id: int
    _: KW_ONLY
    prefix_sharing: bool = True
    on_policy: bool = True
    reference: Any = None

    def __post_init__(self, model: Any) -> None:
        accelerator = self.accelerator
        self._deepspeed = accelerator.distributed_type == DistributedType.DEEPSPEED
        reduce_in_float32(accelerator)
        unwrapped = accelerator.unwrap_model(model)
        if self.prefix_sharing and (obstacle := tree_obstacle(unwrapped)):
            logger.warning(f"prefix_sharing is off, and rows are padded: {obstacle}.")
            self.prefix_sharing = False
        self._pair_cost = pair_cost(unwrapped.config.get_text_config())
        if self.prefix_sharing:
            if accelerator.device.type != "cpu":
                accelerator.print(f"attention along tries: {describe_kernel(accelerator.device)}")
            if self.reference is not None:
                accelerator.unwrap_model(self.reference).set_attn_implementation(ATTENTION_NAME)

    def run(self, model: Any, batch: Batch) -> tuple[torch.Tensor, dict[str, float]]:
        """Add the update's gradients to the parameters; collective.

        If no rank has a row, gradients stay unset, and the optimizer's step changes nothing.
        Returns this rank's loss, and what is logged, the same on all ranks: the mean loss, means
        over tokens by weight, and `packing_ratio` (raw over computed tokens).

        MemoryFault if a device ran out of memory and all ranks know it: in a single process, or
        under DDP before the last micro-batch. Elsewhere the others wait in a collective.
        """
        accelerator = self.accelerator
        sums = defaultdict[str, torch.Tensor](lambda: torch.zeros((), device=accelerator.device))
        micro_batches = self._plan(batch.rows)
        corrected: list[torch.Tensor] = []  # of each row, for `corrections_by_length`
        alone = accelerator.num_processes == 1
        by_rank = accelerator.distributed_type in _PASSES_BY_RANK
        shortage = ""
        with self._sharing(model):
            for index, rows in enumerate(micro_batches):
                last = index == len(micro_batches) - 1
                if last and by_rank:
                    self._check_memory(shortage)
                if shortage:
                    continue
                # DeepSpeed steps inside the backward pass that this flag marks.
                accelerator.sync_gradients = last
                try:
                    with self._accumulating(model, last):
                        found = self._backward(model, rows, batch.normalizer, corrected)
                except torch.OutOfMemoryError as error:
                    shortage = str(error)
                    if alone:
                        self._check_memory(shortage)
                    if last or not by_rank:
                        raise
                else:
                    for name, value in found.items():
                        sums[name] += value
        loss = sums["loss"]
        if not micro_batches:
            return loss, {}
        totals = accelerator.reduce(torch.stack(list(sums.values())), reduction="sum").tolist()
        log = dict(zip(sums, totals, strict=True))
        loss_mean = log.pop("loss") / accelerator.num_processes
        packing_ratio, weight = log.pop("raw") / log.pop("computed"), log.pop("weight")
        means = {name: total / weight for name, total in log.items()}
        if corrected:
            means |= corrections_by_length(gather_object(torch.stack(corrected).tolist()))
        corrections = [value for name, value in means.items() if name.startswith(CORRECTION)]
        if corrections and not 0.9 <= min(corrections) <= max(corrections) <= 1.1:
            logger.warning_once(
                f"vllm_importance_sampling_mode changes the weight of tokens ({CORRECTION} in the "
                "log, by length from _q1 to _q4; 1 is neutral). Use token_truncate; else the "
                "engine samples from another distribution: check dtypes and temperature."
            )
        if self.on_policy and means[DIFFERENCE] > MOST_DIFFERENCE:
            logger.warning_once(
                f"log-probabilities in training and at sampling differ by over {MOST_DIFFERENCE} "
                f"nats a token ({DIFFERENCE} in the log): another policy is trained than sampled. "
                "Check dtypes; TRL's fused head or padded rows may not suit this model."
            )
        return loss, means | {"loss": loss_mean, "packing_ratio": packing_ratio}

    def _check_memory(self, shortage: str) -> None:
        """Raise MemoryFault on all ranks if one has a `shortage`; collective."""
        if found := sorted(filter(None, gather_object([shortage]))):
            raise MemoryFault(
                f"a device ran out of memory in an update: {found[0]}. Lower token_budget or "
                "vllm_gpu_memory_utilization, or set gradient_checkpointing: true"
            )

    @torch.no_grad()
    def with_old_logprobs(self, model: Any, rows: Sequence[Row]) -> list[Row]:
        """Return rows with log-probabilities under the current weights; they change ranks."""
        micro_batches = self._plan(rows)
        with self._sharing(model), self.accelerator.autocast():
            for micro_batch in micro_batches:
                logps = self._inputs(micro_batch).score(model)[0].float().cpu().numpy()
                ends = np.cumsum([len(row.logprobs) for row in micro_batch])
                for row, of_row in zip(micro_batch, np.split(logps, ends), strict=False):
                    row.old_logprobs = of_row
        return [row for micro_batch in micro_batches for row in micro_batch if row.weight]

    def _plan(self, rows: Sequence[Row]) -> list[list[Row]]:
        """Plan this rank's micro-batches; an empty one gets a row of weight 0."""
        pad = [self.pad_token_id]
        empty = Row(pad, pad, [0.0], advantage=0.0, weight=0.0)
        given = self._pair_cost, self.token_budget, self.prefix_sharing
        planned = plan_micro_batches(rows, *given, self.accelerator.process_index)
        return [micro_batch or [empty] for micro_batch in planned]

    def _sharing(self, model: Any) -> AbstractContextManager[Any]:
        unwrapped = self.accelerator.unwrap_model(model)
        return use_tree_attention(unwrapped) if self.prefix_sharing else nullcontext()

    def _inputs(self, rows: Sequence[Row]) -> MicroBatch:
        inputs = pack_rows(rows) if self.prefix_sharing else pad_rows(rows, self.pad_token_id)
        return inputs.to(self.accelerator.device)

    def _backward(
        self, model: Any, rows: list[Row], normalizer: float, corrected: list[torch.Tensor]
    ) -> dict[str, Any]:
        """Run the passes of one micro-batch; returns sums over its tokens by log name."""
        raw = sum(len(row) for row in rows if row.weight)
        tokens, inputs = Tokens.of(rows, self.accelerator.device), self._inputs(rows)
        reference = self._reference_logps(model, inputs) if self.loss.beta else None
        with self.accelerator.autocast():
            logps, entropies = inputs.score(model)
        assert entropies is not None, "TRL's fused head computes them"
        old_logprobs = None if self.on_policy else tokens.old_logprobs
        total, log = self.loss(logps, tokens, old_logprobs, reference)
        # The gradients of all ranks are averaged.
        loss = total * self.accelerator.num_processes / normalizer
        # DeepSpeed would divide by gradient_accumulation_steps.
        self.accelerator.backward(loss, **({"scale_wrt_gas": False} if self._deepspeed else {}))
        difference = (logps.detach() - tokens.logprobs).abs()
        log |= {"entropy": entropies.detach(), DIFFERENCE: difference}
        sums = {name: (tokens.weights * value).sum() for name, value in log.items()}
        if CORRECTION in log:
            parts = (torch.ones_like(logps), tokens.weights, tokens.weights * log[CORRECTION])
            corrected += (of_row.sum(1) for of_row in torch.stack(parts).split(tokens.counts, 1))
        return sums | {
            "loss": loss.detach(),
            "weight": tokens.weights.sum(),
            "raw": raw,
            "computed": inputs.computed,
        }

    @torch.no_grad()
    def _reference_logps(self, model: Any, inputs: MicroBatch) -> torch.Tensor:
        """Score the rows under the reference: a copy, or the model without its adapter."""
        with self.accelerator.autocast():
            if self.reference is not None:
                return inputs.score(self.reference)[0]
            adapted = self.accelerator.unwrap_model(model)
            trained = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
            with use_reference(adapted):
                # peft freezes them, but FSDP2 chooses gradient dtypes in its first pass.
                for parameter in trained:
                    parameter.requires_grad_(True)
                return inputs.score(adapted)[0]

    def _accumulating(self, model: Any, last: bool) -> AbstractContextManager[Any]:
        """Under DDP, reduce in the last micro-batch; FSDP2 would keep unsharded gradients."""
        at_once = last or self._deepspeed or self.accelerator.is_fsdp2
        return nullcontext() if at_once else self.accelerator.no_sync(model)


def save_batches(folder: Path, rank: int, rollout: int, batches: Sequence[Batch]) -> None:
    """Save this rank's batches of a rollout, for a checkpoint between two updates on it."""
    states = [(batch.normalizer, [_row_state(row) for row in batch.rows]) for batch in batches]
    folder.mkdir(parents=True, exist_ok=True)
    torch.save((rollout, states), folder / f"rollout_{rank}.pt")


def _row_state(row: Row) -> list[Any]:
    values = (getattr(row, name) for name in field_names(Row))
    return [torch.from_numpy(v) if isinstance(v, np.ndarray) else v for v in values]


def load_batches(folder: Path, rank: int, ranks: int) -> tuple[int, list[Batch]]:
    """Load the rollout's number and this rank's batches, of any number of ranks; or (-1, [])."""
    files = [folder / f"rollout_{i}.pt" for i in range(len(list(folder.glob("rollout_*.pt"))))]
    if not files:
        return -1, []
    # A rank without a file has no rows, but needs the number of batches.
    saved = [torch.load(file, weights_only=True) for file in files[rank::ranks] or files[:1]]
    batches = []
    for parts in zip(*(states for _, states in saved), strict=True):
        rows = [Row(*row) for _, rows in parts for row in rows if rank < len(files)]
        batches.append(Batch(rows, parts[0][0]))
    return saved[0][0], batches
