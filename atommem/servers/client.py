"""JSON over HTTP with retries: the one client of policies, embedders, judges and search engines."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict
from urllib.parse import urlsplit

from atommem.config import is_loopback
from atommem.errors import ConfigError, OutageError
from atommem.text_safety import clean

if TYPE_CHECKING:
    import httpx
    from tenacity import RetryCallState

Service = Literal["policy", "embedder", "judge", "serper", "searxng", "retrieve", "access", "jina"]
PLAIN_HTTP = "ATOMMEM_ALLOW_KEYS_OVER_HTTP"
MAX_WAIT_SECONDS = 30.0
IDLE_SECONDS = 2.0
"""Idle connections close after this; uvicorn (vLLM) closes its side after 5 seconds."""

_KEPT_HEADERS = ("content-type", "location", "retry-after")
_TOO_LONG = re.compile(
    r"maximum model length|context (length|size|window)|prompt is too long|too large to process"
    r"|input token count|inputs?`? (tokens|must have less)",
    re.IGNORECASE,
)
# Serper and Anthropic answer 400 when an account is exhausted.
_ACCOUNT = re.compile(r"credit|quota|balance|billing|api.?key|unauthori[sz]ed", re.IGNORECASE)
_FILTERED = re.compile(
    r"content[ _-]?(filter|policy|management)|moderation|flagged|safety|prohibited|inappropriate"
    r"|data_inspection",
    re.IGNORECASE,
)


class RefusedError(Exception):
    """Report a 3xx or 4xx answer that no retry helps. Callers translate it.

    Attributes:
        status, message: The HTTP status and the server's message.
        code, param: OpenAI's ``error.code`` and ``error.param``, if present.
    """

    def __init__(self, status: int, message: str, code: str = "", param: str = "") -> None:
        super().__init__(f"HTTP {status}: {message}")
        self.status = status
        self.message = message
        self.code = code
        self.param = param

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later. llama.cpp answers 500 to long inputs."""
        return (self.status in (408, 429) or self.status >= 500) and not self.too_long

    @property
    def of_input(self) -> bool:
        """Whether the refusal may concern the request's text rather than the account or model."""
        # OpenRouter answers 403 to flagged input.
        return self.status in (400, 413, 422, 451, 500) or (self.status == 403 and self._flagged)

    @property
    def too_long(self) -> bool:
        """Whether the input exceeds the server's limit (vLLM, OpenAI, llama.cpp, TEI, TGI)."""
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

    def of_account(self, request_text: str) -> bool:
        """Whether a 400 concerns the account. Words that the request itself contains do not count.

        A server may echo the request, so a request must not be able to fake an outage.
        """
        words = {match[0].casefold() for match in _ACCOUNT.finditer(self.message)}
        return self.status == 400 and any(word not in request_text.casefold() for word in words)


