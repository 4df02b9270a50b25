"""Several vLLM servers as one policy: balance load, keep a group on one server, survive losses."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from atommem.errors import ConfigError, OutageError, PolicyError, UnknownModelError
from atommem.policy.contract import Completion, Sampling
from atommem.policy.server import ServerPolicy
from atommem.servers.client import RefusedError, ServerClient

HEALTH_SECONDS = 5.0
MAX_PROBE_SECONDS = 10.0
MAX_HOMES = 4096
MAX_ATTEMPTS = 8  # servers on which one request may fail, because a request may crash servers


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter: its model name on the servers, and the folder that they read."""

    name: str
    path: str


class PooledServer(ServerPolicy):
    """One server of a pool: its completions, and its administration, without retries."""

    def __init__(self, url: str, model: str | None, **options: Any) -> None:
        super().__init__(url, model, retries=0, **options)
        # Completions may use up their client's slots.
        own = {name: options[name] for name in ("timeout", "transport") if name in options}
        self._admin = ServerClient(url, service="policy", retries=0, **own)
        self.url = self._admin.base_url
        self.serving = True
        self.in_flight = 0
        self.adapter: str | None = None  # the name of the one it has loaded
        self.refusal: PolicyError | None = None  # why it gets no requests though it is healthy
        self.probe: asyncio.Task[None] | None = None  # polls its health while it is dropped

    async def healthy(self) -> bool:
        try:
            async with asyncio.timeout(HEALTH_SECONDS):
                await self._admin.request("GET", "/health", text=True)
        except (OutageError, RefusedError, TimeoutError):
            return False
        return True

    async def load_adapter(self, adapter: Adapter) -> None:
        """Load a LoRA adapter, and request it from then on; loading it twice is allowed."""
        body = {"lora_name": adapter.name, "lora_path": adapter.path}
        try:
            await self._admin.request("POST", "/v1/load_lora_adapter", body, text=True)
        except RefusedError as error:
            if error.status != 400 or "already been" not in error.message:
                raise PolicyError(
                    f"{self.url} could not load the adapter in {adapter.path} ({error}). Start "
                    "vLLM with --enable-lora, --max-lora-rank of at least the adapter's rank, and "
                    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment. It must see the folder."
                ) from error
        self.adapter = adapter.name
        # Only now: other requests may be in flight.
        self.use_model(adapter.name)

    async def unload_adapter(self, name: str) -> None:
        """Unload the adapter `name`. Errors are ignored: the adapter may already be gone."""
        with suppress(OutageError, RefusedError):
            body = {"lora_name": name}
            await self._admin.request("POST", "/v1/unload_lora_adapter", body, text=True)

    async def close(self) -> None:
        if self.probe is not None:
            self.probe.cancel()
        await super().close()
        await self._admin.close()


class ServerPool:
    """Sample from whichever servers are up, within one event loop.

    A request goes to the server with the fewest requests in flight; requests of one
    `Sampling.affinity` stay together, since they share a prompt prefix and so its cache. A server
    on which a request fails is dropped, and its requests go to others. Its health is polled at
    growing intervals (from `backoff` seconds); it returns once it answers and has the current
    adapter. After `patience` seconds without any server, a request fails. Without `send_seeds` vLLM
    is faster: it samples seeded requests row by row. `options` are those of `ServerPolicy`.
    """

    def __init__(
        self,
        urls: Sequence[str],
        model: str | None = None,
        *,
        tokenizer: Any,
        send_seeds: bool = True,
        patience: float = 240.0,
        backoff: float = 0.5,
        **options: Any,
    ) -> None:
        self.tokenizer = tokenizer
        self.servers = [PooledServer(url, model, tokenizer=tokenizer, **options) for url in urls]
        if not self.servers or len({server.url for server in self.servers}) < len(self.servers):
            raise ConfigError(f"base_urls={list(urls)}: give at least one URL, each only once.")
        self.patience = patience
        self.adapter: Adapter | None = None
        self._send_seeds = send_seeds
        self._backoff = backoff
        self._homes: dict[str, PooledServer] = {}
        self._restricted = False

    @property
    def serving(self) -> list[PooledServer]:
        return [server for server in self.servers if server.serving]

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        """Sample one completion; if a server fails, retry on another.

        Raises as `Policy.complete` does; OutageError if no server returns in time, or many fail.
        """
        if not self._send_seeds:
            sampling = replace(sampling, seed=None)
        failure: Exception | None = None
        try:
            for _ in range(MAX_ATTEMPTS):
                server = await self._choose(sampling.affinity)
                server.in_flight += 1
                try:
                    return await server.complete(prompt_ids, sampling)
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
                    names[server.url] = await server.model_name()
                except OutageError:
                    self._drop(server)
        name, *others = {*names.values()}
        if others:
            listing = ", ".join(f"{url}: {name}" for url, name in names.items())
            raise PolicyError(f"Servers serve different models ({listing}). Name one (model=NAME).")
        for server in self.servers:
            # A server that returns with another model then refuses requests.
            server.use_model(name)
        return name

    async def use_adapter(self, adapter: Adapter) -> None:
        """Load `adapter` on every server and request it from now on. Dropped servers get it later.

        OutageError: no server is reachable in `patience` seconds. PolicyError: one cannot load it.
        """
        self.adapter = adapter
        self._homes.clear()  # a new adapter starts with empty prefix caches
        await asyncio.gather(*map(self._load, self.serving))
        await self._wait()

    async def restrict(self, urls: Sequence[str]) -> None:
        """Send requests to these servers only; one that fails stays out until the next call.

        For servers that received full weights: a restarted one has its checkpoint's weights.
        """
        self._restricted = True
        for server in self.servers:
            server.serving = server.url in urls
            if server.probe is not None:
                server.probe.cancel()
        self._homes.clear()

    async def close(self) -> None:
        for server in self.servers:
            await server.close()

    async def _wait(self) -> None:
        """Wait until a server gets requests; raise OutageError after `patience` seconds."""
        if self.serving:
            return
        urls = ", ".join(server.url for server in self.servers)
        if self._restricted:
            problem = "has the current weights; the next update sends them."
            raise OutageError(f"No server ({urls}) {problem}")
        try:
            async with asyncio.timeout(self.patience):
                while not self.serving:
                    probes = [self._probe(server) for server in self.servers]
                    await asyncio.wait(probes, return_when=asyncio.FIRST_COMPLETED)
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
                del self._homes[next(iter(self._homes))]
        return home

    def _drop(self, server: PooledServer) -> None:
        server.serving = False
        server.adapter = None
        server.scaling_checked = False  # it may return with other options
        if not self._restricted:
            self._probe(server)

    def _probe(self, server: PooledServer) -> asyncio.Task[None]:
        if server.probe is None or server.probe.done():
            server.probe = asyncio.create_task(self._poll(server))
        return server.probe

    async def _poll(self, server: PooledServer) -> None:
        wait = self._backoff
        while not server.serving:
            await asyncio.sleep(wait)
            wait = min(MAX_PROBE_SECONDS, 2 * wait)
            try:
                ready = await server.healthy() and await self._load(server)
                server.refusal = None
            except PolicyError as error:
                ready, server.refusal = False, error
            if ready:
                server.serving = True
                self._homes.clear()  # so that groups move to the returned server

    async def _load(self, server: PooledServer) -> bool:
        """Load the current adapter on `server`; drop it and return False if it is out of reach."""
        try:
            # Another may become current meanwhile.
            while self.adapter is not None and server.adapter != self.adapter.name:
                await server.load_adapter(self.adapter)
        except OutageError:
            self._drop(server)
            return False
        return True
