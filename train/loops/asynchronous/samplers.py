"""Where the rollout worker samples from, and how it gets new weights: a copy in this process, or vLLM servers."""

from __future__ import annotations

import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from atommem.episode_runner import EpisodeRunner
from atommem.policy.completions import Completion
from atommem.policy.decoding import Row
from atommem.policy.local import LocalPolicy
from atommem.policy.server_pool import Adapter, ServerPool
from atommem.train.async_config import AsyncTrainConfig
from atommem.train.loops.asynchronous.worker import LoopThread
from atommem.train.rollout.episodes import Rollouts


@dataclass(frozen=True)
class Sampler:
    """What `AsyncMemoryGRPOTrainer` asks of the side that samples. It exists on the main process only.

    Attributes:
        loop: Where its episodes run.
        runner: Runs them.
        weights: A ``WeightTransferProtocol``; an `AdapterTransfer` for LoRA on vLLM servers; None for TRL's
            own transfer of full weights over NCCL.
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


class AdapterTransfer:
    """Makes LoRA adapters known to the servers of a pool; each version has a name of its own.

    Requests in flight keep the version that they asked for, so sampling is not paused. The versions
    that `kept` later ones have followed are unloaded and removed.

    Args:
        loop: The pool's.
        pool: The servers. They need ``--enable-lora``, ``--max-loras`` of at least `kept` and
            ``VLLM_ALLOW_RUNTIME_LORA_UPDATING=1``, and must see the trainer's output folder.
        kept: Versions that requests may still name.
    """

    def __init__(self, loop: LoopThread, pool: ServerPool, kept: int) -> None:
        self._loop = loop
        self._pool = pool
        self._kept = kept
        self._published: deque[Adapter] = deque()

    def publish(self, name: str, folder: Path) -> None:
        """Load the adapter in `folder` on every server under `name`; requests from now on ask for it.

        Raises:
            OutageError: No server could be reached.
            PolicyError: A server cannot load it.
        """
        adapter = Adapter(name, str(folder))
        self._loop.spawn(self._pool.use_adapter(adapter)).result()
        self._published.append(adapter)
        while len(self._published) > self._kept:
            old = self._published.popleft()
            self._loop.spawn(self._unload(old.name)).result()
            shutil.rmtree(old.path, ignore_errors=True)

    async def _unload(self, name: str) -> None:
        for server in self._pool.serving:
            await server.control.unload_adapter(name)

    def init_weight_transfer(self) -> None:
        """Nothing to set up: the first adapter waits for the servers."""

    def pause(self) -> None:
        """Not needed: requests name their weights."""

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Not used: adapters are published as files."""
        raise AssertionError("adapters are published as files")

    def resume(self) -> None:
        """Not needed."""

    def destroy(self) -> None:
        """Nothing to free: the servers keep the last versions."""


def make_sampler(rollouts: Rollouts, model_path: str, lora: bool) -> Callable[[Any], Sampler]:
    """What `AsyncMemoryGRPOTrainer` calls on its main process, with its device.

    Args:
        rollouts: How episodes run, and where they are sampled (`use_vllm`).
        model_path: The model that is trained; a copy is loaded from it when there is no server.
        lora: Whether an adapter is trained.
    """

    def make(device: Any) -> Sampler:
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
        # One more than may be asked for: a version is loaded before the oldest one goes.
        weights = AdapterTransfer(loop, pool, kept=args.max_staleness + 2) if lora else None
        return Sampler(loop, rollouts.runner(pool), weights)

    return make
