"""Where the rollout worker samples from: a copy of the model in this process, or vLLM servers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import torch

from atommem.episode_runner import EpisodeRunner
from atommem.policy.contract import Completion
from atommem.policy.decoding import Row
from atommem.policy.local import LocalPolicy
from atommem.train.async_config import AsyncTrainConfig
from atommem.train.rollout.episodes import Rollouts
from atommem.train.rollout.server_backend import server_pool


class CopyPolicy(LocalPolicy):
    """A second model of this process, and a ``WeightTransferProtocol`` into it. It has the parameters of the trained
    one (an adapter arrives merged), which are exchanged between two batches."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lock = threading.Lock()

    def _sample(self, rows: list[Row]) -> list[Completion]:
        with self._lock:
            return super()._sample(rows)

    def init_weight_transfer(self) -> None:
        """Nothing to set up."""

    def pause(self) -> None:
        """Wait for the batch that is being sampled; no other one begins."""
        self._lock.acquire()

    @torch.no_grad()
    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Copy every ``(name, tensor)``."""
        for name, tensor in iterator:
            self.model.get_parameter(name).copy_(tensor)

    def resume(self) -> None:
        """Sampling goes on, with the new weights."""
        self._lock.release()

    def destroy(self) -> None:
        """Let sampling end, also where a transfer broke off."""
        if self._lock.locked():
            self._lock.release()


def make_runner(rollouts: Rollouts, model_path: str, device: Any) -> EpisodeRunner:
    """What runs the episodes, on the main process.

    Args:
        rollouts: How episodes run, and where they are sampled (`use_vllm`).
        model_path: The model that is trained; a copy is loaded from it when there is no server.
        device: The copy's.
    """
    args: AsyncTrainConfig = rollouts.args
    if not args.use_vllm:
        copied = CopyPolicy.from_pretrained(
            model_path,
            dtype=(args.model_init_kwargs or {}).get("dtype", args.dtype),
            device=device,
            max_batch_size=args.rollout_batch_size,
            max_batch_tokens=args.rollout_batch_tokens,
        )
        return rollouts.runner(copied)
    return rollouts.runner(server_pool(rollouts, timeout=args.request_timeout))
