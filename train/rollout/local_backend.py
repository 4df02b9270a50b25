"""Sampling from the very model that is trained, in the same process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from trl.models.utils import unwrap_model_for_generation

from atommem.episode_runner import EpisodeRunner
from atommem.policy.local import LocalPolicy
from atommem.train.rollout.backend import TrainingSide
from atommem.train.rollout.episodes import Rollouts
from atommem.train.train_config import TrainConfig


class LocalBackend:
    """A `atommem.train.rollout.backend.Backend` without a second copy of the weights: there is nothing to publish.

    Args:
        runner: Samples from the training model.
    """

    def __init__(self, runner: EpisodeRunner) -> None:
        self.runner = runner

    def publish(self, trainer: TrainingSide) -> None:
        """Nothing to do."""

    @contextmanager
    def rollout(self, trainer: TrainingSide) -> Iterator[None]:
        """The model unwrapped, with its parameters gathered, and without gradients."""
        with (
            unwrap_model_for_generation(
                trainer.model_wrapped,
                trainer.accelerator,
                gather_deepspeed3_params=trainer.args.ds3_gather_for_generation,
                gradient_checkpointing_kwargs=trainer.args.gradient_checkpointing_kwargs,
            ),
            torch.no_grad(),
            trainer._dist.summon_full_params(trainer.model_wrapped, recurse=False),
            _unsharded(trainer),
        ):
            yield

    def metrics(self) -> dict[str, float]:
        """Nothing beyond what the trainer measures."""
        return {}

    async def close(self) -> None:
        """End the policy's thread."""
        await self.runner.agent.policy.close()


@contextmanager
def _unsharded(trainer: TrainingSide) -> Iterator[None]:
    """Under FSDP2, every parameter in whole until the end: a forward pass would gather them, which is
    collective, and ranks run different numbers of forward passes.
    """
    if not trainer.accelerator.is_fsdp2:
        yield
        return
    from torch.distributed.fsdp import FSDPModule

    sharded = [module for module in trainer.model_wrapped.modules() if isinstance(module, FSDPModule)]
    for module in sharded:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        for module in sharded:
            module.reshard()
            module.set_reshard_after_forward(trainer.accelerator.state.fsdp_plugin.reshard_after_forward, recurse=False)


def local_backend(rollouts: Rollouts) -> Callable[[Any], LocalBackend]:
    """What `MemoryGRPOTrainer` calls with its model: a backend that samples from that very model."""

    def make(model: Any) -> LocalBackend:
        args: TrainConfig = rollouts.args
        policy = LocalPolicy(
            model,
            rollouts.tokenizer,
            max_batch_size=args.rollout_batch_size,
            max_batch_tokens=args.rollout_batch_tokens,
        )
        return LocalBackend(rollouts.runner(policy, args.max_in_flight))

    return make
