"""Several vLLM servers as one policy: balance load, keep a group on one server, survive losses."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from atommem.errors import ConfigError, OutageError, PolicyError, UnknownModelError
from atommem.policy.contract import Completion, Sampling
from atommem.policy.server import ServerPolicy
from atommem.servers.vllm_process import VllmAdmin

if TYPE_CHECKING:
    import httpx

MAX_PROBE_SECONDS = 10.0
MAX_HOMES = 4096
MAX_ATTEMPTS = 8
"""Servers on which one request may fail, because a request may crash servers."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter: its model name on the servers, and the folder that they read."""

    name: str
    path: str


@dataclass(slots=True, eq=False)
class PooledServer:
    """One server of a pool."""

    policy: ServerPolicy
    admin: VllmAdmin
    serving: bool = True
    """Whether it gets requests."""
    in_flight: int = 0
    adapter: str | None = None
    """Name of the adapter it has loaded."""
    refusal: PolicyError | None = None
    """Why a healthy server does not get requests."""
    probe: asyncio.Task[None] | None = None
    """Polls its health while it is dropped."""

    @property
    def url(self) -> str:
        """The base URL."""
        return self.admin.base_url


class ServerPool:
    """Sample from whichever servers are up, within one event loop.

    A request goes to the server with the fewest requests in flight; requests of one
    `Sampling.affinity` stay together, since they share a prompt prefix and so its cache. A server
    on which a request fails is dropped, and its requests go to others. Its health is polled at
    growing intervals; it returns once it answers and has the current adapter.

    Args:
        base_urls: The servers.
        model: The model's name there; None asks each for its only one.
        send_seeds: Send seeds with requests. vLLM samples seeded requests row by row, slowly.
        patience: Seconds without any server after which a request fails.
        backoff: Seconds before the first health check; doubles each time, at most 10.
        timeout: Seconds for one completion.
        transport: An httpx transport, for tests.
        options: Further options of `ServerPolicy`.
    """

    def __init__(
        self,
        base_urls: Sequence[str],
        model: str | None = None,
        *,
        tokenizer: Any,
        send_seeds: bool = True,
        patience: float = 240.0,
        backoff: float = 0.5,
        timeout: float = 600.0,
        transport: httpx.AsyncBaseTransport | None = None,
        **options: Any,
    ) -> None:
        shared: dict[str, Any] = {"timeout": timeout, "transport": transport}
        options |= {**shared, "tokenizer": tokenizer, "retries": 0}
        self.servers = [
            PooledServer(ServerPolicy(url, model, **options), VllmAdmin(url, **shared))
            for url in base_urls
        ]
        if not self.servers or len({server.url for server in self.servers}) < len(self.servers):
            raise ConfigError(
                f"base_urls={list(base_urls)}: give at least one URL, each only once."
            )
        self.tokenizer = tokenizer
        self.patience = patience
        self.adapter: Adapter | None = None
        self.drops = 0
        self._send_seeds = send_seeds
        self._backoff = backoff
        self._homes: OrderedDict[str, PooledServer] = OrderedDict()
        self._returned = asyncio.Event()
        self._restricted = False

    @property
    def serving(self) -> list[PooledServer]:
        """The servers that get requests."""
        return [server for server in self.servers if server.serving]

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        """Sample one completion; if a server fails, retry on another.

        Raises as `Policy.complete` does; OutageError if no server returns in time, or too many fail
        on this request.
        """
        if not self._send_seeds:
            sampling = replace(sampling, seed=None)
        failure: Exception | None = None
        try:
            for _ in range(MAX_ATTEMPTS):
                server = await self._choose(sampling.affinity)
                server.in_flight += 1
                try:
                    return await server.policy.complete(prompt_ids, sampling)
                except UnknownModelError as error:
                    if self.adapter is None:
                        raise
                    failure = error  # it restarted and lost its adapters
                except OutageError as error:
                    failure = error
                finally:
                    server.in_flight -= 1
                self._drop(server)
        except asyncio.CancelledError as error:
            if failure is None and self.serving:
                raise
            # The episode's deadline passed while servers were missing: not the policy's fault.
            raise OutageError(f"cancelled while servers were missing: {failure}") from error
        raise OutageError(f"a request failed on {MAX_ATTEMPTS} servers in turn: {failure}")

    async def model_name(self) -> str:
        """Return the one model name of all servers, and request it from now on."""
        names: dict[str, str] = {}
        while not names:
            await self._wait()
            for server in self.serving:
                try:
                    names[server.url] = await server.policy.model_name()
                except OutageError:
                    self._drop(server)
        if len(set(names.values())) > 1:
            listing = ", ".join(f"{url}: {name}" for url, name in names.items())
            raise PolicyError(
                f"The servers serve different models ({listing}). Name one (--model)."
            )
        name = next(iter(names.values()))
        for server in self.servers:
            # A server that returns with another model then refuses requests.
            server.policy.use_model(name)
        return name

    async def use_adapter(self, adapter: Adapter) -> None:
        """Load `adapter` on every server and request it from now on. Dropped servers get it later.

        Raises:
            OutageError: No server was reachable within `patience` seconds.
            PolicyError: A server cannot load it.
        """
        self.adapter = adapter
        self._homes.clear()  # a new adapter starts with empty prefix caches

        async def load_or_drop(server: PooledServer) -> None:
            if not await self._load(server):
                self._drop(server)

        await asyncio.gather(*map(load_or_drop, self.serving))
        await self._wait()

    async def restrict(self, urls: Sequence[str]) -> None:
        """Send requests to these servers only; one that fails stays out until the next call.

        For servers that received full weights: a restarted one has its checkpoint's weights.
        """
        self._restricted = True
        for server in self.servers:
            self._stop_probe(server)
            server.serving = server.url in urls
        self._homes.clear()

    async def close(self) -> None:
        """Close the connections of the running event loop and stop the health checks."""
        for server in self.servers:
            self._stop_probe(server)
            await server.policy.close()
            await server.admin.close()

    async def _wait(self) -> None:
        """Wait until a server gets requests; raise OutageError after `patience` seconds."""
        if self.serving:
            return
        urls = ", ".join(server.url for server in self.servers)
        if self._restricted:
            raise OutageError(
                f"No server ({urls}) has the current weights; the next update sends them."
            )
        for server in self.servers:
            self._start_probe(server)
        try:
            async with asyncio.timeout(self.patience):
                while not self.serving:
                    self._returned.clear()
                    await self._returned.wait()
        except TimeoutError as error:
            refusals = "".join(f"; {s.url}: {s.refusal}" for s in self.servers if s.refusal)
            raise OutageError(
                f"No server answered for {self.patience:.0f} s ({urls}). Start one{refusals}"
            ) from error

    async def _choose(self, affinity: str | None) -> PooledServer:
        await self._wait()
        homes = list(self._homes.values())
        # Ties go by the number of groups: requests may be few while embeddings are computed.
        idlest = min(self.serving, key=lambda server: (server.in_flight, homes.count(server)))
        if affinity is None:
            return idlest
        home = self._homes.get(affinity)
        if home is None or not home.serving:
            home = self._homes[affinity] = idlest
            if len(self._homes) > MAX_HOMES:
                self._homes.popitem(last=False)
        return home

    def _drop(self, server: PooledServer) -> None:
        self.drops += server.serving
        server.serving = False
        server.adapter = None
        server.policy.forget_server()
        self._start_probe(server)

    def _start_probe(self, server: PooledServer) -> None:
        if not self._restricted and (server.probe is None or server.probe.done()):
            server.probe = asyncio.get_running_loop().create_task(self._poll(server))

    @staticmethod
    def _stop_probe(server: PooledServer) -> None:
        if server.probe is not None:
            server.probe.cancel()
            server.probe = None

    async def _poll(self, server: PooledServer) -> None:
        wait = self._backoff
        while not server.serving:
            await asyncio.sleep(wait)
            wait = min(MAX_PROBE_SECONDS, 2 * wait)
            try:
                ready = await server.admin.healthy() and await self._load(server)
                server.refusal = None
            except PolicyError as error:
                ready, server.refusal = False, error
            if ready:
                server.serving = True
                self._homes.clear()  # so that groups move to the returned server
                self._returned.set()

    async def _load(self, server: PooledServer) -> bool:
        """Load the current adapter on `server`; False if the server is out of reach."""
        while (adapter := self.adapter) is not None and server.adapter != adapter.name:
            try:
                await server.admin.load_adapter(adapter.name, adapter.path)
            except OutageError:
                return False
            server.adapter = adapter.name
            # Only now: other requests may be in flight.
            server.policy.use_model(adapter.name)
        return True
