"""Sampling from the very model that is trained, in the same process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from trl.models.utils import unwrap_model_for_generation

from atommem.policy.local import LocalPolicy
from atommem.train.rollout.backend import Backend, TrainingSide
from atommem.train.rollout.episodes import Rollouts
from atommem.train.train_config import TrainConfig


class LocalBackend(Backend):
    """Samples from the training model itself: there is nothing to publish."""

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


@contextmanager
def _unsharded(trainer: TrainingSide) -> Iterator[None]:
    """Under FSDP2, every parameter in whole until the end: a forward pass would gather them, which is
    collective, and ranks run different numbers of forward passes.
    """
    if not trainer.accelerator.is_fsdp2:
        yield
        return
    from torch.distributed.fsdp import FSDPModule

    sharded = [
        module for module in trainer.model_wrapped.modules() if isinstance(module, FSDPModule)
    ]
    for module in sharded:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        for module in sharded:
            module.reshard()
            module.set_reshard_after_forward(
                trainer.accelerator.state.fsdp_plugin.reshard_after_forward, recurse=False
            )


def local_backend(rollouts: Rollouts, model: Any) -> LocalBackend:
    """A backend that samples from `model`, which is trained."""
    args: TrainConfig = rollouts.args
    sizes = {
        "max_batch_size": args.rollout_batch_size,
        "max_batch_tokens": args.rollout_batch_tokens,
    }
    return LocalBackend(
        rollouts.runner(LocalPolicy(model, rollouts.tokenizer, **sizes), args.max_in_flight)
    )
