"""Where the rollout worker samples from: a copy of the model in this process, or vLLM servers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from atommem.episode_runner import EpisodeRunner
from atommem.policy.completions import Completion
from atommem.policy.decoding import Row
from atommem.policy.local import LocalPolicy
from atommem.policy.server_pool import ServerPool
from atommem.train.async_config import AsyncTrainConfig
from atommem.train.loops.asynchronous.worker import LoopThread
from atommem.train.rollout.episodes import Rollouts


@dataclass(frozen=True)
class Sampler:
    """What `AsyncMemoryGRPOTrainer` asks of the side that samples. It exists on the main process only.

    Attributes:
        loop: Where its episodes run.
        runner: Runs them.
        weights: A ``WeightTransferProtocol``; None for servers, which get theirs from a
            `atommem.train.rollout.server_backend.WeightSync`.
    """

    loop: LoopThread
    runner: EpisodeRunner
    weights: Any


class CopyPolicy(LocalPolicy):
    """A `LocalPolicy` whose weights may be exchanged between two batches: whoever does it holds `lock`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lock = threading.Lock()

    def _sample(self, rows: list[Row]) -> list[Completion]:
        with self.lock:
            return super()._sample(rows)


class CopyTransfer:
    """A ``WeightTransferProtocol`` into a second model of this process.

    Args:
        policy: Its model has the parameters of the trained one (an adapter arrives merged).
    """

    def __init__(self, policy: CopyPolicy) -> None:
        self._policy = policy
        self._parameters = dict(policy.model.named_parameters())

    def init_weight_transfer(self) -> None:
        """Nothing to set up."""

    def pause(self) -> None:
        """Wait for the batch that is being sampled; no other one begins."""
        self._policy.lock.acquire()

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Copy every ``(name, tensor)``."""
        with torch.no_grad():
            for name, tensor in iterator:
                self._parameters[name].copy_(tensor)

    def resume(self) -> None:
        """Sampling goes on, with the new weights."""
        self._policy.lock.release()

    def destroy(self) -> None:
        """Let sampling end, also where a transfer broke off."""
        if self._policy.lock.locked():
            self._policy.lock.release()


def make_sampler(rollouts: Rollouts, model_path: str, device: Any) -> Sampler:
    """What samples, on the main process.

    Args:
        rollouts: How episodes run, and where they are sampled (`use_vllm`).
        model_path: The model that is trained; a copy is loaded from it when there is no server.
        device: The copy's.
    """
    args: AsyncTrainConfig = rollouts.args
    loop = LoopThread()
    if not args.use_vllm:
        copied = CopyPolicy.from_pretrained(
            model_path,
            dtype=(args.model_init_kwargs or {}).get("dtype", args.dtype),
            device=device,
            max_batch_size=args.rollout_batch_size,
            max_batch_tokens=args.rollout_batch_tokens,
        )
        return Sampler(loop, rollouts.runner(copied), CopyTransfer(copied))
    pool = ServerPool(
        args.vllm_server_urls,
        tokenizer=rollouts.tokenizer,
        send_seeds=False,  # as on-policy: they slow vLLM down, and do not make it deterministic
        timeout=args.request_timeout,
        patience=args.vllm_server_timeout,
        scaled_logprobs=True,
    )
    return Sampler(loop, rollouts.runner(pool), None)
