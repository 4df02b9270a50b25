"""Sources of training episodes: the interface of a backend, and the local one."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from trl.models import unwrap_model_for_generation

from atommem.policy.local import LocalPolicy
from atommem.rollout import EpisodeRunner
from atommem.train.rollout.rollouts import Rollouts


class Backend:
    """Samples episodes from the weights that are being trained.

    `runner` runs this rank's episodes; None where another rank samples for it. Ranks make different
    numbers of model calls, so nothing in it may be a collective operation.
    """

    def __init__(self, runner: EpisodeRunner | None) -> None:
        self.runner: Any = runner
        self.policy: Any = runner and runner.agent.policy

    def publish(self, trainer: Any) -> None:
        """Give the sampling side the trainer's weights; all ranks, before every rollout."""

    def rollout(self, trainer: Any) -> AbstractContextManager[None]:
        """Enter a rollout, on every rank."""
        return nullcontext()

    async def close(self) -> None:
        """Free what the backend holds, with policy and embedder of its runner."""
        await self.policy.close()
        await self.runner.agent.embedder.close()


class LocalBackend(Backend):
    """Samples from the training model itself: there is nothing to publish."""

    @contextmanager
    def rollout(self, trainer: Any) -> Iterator[None]:
        """Unwrap the model and gather its parameters, without gradients."""
        args, model, accelerator = trainer.args, trainer.model_wrapped, trainer.accelerator
        unwrapped, gather = accelerator.unwrap_model(model), args.ds3_gather_for_generation
        is_checkpointed = unwrapped.is_gradient_checkpointing
        if is_checkpointed:  # TRL's function would turn it on again without its arguments
            unwrapped.gradient_checkpointing_disable()
        gathered = unwrap_model_for_generation(model, accelerator, gather_deepspeed3_params=gather)
        with gathered, torch.no_grad(), _unsharded(trainer):
            yield
        if is_checkpointed:
            unwrapped.gradient_checkpointing_enable(args.gradient_checkpointing_kwargs)


@contextmanager
def _unsharded(trainer: Any) -> Iterator[None]:
    """Keep FSDP2's parameters gathered: that is collective, and ranks differ in forward passes."""
    sharded = [m for m in trainer.model_wrapped.modules() if isinstance(m, FSDPModule)]
    for module in sharded:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        for module in sharded:
            plugin = trainer.accelerator.state.fsdp_plugin
            module.reshard()
            module.set_reshard_after_forward(plugin.reshard_after_forward, recurse=False)


def make_local_policy(
    rollouts: Rollouts, model: Any, kind: type[LocalPolicy] = LocalPolicy
) -> LocalPolicy:
    args = rollouts.args
    limits = {"max_batch_size": args.rollout_batch_size, "max_batch_tokens": args.max_batch_tokens}
    return kind(model, rollouts.tokenizer, autocast=bool(args.bf16), **limits)


def make_local_backend(rollouts: Rollouts, model: Any) -> LocalBackend:
    return LocalBackend(rollouts.runner(make_local_policy(rollouts, model)))
