"""Fetch one page of the live web through the guard, bounded in bytes and time."""

from __future__ import annotations

import asyncio
import re
import ssl
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from email.message import Message

import httpcore
import httpx

from atommem.envs.web.net.guard import GuardedBackend
from atommem.envs.web.net.hosts import HostRules
from atommem.envs.web.tools import PageError

_MAX_URL = 4096
_MAX_REDIRECTS = 5
_MAX_TYPE = 200  # Python's header parser takes quadratic time
_HOST = re.compile(rb"[a-z0-9._-]+|[0-9a-f:.]+")  # readers disagree on the meaning of others
_ACCEPT = "text/html,application/xhtml+xml,application/pdf,text/plain;q=0.9,*/*;q=0.5"
Check = Callable[[str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Fetched:
    """A fetched page: its URL after redirects, declared type ("" if none) and decoded body."""

    url: str
    content_type: str
    charset: str
    body: bytes


class Fetcher:
    """Fetches pages without proxies, cookies or credentials.

    Args:
        guard: Opens the connections.
        hosts: The URLs that may be requested, redirects included.
        max_bytes: Longest body, as sent and as decoded.
        seconds: Longest time of one request.
        user_agent: Sent with every request.
    """

    def __init__(
        self,
        guard: GuardedBackend,
        hosts: HostRules,
        user_agent: str,
        max_bytes: int = 10_000_000,
        seconds: float = 30.0,
    ) -> None:
        self._guard = guard
        self._hosts = hosts
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._headers = {"User-Agent": user_agent, "Accept": _ACCEPT, "Accept-Encoding": "identity"}
        self._tls = ssl.create_default_context()

    async def fetch(self, url: str, check: Check | None = None) -> Fetched:
        """Return the page at `url`; `check` is awaited before each request, redirects included.

        Raises:
            PageError: The page is missing, not allowed, too slow, too large, or breaks off.
            OutageError: This machine's resolver does not answer.
        """
        target = url
        for _ in range(_MAX_REDIRECTS + 1):
            parsed = parse_address(target)
            if not self._hosts.allows(str(parsed)):
                raise PageError(f"{parsed.host} may not be visited for this address.")
            if check is not None:
                await check(str(parsed))
            try:
                async with asyncio.timeout(self._seconds):
                    found = await self._get(parsed)
            except TimeoutError as error:
                raise PageError(f"{url} takes longer than {self._seconds:g} seconds.") from error
            if isinstance(found, Fetched):
                return found
            target = found
        raise PageError(f"{url} redirects more than {_MAX_REDIRECTS} times.")

    async def _get(self, url: httpx.URL) -> Fetched | str:
        """Return the page, or the target of its redirect."""
        target = httpcore.URL(
            scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
        )
        try:
            async with (
                httpcore.AsyncConnectionPool(self._tls, network_backend=self._guard) as pool,
                pool.stream("GET", target, headers=list(self._headers.items())) as response,
            ):
                headers = httpx.Headers(response.headers)
                if response.status in (301, 302, 303, 307, 308) and "location" in headers:
                    return str(url.join(headers["location"]))
                if response.status != 200:
                    raise PageError(f"{url} answers {response.status}.", response.status)
                raw = await self._read(url, response)
        except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError) as error:
            why = str(error) or type(error).__name__
            raise PageError(f"{url} cannot be fetched: {why}.") from error
        except (ssl.SSLError, httpx.InvalidURL, UnicodeError) as error:
            raise PageError(f"{url} cannot be fetched: {error}.") from error
        message = Message()
        message["content-type"] = headers.get("content-type", "")[:_MAX_TYPE]
        content_type = message.get_content_type() if message["content-type"] else ""
        body = await self._decode(url, raw, headers.get("content-encoding", ""))
        return Fetched(str(url), content_type, str(message.get_param("charset") or ""), body)

    async def _read(self, url: httpx.URL, response: httpcore.Response) -> bytes:
        body = bytearray()
        async for part in response.aiter_stream():
            body += part
            if len(body) > self._max_bytes:
                raise PageError(f"{url} is larger than {self._max_bytes / 1e6:g} MB.")
            await asyncio.sleep(0)  # buffered chunks arrive without a pause
        return bytes(body)

    async def _decode(self, url: httpx.URL, raw: bytes, encoding: str) -> bytes:
        # Some servers compress although `identity` was requested.
        if encoding.strip().casefold() in ("", "identity"):
            return raw
        decoder = zlib.decompressobj(zlib.MAX_WBITS | 32)  # gzip or zlib
        try:
            body = await asyncio.to_thread(decoder.decompress, raw, self._max_bytes + 1)
        except zlib.error as error:
            raise PageError(f"{url} has an unsupported encoding or is damaged.") from error
        if len(body) > self._max_bytes or not decoder.eof:
            raise PageError(f"{url} is damaged, or larger than {self._max_bytes / 1e6:g} MB.")
        return body


def parse_address(url: str) -> httpx.URL:
    """Return `url` in normal form.

    Raises:
        PageError: It is not the address of a page.
    """
    if len(url) > _MAX_URL:
        raise PageError(f"this address is longer than {_MAX_URL} characters.")
    try:
        parsed = httpx.URL(url)
        valid = _HOST.fullmatch(parsed.raw_host) and parsed.host and (parsed.port or 0) < 65536
    except (httpx.InvalidURL, UnicodeError) as error:
        raise PageError(f"{url} is not a valid address: {error}") from error
    if parsed.scheme not in ("http", "https") or not valid or (parsed.port or 0) < 0:
        raise PageError(f"{url} is not a valid address: start it with https:// or http://.")
    if parsed.userinfo:
        raise PageError(f"{url} contains a user name or password, which is not allowed.")
    return parsed
