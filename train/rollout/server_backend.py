"""Sampling from vLLM servers; every rank talks to them by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from peft import PeftModel

from atommem.episode import add_sums
from atommem.errors import OutageError
from atommem.policy.server_pool import ServerPool
from atommem.rollout import EpisodeRunner
from atommem.train.rollout.backends import Backend
from atommem.train.rollout.rollouts import Rollouts
from atommem.train.rollout.weight_sync import WeightSync, make_weight_sync
from atommem.train.train_config import TrainConfig

COUNTERS = (
    "vllm:prefix_cache_hits_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prompt_tokens_total",
)


class ServerBackend(Backend):
    """Samples from vLLM servers.

    Args:
        runner: Its policy is `pool`.
        pool: The servers.
        sync: Sends weights to them.
    """

    def __init__(self, runner: EpisodeRunner, pool: ServerPool, sync: WeightSync) -> None:
        super().__init__(runner)
        self.pool = pool
        self._sync = sync
        self._lost = 0
        self._growth: dict[str, float] = {}

    def publish(self, trainer: Any) -> None:
        """Give all servers the current weights.

        Raises:
            OutageError: None of them takes them.
        """
        self._sync.publish(trainer, self.pool)

    @contextmanager
    def rollout(self, trainer: Any) -> Iterator[None]:
        """Count what the servers do, on the main process."""
        if not trainer.accelerator.is_main_process:
            yield
            return
        before = trainer.run_async(self._read_counters())
        yield
        growth = counter_growth(before, trainer.run_async(self._read_counters()))
        self._growth = add_sums([self._growth, growth])

    def metrics(self) -> dict[str, float]:
        """Return prompt tokens, prefix cache hits, and servers lost and serving (main process)."""
        measured, self._growth = rollout_metrics(self._growth), {}
        if measured:
            measured["servers/lost"] = self.pool.drops - self._lost
            measured["servers/serving"] = len(self.pool.serving)
        self._lost = self.pool.drops
        return measured

    async def close(self) -> None:
        """Remove adapters and close connections."""
        await self._sync.close(self.pool)
        await self.pool.close()

    async def _read_counters(self) -> dict[str, dict[str, float]]:
        """Read the counters of each server that answers, by URL."""

        async def read(url: str, control: Any) -> tuple[str, dict[str, float]]:
            try:
                return url, await control.metrics()
            except OutageError:
                return url, {}

        servers = [read(server.url, server.admin) for server in self.pool.serving]
        return dict(await asyncio.gather(*servers))


def counter_growth(
    before: dict[str, dict[str, float]], after: dict[str, dict[str, float]]
) -> dict[str, float]:
    """Return the growth of each of `COUNTERS` over all servers; arguments are by URL, then name.

    A counter that went back belongs to a restarted server, and counts from 0.
    """
    growth = dict.fromkeys(COUNTERS, 0.0)
    for url, counters in after.items():
        for name in COUNTERS:
            end, start = counters.get(name, 0.0), before.get(url, {}).get(name, 0.0)
            growth[name] += end - start if end >= start else end
    return growth


def rollout_metrics(growth: dict[str, float]) -> dict[str, float]:
    """Return what is logged of a `counter_growth`; nothing if it is empty."""
    if not growth:
        return {}
    hits, queries, prompts = (growth[name] for name in COUNTERS)
    return {
        "vllm/prompt_tokens": prompts,
        "vllm/prefix_cache_hits": hits,
        "vllm/prefix_cache_hit_rate": hits / queries if queries else 0.0,
    }


def make_server_backend(rollouts: Rollouts, model: Any) -> ServerBackend:
    """Make a backend over ``args.vllm_server_urls``, which serve the trained `model`."""
    args: TrainConfig = rollouts.args
    pool = make_server_pool(rollouts, max_in_flight=1024)  # servers queue the rest
    sync = make_weight_sync(args, isinstance(model, PeftModel))
    return ServerBackend(rollouts.runner(pool, args.max_in_flight), pool, sync)


def make_server_pool(rollouts: Rollouts, **settings: Any) -> ServerPool:
    """Make the pool of the servers that the run samples from."""
    return ServerPool(
        rollouts.args.vllm_server_urls,
        tokenizer=rollouts.tokenizer,
        send_seeds=False,  # they slow vLLM down, and do not make it deterministic
        patience=rollouts.args.vllm_server_timeout,
        scaled_logprobs=True,
        **settings,
    )
