"""JSON over HTTP with retries: the one client of policies, embedders, judges and search engines."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote_plus, urlsplit

from atommem.config import is_loopback
from atommem.errors import ConfigError, OutageError
from atommem.text_safety import clean

if TYPE_CHECKING:
    import httpx

Service = Literal["policy", "embedder", "judge", "serper", "searxng", "retrieve", "access", "jina"]
PLAIN_HTTP = "ATOMMEM_ALLOW_KEYS_OVER_HTTP"
MAX_WAIT_SECONDS = 30.0
IDLE_SECONDS = 2.0  # idle connections close; uvicorn (vLLM) closes its side after 5

_TOO_LONG = re.compile(
    r"maximum model length|context (length|size|window)|prompt is too long|too large to process"
    r"|input token count|inputs?`? (tokens|must have less)",
    re.IGNORECASE,
)
# What vLLM, llama.cpp and OpenAI write for a chat template or a model without the system role.
_NO_SYSTEM_ROLE = re.compile(
    r"system (role|message|prompt|instruction)|['\"`]system['\"`]|roles? must alternate"
    r"|only user and assistant roles",
    re.IGNORECASE,
)
# Serper and Anthropic answer 400 when an account is exhausted.
_ACCOUNT = re.compile(
    r"(not enough|insufficient|out of|exceeded your current) (credit|quota|balance|funds)"
    r"|credit balance|billing|(invalid|missing) api.?key|unauthori[sz]ed",
    re.IGNORECASE,
)
_FILTERED = re.compile(
    r"content[ _-]?(filter|policy|management)|moderation|flagged|safety|prohibited|inappropriate"
    r"|data_inspection",
    re.IGNORECASE,
)


class RefusedError(Exception):
    """Report a 3xx or 4xx answer that no retry helps. Callers translate it.

    `code` and `param` are those of OpenAI's ``error``, if present; `request` is what was sent.
    """

    def __init__(
        self, status: int, message: str, code: str = "", param: str = "", request: str = ""
    ) -> None:
        super().__init__(f"HTTP {status}: {message}")
        self.status, self.message, self.request = status, message, request
        self.code, self.param = code, param

    @property
    def retryable(self) -> bool:
        may_pass = self.status in (408, 429) or self.status >= 500
        return may_pass and not self.too_long and not self.without_system_role

    @property
    def without_system_role(self) -> bool:
        return self.status in (400, 422, 500) and _NO_SYSTEM_ROLE.search(self.message) is not None

    @property
    def too_long(self) -> bool:
        """Whether the input exceeds the server's limit (vLLM, OpenAI, llama.cpp, TEI, TGI)."""
        found = self.status in (400, 422, 500) and _TOO_LONG.search(self.message)
        return self.status == 413 or self.code == "context_length_exceeded" or bool(found)

    @property
    def filtered(self) -> bool:
        """Whether a content filter refused the input (with 403 at OpenRouter)."""
        found = _FILTERED.search(f"{self.code} {self.message}")
        return self.status == 451 or (self.status in (400, 403, 422) and found is not None)

    @property
    def of_account(self) -> bool:
        """Whether a 400 concerns the account: its key, quota or balance.

        A phrase of the request, which a server may echo, does not count: no text fakes an outage.
        """
        found = _ACCOUNT.search(self.message) if self.status == 400 else None
        return found is not None and found[0].casefold() not in self.request.casefold()

    @property
    def of_input(self) -> bool:
        """Whether the refusal may concern the request's text, not the account or the model."""
        refused = self.status in (400, 422) or self.too_long or self.filtered
        return refused and not self.of_account


class _TransientError(Exception):
    def __init__(self, message: str, status: int | None = None, wait: float = 0.0) -> None:
        super().__init__(message)
        self.status, self.wait = status, wait