class OversizeError(RefusedError):
    """Report an answer larger than the client accepts."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(502, f"an answer of more than {max_bytes / 1e6:g} MB")


class _TransientError(Exception):
    def __init__(self, message: str, status: int | None = None, wait: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.wait = wait


class ClientOptions(TypedDict, total=False):
    """Options of `ServerClient` that its users pass on."""

    timeout: float
    retries: int
    max_in_flight: int
    backoff: float
    transport: httpx.AsyncBaseTransport | None


class ServerClient:
    """Call one JSON server, OpenAI-compatible or other.

    Failed or broken connections, time-outs, HTTP 408, 429, 5xx and undecodable answers are retried
    with exponential back-off and jitter, or after the server's Retry-After. A redirect is a
    refusal, so a key never reaches another host. One client serves several event loops.

    Args:
        base_url: The server, with or without the closing ``/v1``.
        service: Selects the API key (`api_key`).
        timeout: Seconds for a whole request, to the last byte of the answer.
        retries: Repetitions after the first failure.
        max_in_flight: Concurrent requests; further ones queue.
        backoff: Seconds before the first repetition; doubles each time, at most 30.
        max_bytes: Largest accepted answer, decompressed.
        transport: An httpx transport, for tests.

    Raises:
        ConfigError: `base_url` is not an http(s) URL, or its key may not be sent there.
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
        if not _is_http_url(base_url):
            raise ConfigError(
                f"base_url={base_url!r}: not a server URL. Give one that begins with http:// or "
                "https://."
            )
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self._headers = {**(headers or {}), **key_header(service, api_key(service, self.base_url))}
        self._timeout = timeout
        self._retries = retries
        self._max_in_flight = max_in_flight
        self._backoff = backoff
        self._max_bytes = max_bytes
        self._transport = transport
        # httpx binds connections to the event loop that made them.
        self._by_loop: dict[
            asyncio.AbstractEventLoop, tuple[httpx.AsyncClient, asyncio.Semaphore]
        ] = {}

    async def get(self, path: str) -> Any:
        """GET `path` (``/v1/...``) and return the decoded JSON. Raises as `request` does."""
        return await self.request("GET", path)

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """POST `body` as JSON and return the decoded JSON. Raises as `request` does."""
        return await self.request("POST", path, body)

    async def request(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, text: bool = False
    ) -> Any:
        """Send a request and return the decoded JSON, or with `text` the text of the answer.

        Raises:
            RefusedError: The server refused the request, or answered too much (`OversizeError`).
            OutageError: The server is out of reach or keeps failing.
        """
        from tenacity import (
            AsyncRetrying,
            retry_if_exception_type,
            stop_after_attempt,
            wait_exponential_jitter,
        )

        content = None if body is None else _encode(body)
        backoff = wait_exponential_jitter(
            multiplier=self._backoff, max=MAX_WAIT_SECONDS, jitter=self._backoff
        )

        def wait(state: RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome else None
            return max(backoff(state), error.wait if isinstance(error, _TransientError) else 0.0)

        retrying = AsyncRetrying(
            stop=stop_after_attempt(self._retries + 1),
            retry=retry_if_exception_type(_TransientError),
            wait=wait,
            reraise=True,
        )
        url = self.base_url + path
        try:
            return await retrying(self._attempt, method, url, content, text)
        except _TransientError as error:
            raise OutageError(
                f"{method} {url} failed {self._retries + 1} times, last with {error}: "
                "check that the server is up and that the URL is right.",
                error.status,
            ) from error

    async def close(self) -> None:
        """Close the connections of the running event loop; drop those of ended loops."""
        client, _ = self._by_loop.pop(asyncio.get_running_loop(), (None, None))
        self._by_loop.clear()
        if client is not None:
            await client.aclose()

    async def _attempt(self, method: str, url: str, content: bytes | None, text: bool) -> Any:
        import httpx

        client, slots = self._connection()
        try:
            # httpx limits the time of each read; a slow drip needs a limit on the whole.
            async with slots, asyncio.timeout(self._timeout):
                try:
                    response = await self._send(client, method, url, content)
                except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                    # The server closed an idle connection just as it was reused. If the server
                    # is gone, the new connection fails.
                    response = await self._send(client, method, url, content)
        except TimeoutError as error:
            raise _TransientError(f"no whole answer in {self._timeout:g} seconds") from error
        except httpx.RequestError as error:
            raise _TransientError(f"{type(error).__name__}: {error}".rstrip(": ")) from error
        if not response.is_success:
            refusal = _refusal(response)
            if refusal.retryable:
                raise _TransientError(str(refusal), refusal.status, _retry_after(response))
            raise refusal
        if text:
            return response.text
        try:
            return response.json()
        except (ValueError, RecursionError) as error:
            raise _TransientError(f"an answer that is not JSON: {response.text[:200]!r}") from error

    async def _send(
        self, client: httpx.AsyncClient, method: str, url: str, content: bytes | None
    ) -> httpx.Response:
        import httpx

        headers = {} if content is None else {"Content-Type": "application/json"}
        async with client.stream(method, url, content=content, headers=headers) as response:
            body = bytearray()
            async for part in response.aiter_bytes():
                body += part
                if len(body) > self._max_bytes:
                    raise OversizeError(self._max_bytes)
        kept = {k: v for k, v in response.headers.items() if k in _KEPT_HEADERS}
        return httpx.Response(response.status_code, headers=kept, content=bytes(body))

    def _connection(self) -> tuple[httpx.AsyncClient, asyncio.Semaphore]:
        import httpx
        from httpx_aiohttp import HttpxAiohttpClient

        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:
            # httpcore scans its whole pool for every request: 20 ms of CPU each at 500 in flight,
            # against 1.3 ms with aiohttp's pool.
            client = HttpxAiohttpClient(
                headers=self._headers,
                timeout=httpx.Timeout(self._timeout, pool=None),
                transport=self._transport,
                # Keys for this machine must not reach a proxy.
                trust_env=not is_loopback(self.base_url),
                limits=httpx.Limits(
                    max_connections=self._max_in_flight, keepalive_expiry=IDLE_SECONDS
                ),
            )
            for ended in [known for known in self._by_loop if known.is_closed()]:
                del self._by_loop[ended]
            self._by_loop[loop] = client, asyncio.Semaphore(self._max_in_flight)
        return self._by_loop[loop]


def key_variable(service: Service) -> str:
    """Name the environment variable with the key of `service` (``ATOMMEM_POLICY_API_KEY``)."""
    return f"ATOMMEM_{service.upper()}_API_KEY"


def api_key(service: Service, base_url: str) -> str | None:
    """Return the key for requests to `base_url`, or None.

    Only the service's own variable counts: OPENAI_API_KEY belongs to another host.

    Raises:
        ConfigError: The service has a key, and `base_url` is plain http to another machine.
    """
    variable = key_variable(service)
    key = os.environ.get(variable, "").strip()
    plain = urlsplit(base_url).scheme != "https" and not is_loopback(base_url)
    if key and plain and os.environ.get(PLAIN_HTTP) != "1":
        raise ConfigError(
            f"{variable} is set and {base_url} is plain http to another machine, where the key "
            f"could be read on the way. Use an https URL or a tunnel, unset {variable}, or set "
            f"{PLAIN_HTTP}=1 on a private network."
        )
    return key or None


def key_header(service: Service, key: str | None) -> dict[str, str]:
    """Return the header that carries a key; Serper has its own, all others take a bearer token."""
    if key is None:
        return {}
    return {"X-API-KEY": key} if service == "serper" else {"Authorization": f"Bearer {key}"}


def _is_http_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # unbalanced brackets, or an invalid port
        return False


def _encode(body: dict[str, Any]) -> bytes:
    # Model output may hold lone surrogates, which UTF-8 cannot encode.
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return clean(text).encode()


def _refusal(response: httpx.Response) -> RefusedError:
    code = param = ""
    try:
        body = response.json()
    except (ValueError, RecursionError):
        message = response.text[:500]
    else:
        error = body.get("error", body) if isinstance(body, dict) else body
        if isinstance(error, dict):
            code, param = str(error.get("code") or ""), str(error.get("param") or "")
            error = error.get("message", error)
        message = str(error)[:2000]
    if response.is_redirect:
        target = response.headers.get("location", "")
        message = f"it redirects to {target}: give that URL if you trust it. {message}"
    return RefusedError(response.status_code, message, code, param)


def _retry_after(response: httpx.Response) -> float:
    """Seconds in Retry-After; 0 if absent or a date."""
    value = response.headers.get("retry-after", "")
    return min(MAX_WAIT_SECONDS, float(value)) if value.isdigit() else 0.0
