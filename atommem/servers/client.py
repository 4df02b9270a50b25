"""JSON over HTTP to a server, with retries: shared by policies, embedder, judge, search engines and readers."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from atommem.errors import ConfigError, OutageError
from atommem.servers.keys import Service, api_key, is_loopback, key_header
from atommem.text_safety import clean

if TYPE_CHECKING:
    import httpx

_Answer = TypeVar("_Answer")
MAX_WAIT_SECONDS = 30.0

_TOO_LONG = re.compile(
    r"maximum model length|context (length|size|window)|prompt is too long|too large to process|input token count"
    r"|inputs?`? (tokens|must have less)",
    re.IGNORECASE,
)
_OF_THE_ACCOUNT = re.compile(
    r"credit|quota|balance|billing|api.?key|unauthori[sz]ed", re.IGNORECASE
)
"""Some (Serper, Anthropic) say 400 to an account that is used up."""
_FILTERED = re.compile(
    r"content[ _-]?(filter|policy|management)|moderation|flagged|safety|prohibited|inappropriate|data_inspection",
    re.IGNORECASE,
)


class RefusedError(Exception):
    """The server answered a request with a 3xx or 4xx: no retry helps. Callers turn it into one of their errors.

    Attributes:
        status, message: HTTP's, and the server's words.
        code, param: OpenAI's ``error.code`` and ``error.param``, where the server gives them.
    """

    def __init__(self, status: int, message: str, code: str = "", param: str = "") -> None:
        super().__init__(f"HTTP {status}: {message}")
        self.status = status
        self.message = message
        self.code = code
        self.param = param

    @property
    def retried(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in (408, 429) or self.status >= 500

    @property
    def of_input(self) -> bool:
        """Whether it may be about what this one request says, rather than about who asks, or for what."""
        # OpenRouter says 403 to what a moderator has flagged.
        return self.status in (400, 413, 422, 451, 500) or (self.status == 403 and self._flagged)

    @property
    def too_long(self) -> bool:
        """Whether the server said that the input exceeds what it takes (vLLM, OpenAI, llama.cpp, TEI, TGI)."""
        if self.status == 413 or self.code == "context_length_exceeded":
            return True
        return self.of_input and _TOO_LONG.search(self.message) is not None

    @property
    def filtered(self) -> bool:
        """Whether a content filter refused the input."""
        return self.of_input and self._flagged

    @property
    def _flagged(self) -> bool:
        return self.status == 451 or _FILTERED.search(f"{self.code} {self.message}") is not None

    def of_account(self, asked: str) -> bool:
        """Whether a 400 is about the account, in words that are not those of the request `asked`: a server may repeat
        these, and whoever wrote them must not be able to make an outage of them.
        """
        said = {match[0].casefold() for match in _OF_THE_ACCOUNT.finditer(self.message)}
        return self.status == 400 and any(word not in asked.casefold() for word in said)


class OversizeError(RefusedError):
    """The server answered with more bytes than are taken."""

    def __init__(self, most: int) -> None:
        super().__init__(502, f"an answer of more than {most / 1e6:g} MB")


@dataclass(slots=True)
class _Connection:
    """The connections of one event loop; httpx binds them to it."""

    client: httpx.AsyncClient
    slots: asyncio.Semaphore


class ClientOptions(TypedDict, total=False):
    """How a `ServerClient` asks: its own words, for whoever has one."""

    timeout: float
    retries: int
    max_in_flight: int
    backoff: float
    transport: httpx.AsyncBaseTransport | None


class ServerClient:
    """Calls one server, an OpenAI-compatible one or another that speaks JSON.

    Retried with exponential back-off and jitter (or after the server's Retry-After): connections
    that fail or break, time-outs, HTTP 408, 429 and 5xx. Redirects are refusals: a key is never carried to another
    host. May be used from several event loops.

    Args:
        base_url: The server, with or without the closing ``/v1``.
        service: Whose API key is sent (`atommem.servers.keys.api_key`).
        timeout: Seconds that a request may take, to the last byte of its answer.
        retries: How often a request is repeated after its first failure.
        max_in_flight: Most requests at the same time; the others wait.
        backoff: Seconds before the first repetition; doubles each time, at most 30.
        headers: Sent with every request.
        max_bytes: Longest answer, unpacked.
        transport: An httpx transport, for tests.

    Raises:
        ConfigError: `base_url` is no http(s) URL, or its key may not be sent there.
    """

    def __init__(
        self,
        base_url: str,
        *,
        service: Service,
        timeout: float = 600.0,
        retries: int = 5,
        max_in_flight: int = 64,
        backoff: float = 0.5,
        headers: Mapping[str, str] | None = None,
        max_bytes: int = 1_000_000_000,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        if not _is_address(base_url):
            raise ConfigError(
                f"The server's URL is {base_url!r}: give one that begins with http:// or https://."
            )
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self._headers = {**(headers or {}), **key_header(service, api_key(service, self.base_url))}
        self._timeout = timeout
        self._retries = retries
        self._max_in_flight = max_in_flight
        self._backoff = backoff
        self._max_bytes = max_bytes
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
            RefusedError: The server answered with a 4xx that no retry helps, or with too much (`OversizeError`).
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
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None,
        read: Callable[[httpx.Response], _Answer],
    ) -> _Answer:
        import httpx

        from atommem.servers.transport import LargerError

        connection = self._connection()
        url, trouble, wait = self.base_url + path, "", 0.0
        status = None
        content = None if body is None else _encoded(body)
        for attempt in range(self._retries + 1):
            if attempt:
                await asyncio.sleep(wait)
            wait = min(MAX_WAIT_SECONDS, self._backoff * 2**attempt) * random.uniform(0.5, 1.5)
            try:
                # httpx bounds each part of an answer: one that drips would have no end.
                async with connection.slots, asyncio.timeout(self._timeout):
                    response = await _send(connection.client, method, url, content, self._max_bytes)
            except LargerError as error:
                raise OversizeError(self._max_bytes) from error
            except TimeoutError:
                trouble, status = f"no whole answer in {self._timeout:g} seconds", None
                continue
            except httpx.RequestError as error:
                trouble, status = f"{type(error).__name__}: {error}".rstrip(": "), None
                continue
            refusal = None if response.is_success else _refusal(response)
            # llama.cpp answers a text that is too long with 500.
            if refusal is not None and refusal.retried and not refusal.too_long:
                trouble, status = str(refusal), refusal.status
                wait = max(wait, _retry_after(response))
                continue
            if refusal is not None:
                raise refusal
            try:
                return read(response)
            except (ValueError, RecursionError):  # no JSON, no UTF-8, or nested without end
                trouble = f"an answer that is not JSON: {response.text[:200]!r}"
        raise OutageError(
            f"{method} {url} failed {self._retries + 1} times, last with {trouble}: "
            "check that the server is up and that the URL is right.",
            status,
        )

    def _connection(self) -> _Connection:
        import httpx

        from atommem.servers.transport import LIMITS

        loop = asyncio.get_running_loop()
        connection = self._connections.get(loop)
        if connection is None:
            self._connections = {
                known: c for known, c in self._connections.items() if not known.is_closed()
            }
            client = httpx.AsyncClient(
                headers=self._headers,
                # Requests queue at the semaphore, which is fair, and never time out there.
                timeout=httpx.Timeout(self._timeout, pool=None),
                transport=self._transport or self._own_transport(),
                limits=LIMITS,  # of connections behind a proxy
            )
            connection = self._connections[loop] = _Connection(
                client, asyncio.Semaphore(self._max_in_flight)
            )
        return connection

    def _own_transport(self) -> httpx.AsyncBaseTransport | None:
        from atommem.servers.transport import SHARDS, ShardedTransport

        return (
            None
            if _behind_proxy(self.base_url)
            else ShardedTransport(self._max_bytes, min(SHARDS, self._max_in_flight))
        )


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets that do not close, a port that is none
        return False


async def _send(
    client: httpx.AsyncClient, method: str, url: str, content: bytes | None, most: int
) -> httpx.Response:
    """Send a request; once more, at once, where the connection broke.

    A server closes a connection that has been idle for some seconds, maybe just as it is used again: that says nothing
    about the server. If it is gone, no new connection can be made.
    """
    import httpx

    from atommem.servers.transport import whole

    headers = {} if content is None else {"Content-Type": "application/json"}

    async def once() -> httpx.Response:
        async with client.stream(method, url, content=content, headers=headers) as response:
            return await whole(response, most)

    try:
        return await once()
    except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
        return await once()


def _encoded(body: dict[str, Any]) -> bytes:
    """`body` as JSON. What a model wrote may hold half a surrogate pair, which no UTF-8 can."""
    return clean(
        json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    ).encode()


def _behind_proxy(url: str) -> bool:
    """Whether the environment names a proxy for this URL (httpx uses it, unless it is given a transport)."""
    parts = urlsplit(url)
    if is_loopback(url):
        return False  # whatever the environment says: a key for this machine must not go to a proxy
    return parts.scheme in getproxies() and not proxy_bypass(parts.netloc)


def _json(response: httpx.Response) -> Any:
    return response.json()


def _text(response: httpx.Response) -> str:
    return response.text


def _refusal(response: httpx.Response) -> RefusedError:
    message = _message(response)
    if response.is_redirect:
        message = f"it redirects to {response.headers.get('location', '')}: give that URL if you trust it. {message}"
    try:
        error = response.json()["error"]
        return RefusedError(
            response.status_code,
            message,
            str(error.get("code") or ""),
            str(error.get("param") or ""),
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return RefusedError(response.status_code, message)


def _message(response: httpx.Response) -> str:
    """The server's own words: OpenAI's ``error.message``, or the beginning of the body."""
    try:
        body = response.json()
    except (ValueError, RecursionError):
        return response.text[:500]
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error) if isinstance(error, dict) else error)[:2000]


def _retry_after(response: httpx.Response) -> float:
    """Seconds that the server asks to wait; 0 when it does not say (or gives a date)."""
    value = response.headers.get("retry-after", "")
    return min(MAX_WAIT_SECONDS, float(value)) if value.isdigit() else 0.0
