"""Several vLLM servers as one policy: spreads load, keeps a group on one server, survives the loss of servers."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from atommem.errors import ConfigError, OutageError, PolicyError, UnknownModelError
from atommem.policy.contract import Completion, Sampling
from atommem.policy.server import ServerPolicy
from atommem.servers.vllm_control import VllmControl

if TYPE_CHECKING:
    import httpx

MAX_PROBE_SECONDS = 10.0
MAX_KEPT_HOMES = 4096


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter as servers know it: the model name, and the folder that they read it from."""

    name: str
    path: str


@dataclass(slots=True, eq=False)
class PooledServer:
    """One server of a pool.

    Attributes:
        policy: Completions.
        control: Health, metrics, adapters.
        serving: Whether it gets requests.
        in_flight: Requests that it is working on.
        adapter: The name of the adapter that it is known to have loaded.
        refusal: Why it does not get requests although it answers.
        probe: Asks for its health while it is dropped.
    """

    policy: ServerPolicy
    control: VllmControl
    serving: bool = True
    in_flight: int = 0
    adapter: str | None = None
    refusal: PolicyError | None = None
    probe: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Its base URL."""
        return self.control.base_url


class ServerPool:
    """Samples from whichever of its servers is up.

    Load goes to the server with the fewest requests in flight; requests of one `Sampling.affinity` stay
    together, because they share the beginning of their prompts and so the server's prefix cache. A
    server on which a request fails gets no more of them; those that it had go to others at once. It is
    asked for its health, at growing intervals, and gets requests again when it answers and has the
    current adapter. A pool belongs to one event loop.

    Args:
        base_urls: The servers.
        model: The model's name there; None asks each for its only one.
        tokenizer: The model's; decodes completions.
        send_seeds: Whether requests carry their seeds. Servers sample requests with one row by row, which is slow,
            and a completion still depends, within rounding, on what else is in its batch.
        max_in_flight: Most requests at the same time per server.
        timeout: Seconds that one completion may take.
        patience: Seconds without any server after which a request fails.
        max_attempts: On how many servers, one after the other, a request may fail. A request that takes
            servers down would otherwise go round for ever.
        backoff: Seconds before the first question for health; doubles each time, at most 10.
        scaled_logprobs: Refuse servers whose log-probabilities leave the temperature out, where it is not 1.
        transport: An httpx transport, for tests.

    Raises:
        ConfigError: There is no URL, or one is wrong or given twice.
    """

    def __init__(
        self,
        base_urls: Sequence[str],
        model: str | None = None,
        *,
        tokenizer: Any,
        send_seeds: bool = True,
        max_in_flight: int = 256,
        timeout: float = 600.0,
        patience: float = 240.0,
        max_attempts: int = 8,
        backoff: float = 0.5,
        scaled_logprobs: bool = False,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.servers: list[PooledServer] = []
        for url in base_urls:
            policy = ServerPolicy(
                url,
                model,
                tokenizer=tokenizer,
                max_in_flight=max_in_flight,
                timeout=timeout,
                retries=0,
                scaled_logprobs=scaled_logprobs,
                transport=transport,
            )
            self.servers.append(
                PooledServer(policy, VllmControl(url, timeout=timeout, transport=transport))
            )
        urls = {server.url for server in self.servers}
        if not urls or len(urls) < len(self.servers):
            raise ConfigError(
                f"the servers are {list(base_urls)}: give at least one URL, and each only once."
            )
        self.tokenizer = tokenizer
        self.patience = patience
        self.max_attempts = max_attempts
        self.adapter: Adapter | None = None
        self.lost = 0
        """How often a server was dropped."""
        self._send_seeds = send_seeds
        self._backoff = backoff
        self._homes: OrderedDict[str, PooledServer] = OrderedDict()
        self._came_back = asyncio.Event()
        self._restricted = False

    @property
    def serving(self) -> list[PooledServer]:
        """The servers that get requests."""
        return [server for server in self.servers if server.serving]

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        """Sample one completion, on another server where one fails.

        Raises:
            OutageError: No server came back in time, or the request failed on too many of them.
            PromptTooLongError: The prompt leaves no room for ``sampling.max_tokens``.
            PolicyError: A server refused the request, or its answer lacks what training needs.
        """
        if not self._send_seeds:
            sampling = replace(sampling, seed=None)
        trouble: Exception | None = None
        try:
            for _ in range(self.max_attempts):
                server = await self._server_for(sampling.affinity)
                server.in_flight += 1
                try:
                    return await server.policy.complete(prompt_ids, sampling)
                except UnknownModelError as error:
                    if self.adapter is None:
                        raise
                    # It was started anew between two requests, and has lost its adapters.
                    trouble = error
                except OutageError as error:
                    trouble = error
                finally:
                    server.in_flight -= 1
                self._drop(server)
        except asyncio.CancelledError as error:
            if trouble is None and self.serving:
                raise
            # A time limit of the episode ran out while servers were missing: that is no fault of the policy.
            raise OutageError(
                f"given up while servers were missing: {trouble or 'none was left'}"
            ) from error
        raise OutageError(
            f"a request failed {self.max_attempts} times, on one server after the other: {trouble}"
        )

    async def model_name(self) -> str:
        """The model's name, which is the same on all servers. Requests ask for it from then on.

        Raises:
            OutageError: No server could be reached in `patience` seconds.
            PolicyError: Servers serve different models, or one of them several.
        """
        names: dict[str, str] = {}
        while not names:
            await self.wait()
            for server in self.serving:
                try:
                    names[server.url] = await server.policy.model_name()
                except OutageError:
                    self._drop(server)
        if len(set(names.values())) > 1:
            served = ", ".join(f"{url}: {name}" for url, name in names.items())
            raise PolicyError(
                f"the servers do not serve one model ({served}): name it, or leave servers out."
            )
        name = next(iter(names.values()))
        for server in self.servers:
            # One that comes back later with another model refuses, rather than answering from it.
            server.policy.use_model(name)
        return name

    async def use_adapter(self, adapter: Adapter) -> None:
        """Load `adapter` on every server; requests ask for it from then on. Servers that are gone get it later.

        Raises:
            OutageError: No server could be reached in `patience` seconds.
            PolicyError: A server cannot load it.
        """
        self.adapter = adapter
        self._homes.clear()  # a new adapter begins with empty prefix caches
        await asyncio.gather(*(self._load_or_drop(server) for server in self.serving))
        await self.wait()

    def restrict(self, urls: Sequence[str]) -> None:
        """Give requests to these servers only. One that fails stays out until the next call.

        For servers that were sent full weights: one that was started anew has the weights of its checkpoint.
        """
        self._restricted = True
        for server in self.servers:
            self._stop_probe(server)
            server.serving = server.url in urls
        self._homes.clear()

    async def wait(self) -> None:
        """Return when at least one server gets requests.

        Raises:
            OutageError: There is none within `patience` seconds.
        """
        if self.serving:
            return
        urls = ", ".join(server.url for server in self.servers)
        if self._restricted:
            raise OutageError(
                f"none of the servers ({urls}) has the current weights: they are sent with the next update."
            )
        for server in self.servers:
            self._start_probe(server)
        try:
            async with asyncio.timeout(self.patience):
                while not self.serving:
                    self._came_back.clear()
                    await self._came_back.wait()
        except TimeoutError as error:
            refusals = "".join(
                f"; {server.url}: {server.refusal}" for server in self.servers if server.refusal
            )
            raise OutageError(
                f"no server has answered for {self.patience:.0f} s ({urls}): start one{refusals}"
            ) from error

    async def close(self) -> None:
        """Close the connections of the running event loop and stop asking for health."""
        for server in self.servers:
            self._stop_probe(server)
            await server.policy.close()
            await server.control.close()

    async def _server_for(self, affinity: str | None) -> PooledServer:
        await self.wait()
        if affinity is None:
            return self._least_busy()
        home = self._homes.get(affinity)
        if home is None or not home.serving:
            home = self._homes[affinity] = self._least_busy()
            if len(self._homes) > MAX_KEPT_HOMES:
                self._homes.popitem(last=False)
        return home

    def _least_busy(self) -> PooledServer:
        homes = list(self._homes.values())
        # Few groups may be in flight while their embeddings are computed: then the number of groups decides.
        return min(self.serving, key=lambda server: (server.in_flight, homes.count(server)))

    def _drop(self, server: PooledServer) -> None:
        if server.serving:
            server.serving = False
            self.lost += 1
        server.adapter = None
        server.policy.forget_server()
        self._start_probe(server)

    def _start_probe(self, server: PooledServer) -> None:
        if not self._restricted and (server.probe is None or server.probe.done()):
            server.probe = asyncio.get_running_loop().create_task(self._probe(server))

    @staticmethod
    def _stop_probe(server: PooledServer) -> None:
        if server.probe is not None:
            server.probe.cancel()
            server.probe = None

    async def _probe(self, server: PooledServer) -> None:
        """Ask for health until the server may get requests again."""
        wait = self._backoff
        while not server.serving:
            await asyncio.sleep(wait)
            wait = min(MAX_PROBE_SECONDS, 2 * wait)
            try:
                ready = await server.control.healthy() and await self._load(server)
                server.refusal = None
            except PolicyError as error:
                ready, server.refusal = False, error
            if ready:
                server.serving = True
                # Groups go where there is room now; a step's prompt is new to every cache but for its head.
                self._homes.clear()
                self._came_back.set()

    async def _load_or_drop(self, server: PooledServer) -> None:
        if not await self._load(server):
            self._drop(server)

    async def _load(self, server: PooledServer) -> bool:
        """Give the server the current adapter. Whether it has it; False when it is out of reach."""
        while (adapter := self.adapter) is not None and server.adapter != adapter.name:
            try:
                await server.control.load_adapter(adapter.name, adapter.path)
            except OutageError:
                return False
            server.adapter = adapter.name
            # Not before it is there: other requests may be under way.
            server.policy.use_model(adapter.name)
        return True
