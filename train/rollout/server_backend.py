"""Sampling from vLLM servers. Every rank talks to them by itself: nothing during a rollout waits for another rank."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from peft import PeftModel

from atommem.episode_runner import EpisodeRunner
from atommem.episode_stats import add_sums
from atommem.errors import OutageError
from atommem.policy.server_pool import ServerPool
from atommem.train.rollout.adapters import KEPT, AdapterPublisher
from atommem.train.rollout.backend import Backend, TrainingSide
from atommem.train.rollout.episodes import Rollouts
from atommem.train.rollout.full_weights import FullWeights
from atommem.train.train_config import TrainConfig

COUNTERS = (
    "vllm:prefix_cache_hits_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prompt_tokens_total",
)


class WeightSync(Protocol):
    """Brings the trainer's weights to the servers of a pool. All ranks call it together."""

    def publish(self, trainer: TrainingSide, pool: ServerPool | None) -> None:
        """Raises OutageError when no server takes them. In asynchronous training only the main process has a pool."""
        ...

    async def close(self, pool: ServerPool) -> None:
        """Take back what was left on disk and servers."""
        ...


class AdapterSync:
    """LoRA: the adapter goes to a folder, and every server loads it under a new name.

    Args:
        publisher: Writes the folders.
    """

    def __init__(self, publisher: AdapterPublisher) -> None:
        self._publisher = publisher
        self._main = False

    def publish(self, trainer: TrainingSide, pool: ServerPool | None) -> None:
        """Save the adapter, have it loaded, forget what nobody asks for any more.

        Every rank loads it by itself: the second time is a no-op, and no rank needs to know which
        servers another one has lost.
        """
        adapter, outdated = self._publisher.save(trainer)
        if pool is None:
            return
        trainer.run_async(pool.use_adapter(adapter))
        self._main = trainer.accelerator.is_main_process
        if self._main:
            for old in outdated:
                trainer.run_async(
                    _gather(server.admin.unload_adapter(old.name) for server in pool.serving)
                )
            self._publisher.remove(outdated)

    async def close(self, pool: ServerPool) -> None:
        """Unload and delete what is left."""
        if self._main:
            for old in self._publisher.close():
                await _gather(server.admin.unload_adapter(old.name) for server in pool.serving)


class ServerBackend(Backend):
    """Samples from vLLM servers.

    Args:
        runner: Its policy is `pool`.
        pool: The servers.
        sync: How they get the weights.
    """

    def __init__(self, runner: EpisodeRunner, pool: ServerPool, sync: WeightSync) -> None:
        super().__init__(runner)
        self.pool = pool
        self._sync = sync
        self._lost = 0
        self._grown: dict[str, float] = {}

    def publish(self, trainer: TrainingSide) -> None:
        """Give all servers the current weights.

        Raises:
            OutageError: None of them takes them.
        """
        self._sync.publish(trainer, self.pool)

    @contextmanager
    def rollout(self, trainer: TrainingSide) -> Iterator[None]:
        """On the main process: what the servers counted meanwhile becomes metrics."""
        if not trainer.accelerator.is_main_process:
            yield
            return
        before = trainer.run_async(self._counters())
        yield
        after = trainer.run_async(self._counters())
        self._grown = add_sums([self._grown, counter_growth(before, after)])

    def metrics(self) -> dict[str, float]:
        """Prompt tokens and the part of them that the prefix cache served, servers lost and serving; from the main
        process only."""
        measured, self._grown = rollout_metrics(self._grown), {}
        if measured:
            measured |= {
                "servers/lost": self.pool.drops - self._lost,
                "servers/serving": len(self.pool.serving),
            }
        self._lost = self.pool.drops
        return measured

    async def close(self) -> None:
        """Remove adapters and close connections."""
        await self._sync.close(self.pool)
        await self.pool.close()

    async def _counters(self) -> dict[str, dict[str, float]]:
        """The counters of each server that answers, by its URL."""

        async def ask(url: str, metrics: Any) -> tuple[str, dict[str, float]]:
            try:
                return url, await metrics()
            except OutageError:
                return url, {}

        return dict(
            await _gather(ask(server.url, server.admin.metrics) for server in self.pool.serving)
        )


def counter_growth(
    before: dict[str, dict[str, float]], after: dict[str, dict[str, float]]
) -> dict[str, float]:
    """By how much each of `COUNTERS` grew on all servers between two readings (by URL, then by name).

    A counter that went back is of a server that was started anew, and counts from 0.
    """
    growth = dict.fromkeys(COUNTERS, 0.0)
    for url, counters in after.items():
        for name in COUNTERS:
            end, start = counters.get(name, 0.0), before.get(url, {}).get(name, 0.0)
            growth[name] += end - start if end >= start else end
    return growth


def rollout_metrics(growth: dict[str, float]) -> dict[str, float]:
    """What is logged of `counter_growth`; nothing of nothing."""
    if not growth:
        return {}
    hits, queries, prompts = (growth[name] for name in COUNTERS)
    return {
        "vllm/prompt_tokens": prompts,
        "vllm/prefix_cache_hits": hits,
        "vllm/prefix_cache_hit_rate": hits / queries if queries else 0.0,
    }


def server_backend(rollouts: Rollouts, model: Any) -> ServerBackend:
    """A backend over ``args.vllm_server_urls``, which serve `model` as it is trained."""
    args: TrainConfig = rollouts.args
    pool = server_pool(rollouts, max_in_flight=1024)  # the servers queue what is too much for them
    return ServerBackend(
        rollouts.runner(pool, args.max_in_flight),
        pool,
        weight_sync(args, isinstance(model, PeftModel)),
    )


def server_pool(rollouts: Rollouts, **settings: Any) -> ServerPool:
    """The servers that the run samples from."""
    return ServerPool(
        rollouts.args.vllm_server_urls,
        tokenizer=rollouts.tokenizer,
        send_seeds=False,  # they slow vLLM down, and do not make it deterministic
        patience=rollouts.args.vllm_server_timeout,
        scaled_logprobs=True,
        **settings,
    )


def weight_sync(args: Any, lora: bool, kept: int = KEPT) -> WeightSync:
    """How servers get what is trained; `kept` versions of an adapter stay."""
    if lora:
        return AdapterSync(AdapterPublisher(Path(args.output_dir) / "adapters", kept))
    return FullWeights(args.vllm_server_timeout)


async def _gather(calls: Any) -> list[Any]:
    return await asyncio.gather(*calls)