@dataclass(eq=False, repr=False)  # headers hold a key
class ServerClient:
    """Call one JSON server, OpenAI-compatible or other, also from several event loops.

    Failed or broken connections, time-outs (of a whole request), HTTP 408, 429, 5xx and undecodable
    answers are retried with exponential back-off of at most 30 s and jitter, or after the server's
    Retry-After. A redirect is a refusal, so a key never reaches another host. `service` selects the
    API key; answers of more than `max_bytes`, decompressed, are refused.
    """

    base_url: str
    _: KW_ONLY
    service: Service
    timeout: float = 600.0
    retries: int = 5
    max_in_flight: int = 64
    backoff: float = 0.5
    headers: Mapping[str, str] = field(default_factory=dict)
    max_bytes: int = 1_000_000_000
    transport: httpx.AsyncBaseTransport | None = None

    def __post_init__(self) -> None:
        if not _is_http_url(self.base_url):
            raise ConfigError(
                f"base_url={self.base_url!r}: not a server URL. Give one that begins with http:// "
                "or https://."
            )
        self.base_url = self.base_url.rstrip("/").removesuffix("/v1")
        self.headers = {**self.headers, **_key_header(self.service, self.base_url)}
        # httpx binds connections to the event loop that made them.
        self._by_loop: dict[Any, tuple[httpx.AsyncClient, asyncio.Semaphore]] = {}

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        return await self.request("POST", path, body)

    async def request(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, text: bool = False
    ) -> Any:
        """Send a request and return the decoded JSON, or with `text` the text of the answer.

        Raises RefusedError, also (502) for too long an answer; OutageError after all retries.
        """
        url = self.base_url + path
        content = None
        if body is not None:  # model output may hold lone surrogates, which UTF-8 cannot encode
            content = clean(json.dumps(body, ensure_ascii=False)).encode()
        for attempt in count():
            try:
                return await self._attempt(method, url, content, text)
            except _TransientError as error:
                if attempt == self.retries:
                    raise OutageError(
                        f"{method} {url} failed {attempt + 1} times, last with {error}: "
                        "check that the server is up and that the URL is right.",
                        error.status,
                    ) from error
                if attempt == 1:
                    problem = f"{url} failed twice ({error}): trying {self.retries - 1} times more"
                    warnings.warn(problem, stacklevel=2)
                wait = self.backoff * 2**attempt + random.uniform(0, self.backoff)
                await asyncio.sleep(min(MAX_WAIT_SECONDS, max(wait, error.wait)))

    async def close(self) -> None:
        client, _ = self._by_loop.pop(asyncio.get_running_loop(), (None, None))
        if client is not None:
            await client.aclose()

    async def _attempt(self, method: str, url: str, content: bytes | None, text: bool) -> Any:
        import httpx

        client, slots = self._connection()
        headers = {} if content is None else {"Content-Type": "application/json"}
        try:
            async with slots, asyncio.timeout(self.timeout):
                request = client.build_request(method, url, content=content, headers=headers)
                response = await client.send(request, stream=True)
                answer = await self._read(response)
        except TimeoutError as error:
            raise _TransientError(f"no whole answer in {self.timeout:g} seconds") from error
        except httpx.RequestError as error:
            raise _TransientError(f"{type(error).__name__}: {error}".rstrip(": ")) from error
        if not response.is_success:
            # The texts of the request as a server may echo them.
            sent = (content or b"").decode().replace('\\"', '"').replace("\\\\", "\\")
            refusal = _refusal(response, answer, unquote_plus(url) + sent)
            if refusal.retryable:
                after = response.headers.get("retry-after", "")  # or a date
                seconds = float(after) if after.isdigit() else 0.0
                raise _TransientError(str(refusal), refusal.status, seconds)
            raise refusal
        try:
            return answer if text else json.loads(answer)
        except (ValueError, RecursionError) as error:
            raise _TransientError(f"an answer that is not JSON: {answer[:200]!r}") from error

    async def _read(self, response: httpx.Response) -> str:
        body = bytearray()
        try:
            async for part in response.aiter_bytes():
                body += part
                if len(body) > self.max_bytes:
                    raise RefusedError(502, f"an answer of more than {self.max_bytes / 1e6:g} MB")
        finally:
            await response.aclose()
        return body.decode(response.charset_encoding or "utf-8", "replace")

    def _connection(self) -> tuple[httpx.AsyncClient, asyncio.Semaphore]:
        import httpx
        from httpx_aiohttp import HttpxAiohttpClient

        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:
            # httpcore scans its whole pool for every request: 20 ms of CPU each at 500 in flight,
            # against 1.3 ms with aiohttp's pool.
            most = self.max_in_flight
            client = HttpxAiohttpClient(
                headers=self.headers,
                timeout=None,  # each read's; `_attempt` limits the whole
                transport=self.transport,
                # Keys for this machine must not reach a proxy.
                trust_env=not is_loopback(self.base_url),
                limits=httpx.Limits(max_connections=most, keepalive_expiry=IDLE_SECONDS),
            )
            still = {one: held for one, held in self._by_loop.items() if not one.is_closed()}
            self._by_loop = {**still, loop: (client, asyncio.Semaphore(most))}
        return self._by_loop[loop]


def key_variable(service: Service) -> str:
    """Name the environment variable with the key of `service` (``ATOMMEM_POLICY_API_KEY``)."""
    return f"ATOMMEM_{service.upper()}_API_KEY"


def _key_header(service: Service, base_url: str) -> dict[str, str]:
    """Return the header with the service's own key: OPENAI_API_KEY belongs to another host."""
    variable = key_variable(service)
    key = os.environ.get(variable, "").strip()
    if not key:
        return {}
    check_key_is_safe(variable, base_url)
    return {"X-API-KEY": key} if service == "serper" else {"Authorization": f"Bearer {key}"}


def check_key_is_safe(variable: str, base_url: str) -> None:
    """Raise ConfigError if the key in an environment variable would cross a network in plain."""
    plain = urlsplit(base_url).scheme != "https" and not is_loopback(base_url)
    if plain and os.environ.get(PLAIN_HTTP) != "1":
        raise ConfigError(
            f"{variable} is set and {base_url} is plain http to another machine, where the key "
            f"could be read on the way. Use an https URL or a tunnel, unset {variable}, or set "
            f"{PLAIN_HTTP}=1 on a private network."
        )


def _is_http_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # unbalanced brackets, or an invalid port
        return False


def _refusal(response: httpx.Response, answer: str, request: str) -> RefusedError:
    message, code, param = answer[:2000], "", ""
    with suppress(ValueError, RecursionError, LookupError, TypeError, AttributeError):
        error = json.loads(answer)["error"]
        code, param = str(error.get("code") or ""), str(error.get("param") or "")
        message = str(error["message"])[:2000]
    if response.is_redirect:
        target = response.headers.get("location", "")
        message = f"it redirects to {target}: give that URL if you trust it. {message}"
    return RefusedError(response.status_code, message, code, param, request)
