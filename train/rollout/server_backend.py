"""Sampling from vLLM servers, and how they get the trained weights.

LoRA adapters are saved to a folder that every server loads. Full weights go to one server over
NCCL (`WeightTransfer`); `vllm serve --data-parallel-size N` makes a server of N engines.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from atommem.errors import AtomMemError, ConfigError, OutageError
from atommem.policy.server_pool import Adapter, PooledServer, ServerPool
from atommem.rollout import EpisodeRunner
from atommem.train.rollout.backends import Backend
from atommem.train.rollout.rollouts import Rollouts
from atommem.train.rollout.weight_sync import KEPT, AdapterPublisher, check_adapter, named_weights
from atommem.train.rollout.weight_transfer import connect_nccl


class AdapterBackend(Backend):
    """LoRA: the adapter is saved to a folder, and every server loads it under a new name.

    The policy is a `ServerPool`; every rank that has one talks to the servers by itself.
    """

    def __init__(self, runner: EpisodeRunner | None, publisher: AdapterPublisher) -> None:
        super().__init__(runner)
        self._publisher, self._checked = publisher, False

    def publish(self, trainer: Any) -> None:
        """Save and load the adapter, and unload outdated ones; all ranks together.

        Every rank with a pool makes all servers load it: loading twice is a no-op, and ranks need
        not agree on which servers are lost. OutageError if no server takes it. The main rank checks
        that servers apply the first one (`check_adapter`).
        """
        adapter, outdated = self._publisher.save(trainer)
        if self.policy is None:
            return
        trainer.run_async(self.policy.use_adapter(adapter))
        if trainer.accelerator.is_main_process:
            unchecked = () if self._checked else self.policy.serving
            self._checked = True
            for server in unchecked:
                with suppress(OutageError):  # the pool drops it at the next request
                    trainer.run_async(_check_server(server, adapter))
            trainer.run_async(self._unload(outdated))

    async def _unload(self, adapters: Sequence[Adapter]) -> None:
        servers = self.policy.serving
        await asyncio.gather(*(s.unload_adapter(old.name) for old in adapters for s in servers))

    async def close(self) -> None:
        if self._checked:  # the main rank
            await self._unload(self._publisher.close())
        await super().close()


async def _check_server(server: PooledServer, adapter: Adapter) -> None:
    try:
        await check_adapter(adapter, server, server.load_adapter, server.unload_adapter)
    finally:
        await server.load_adapter(adapter)


class FullWeightBackend(Backend):
    """Sends all parameters of the trained model to a server.

    A server that was lost is connected again before the next update; one that breaks during a
    transfer ends the run.
    """

    def __init__(
        self,
        runner: EpisodeRunner | None,
        timeout: float,
        connect: Callable[..., Any] = connect_nccl,
    ) -> None:
        super().__init__(runner)
        self._timeout, self._connect = timeout, connect
        self._client: Any = None

    def publish(self, trainer: Any) -> None:
        """Send every parameter; all ranks together, of which the main one has a pool."""
        pool: ServerPool | None = self.policy
        weights = _SharedIterator(named_weights(trainer))
        broken: Exception | None = None
        if pool is not None and trainer.accelerator.is_main_process:
            try:
                self._join(trainer, pool)
                self._client.send(weights)
            except Exception as error:  # the other ranks are still gathering, and must not hang
                broken = error
        deque(weights, maxlen=0)  # gathering a parameter takes all ranks
        if isinstance(broken, AtomMemError):
            raise broken
        if broken is not None:
            raise OutageError(f"the server broke during a weight transfer: {broken!r}")
        if pool is not None:
            # A lost server returns with its checkpoint's weights, so it waits for the next update.
            trainer.run_async(pool.restrict([server.url for server in pool.servers]))

    def _join(self, trainer: Any, pool: ServerPool) -> None:
        if len(pool.servers) > 1:
            raise ConfigError(
                f"vllm_server_base_url has {len(pool.servers)} servers: full weights go to one. "
                "Use `vllm serve --data-parallel-size`, or train a LoRA adapter (use_peft: true)."
            )
        (server,) = pool.servers
        if self._client is None or not server.serving:
            # A server that was dropped may have restarted outside of the NCCL group.
            self._leave()
            self._client = self._connect(server.url, trainer, self._timeout)

    async def close(self) -> None:
        self._leave()
        await super().close()

    def _leave(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None


class _SharedIterator(Iterator[Any]):
    """An iterator for the thread that sends, and the one that drains it after an error."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator, self._lock = iterator, threading.Lock()

    def __next__(self) -> Any:
        with self._lock:
            return next(self._iterator)


def make_server_pool(rollouts: Rollouts, **settings: Any) -> ServerPool:
    return ServerPool(
        rollouts.args.vllm_server_urls,
        tokenizer=rollouts.tokenizer,
        send_seeds=False,  # they slow vLLM down, and do not make it deterministic
        patience=rollouts.args.vllm_server_timeout,
        scaled_logprobs=True,
        **settings,
    )


def make_server_backend(
    args: Any, runner: EpisodeRunner | None, lora: bool, kept: int = KEPT
) -> Backend:
    """Make the backend of servers; `kept` versions of an adapter stay loaded."""
    if lora:
        return AdapterBackend(runner, AdapterPublisher(Path(args.output_dir) / "adapters", kept))
    return FullWeightBackend(runner, args.vllm_server_timeout)
