"""JSON over HTTP to an inference server, with retries: shared by the server policy and the HTTP embedder."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from atommem.errors import ConfigError, OutageError

if TYPE_CHECKING:
    import httpx

_Answer = TypeVar("_Answer")
RETRIED_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
MAX_WAIT_SECONDS = 30.0

_TOO_LONG = re.compile(r"maximum (context|model) length", re.IGNORECASE)


class RefusedError(Exception):
    """The server answered a request with a 4xx: no retry helps. Callers turn it into one of their errors."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP {status}: {message}")
        self.status = status
        self.message = message

    @property
    def too_long(self) -> bool:
        """Whether the server said that the input exceeds the model's context (vLLM's and OpenAI's words)."""
        return self.status == 400 and _TOO_LONG.search(self.message) is not None


@dataclass(slots=True)
class _Connection:
    """The connections of one event loop; httpx binds them to it."""

    client: httpx.AsyncClient
    slots: asyncio.Semaphore


class ServerClient:
    """Calls one OpenAI-compatible server.

    Retried with exponential back-off and jitter (or after the server's Retry-After): connections
    that fail or break, time-outs, HTTP 408, 429 and 5xx. An API key is taken from the environment
    variable OPENAI_API_KEY, if it is set. May be used from several event loops.

    Args:
        base_url: The server, with or without the closing ``/v1``.
        timeout: Seconds that a request may take.
        retries: How often a request is repeated after its first failure.
        max_in_flight: Most requests at the same time; the others wait.
        backoff: Seconds before the first repetition; doubles each time, at most 30.
        transport: An httpx transport, for tests.

    Raises:
        ConfigError: `base_url` is no http(s) URL.
    """

    def __init__(
        self,
        base_url: str,
        *,
        timeout: float,
        retries: int,
        max_in_flight: int,
        backoff: float = 0.5,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise ConfigError(f"The server's URL is {base_url!r}: give one that begins with http:// or https://.")
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self._timeout = timeout
        self._retries = retries
        self._max_in_flight = max_in_flight
        self._backoff = backoff
        self._transport = transport
        self._connections: dict[asyncio.AbstractEventLoop, _Connection] = {}

    async def get(self, path: str) -> Any:
        """GET `path` (``/v1/...``) and return the decoded JSON. Raises as `post` does."""
        return await self._request("GET", path, None, _json)

    async def get_text(self, path: str) -> str:
        """GET `path` and return the body as it is (it may be empty). Raises as `post` does."""
        return await self._request("GET", path, None, _text)

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """POST `body` as JSON to `path` (``/v1/...``) and return the decoded JSON.

        Raises:
            RefusedError: The server answered with a 4xx that no retry helps.
            OutageError: The server is out of reach, or keeps failing.
        """
        return await self._request("POST", path, body, _json)

    async def post_text(self, path: str, body: dict[str, Any]) -> str:
        """POST `body` as JSON and return the answer's body as it is. Raises as `post` does."""
        return await self._request("POST", path, body, _text)

    async def close(self) -> None:
        """Close the connections of the running event loop; those of ended loops are only dropped."""
        connection = self._connections.pop(asyncio.get_running_loop(), None)
        self._connections.clear()
        if connection is not None:
            await connection.client.aclose()

    async def _request(
        self, method: str, path: str, body: dict[str, Any] | None, read: Callable[[httpx.Response], _Answer]
    ) -> _Answer:
        import httpx

        connection = self._connection()
        url, trouble, wait = self.base_url + path, "", 0.0
        for attempt in range(self._retries + 1):
            if attempt:
                await asyncio.sleep(wait)
            wait = min(MAX_WAIT_SECONDS, self._backoff * 2**attempt) * random.uniform(0.5, 1.5)
            try:
                async with connection.slots:
                    response = await _send(connection.client, method, url, body)
            except httpx.TransportError as error:
                trouble = f"{type(error).__name__}: {error}".rstrip(": ")
                continue
            if response.status_code in RETRIED_STATUSES or response.status_code >= 500:
                trouble = f"HTTP {response.status_code}: {_message(response)}"
                wait = max(wait, _retry_after(response))
                continue
            if not response.is_success:
                raise RefusedError(response.status_code, _message(response))
            try:
                return read(response)
            except json.JSONDecodeError:
                trouble = f"an answer that is not JSON: {response.text[:200]!r}"
        raise OutageError(
            f"{method} {url} failed {self._retries + 1} times, last with {trouble}: "
            "check that the server is up and that the URL is right."
        )

    def _connection(self) -> _Connection:
        import httpx

        from atommem.servers.transport import LIMITS

        loop = asyncio.get_running_loop()
        connection = self._connections.get(loop)
        if connection is None:
            self._connections = {known: c for known, c in self._connections.items() if not known.is_closed()}
            key = os.environ.get("OPENAI_API_KEY")
            client = httpx.AsyncClient(
                headers={"Authorization": f"Bearer {key}"} if key else None,
                # Requests queue at the semaphore, which is fair, and never time out there.
                timeout=httpx.Timeout(self._timeout, pool=None),
                transport=self._transport or self._own_transport(),
                limits=LIMITS,  # of connections behind a proxy
            )
            connection = self._connections[loop] = _Connection(client, asyncio.Semaphore(self._max_in_flight))
        return connection

    def _own_transport(self) -> httpx.AsyncBaseTransport | None:
        from atommem.servers.transport import SHARDS, ShardedTransport

        return None if _behind_proxy(self.base_url) else ShardedTransport(min(SHARDS, self._max_in_flight))


async def _send(client: httpx.AsyncClient, method: str, url: str, body: Any) -> httpx.Response:
    """Send a request; once more, at once, where the connection broke.

    A server closes a connection that has been idle for some seconds, maybe just as it is used again: that says nothing
    about the server. If it is gone, no new connection can be made.
    """
    import httpx

    try:
        return await client.request(method, url, json=body)
    except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
        return await client.request(method, url, json=body)


def _behind_proxy(url: str) -> bool:
    """Whether the environment names a proxy for this URL (httpx uses it, unless it is given a transport)."""
    parts = urlsplit(url)
    return parts.scheme in getproxies() and not proxy_bypass(parts.netloc)


def _json(response: httpx.Response) -> Any:
    return response.json()


def _text(response: httpx.Response) -> str:
    return response.text


def _message(response: httpx.Response) -> str:
    """The server's own words: OpenAI's ``error.message``, or the beginning of the body."""
    try:
        body = response.json()
    except json.JSONDecodeError:
        return response.text[:500]
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error) if isinstance(error, dict) else error)[:2000]


def _retry_after(response: httpx.Response) -> float:
    """Seconds that the server asks to wait; 0 when it does not say (or gives a date)."""
    value = response.headers.get("retry-after", "")
    return min(MAX_WAIT_SECONDS, float(value)) if value.isdigit() else 0.0
