"""Fetches one page of the live web: guarded, bounded in bytes and time."""

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
from atommem.envs.web.net.head_limit import HeadLimit
from atommem.envs.web.net.hosts import HostRules
from atommem.envs.web.tools import PageError

_MAX_URL = 4096
_MOST_OF_A_TYPE = 200
_MOST_HEAD_BYTES = 300_000
_MOST_PARTS, _PARTS_AT_A_TIME = 100_000, 100
_HOST = re.compile(rb"[a-z0-9._-]+|[0-9a-f:.]+")
"""What some readers unquote or fold is no name: they would visit another host than the one that was checked."""
_REDIRECTS = (301, 302, 303, 307, 308)


@dataclass(frozen=True, slots=True)
class Fetched:
    """A page as it came.

    Attributes:
        url: Where it was, after redirects.
        content_type, charset: As the server says, "" where it does not.
        body: Decoded bytes.
    """

    url: str
    content_type: str
    charset: str
    body: bytes


@dataclass(frozen=True)
class Limits:
    """What a page may cost: bytes as sent and again as decoded, seconds in all, redirects."""

    max_bytes: int = 10_000_000
    seconds: float = 30.0
    redirects: int = 5


class Fetcher:
    """Fetches pages through a guard.

    Nothing of this machine's settings is used (proxies, .netrc), nothing is sent but the request, and no cookie is
    kept. Each fetch has connections of its own, so that it may be used from several event loops.

    Args:
        guard: Connects.
        hosts: Which URLs may be asked for; redirects are held to it too.
        limits: What a page may cost.
        user_agent: Says who asks.
    """

    def __init__(
        self, guard: GuardedBackend, hosts: HostRules, limits: Limits, user_agent: str
    ) -> None:
        self._guard = guard
        self._hosts = hosts
        self._limits = limits
        self._headers = [
            ("User-Agent", user_agent),
            (
                "Accept",
                "text/html,application/xhtml+xml,application/pdf,text/plain;q=0.9,*/*;q=0.5",
            ),
            ("Accept-Encoding", "identity"),
        ]
        self._tls = ssl.create_default_context()

    async def fetch(
        self, url: str, check: Callable[[str], Awaitable[None]] | None = None
    ) -> Fetched:
        """The page at `url`; `check` is asked before each address that is asked for, those of redirects too.

        Raises:
            PageError: It is not there, not allowed, too slow, too large, or its server breaks off.
            OutageError: This machine reaches no network, or no resolver.
        """
        try:
            async with asyncio.timeout(self._limits.seconds):
                return await self._follow(self.checked(url), check)
        except TimeoutError as error:
            raise PageError(f"{url} takes longer than {self._limits.seconds:g} seconds.") from error

    def checked(self, url: str) -> httpx.URL:
        """`url`, if it is one that may be visited.

        Raises:
            PageError: It is none.
        """
        parsed = parsed_address(url)
        if not self._hosts.allows(str(parsed)):
            raise PageError(f"{parsed.host} may not be visited for this address.")
        return parsed

    async def _follow(
        self, url: httpx.URL, check: Callable[[str], Awaitable[None]] | None
    ) -> Fetched:
        for _ in range(self._limits.redirects + 1):
            if check is not None:
                await check(str(url))
            found = await self._get(url)
            if isinstance(found, Fetched):
                return found
            try:
                url = self.checked(str(url.join(found)))
            except (httpx.InvalidURL, UnicodeError) as error:
                raise PageError(f"{url} leads to {found!r}, which is no address.") from error
        raise PageError(
            f"{url} leads on to other addresses more than {self._limits.redirects} times."
        )

    async def _get(self, url: httpx.URL) -> Fetched | str:
        """The page, or where its server says that it is."""
        target = httpcore.URL(
            scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
        )
        limit = HeadLimit(self._guard, _MOST_HEAD_BYTES)
        try:
            async with (
                httpcore.AsyncConnectionPool(ssl_context=self._tls, network_backend=limit) as pool,
                pool.stream("GET", target, headers=self._headers) as response,
            ):
                limit.begun()
                headers = httpx.Headers(response.headers)
                location = headers.get("location")
                if response.status in _REDIRECTS and location:
                    return location
                if response.status != 200:
                    raise PageError(f"{url} answers {response.status}.", response.status)
                raw = await self._read(url, response, headers)
        except (
            httpcore.TimeoutException,
            httpcore.NetworkError,
            httpcore.ProtocolError,
            ssl.SSLError,
        ) as error:
            raise PageError(
                f"{url} cannot be had: {str(error) or type(error).__name__}."
            ) from error
        body = await self._decoded(url, raw, headers.get("content-encoding", ""))
        said = Message()
        # Python's parser takes quadratic time: half a minute for a header of 95,000 semicolons.
        said["content-type"] = headers.get("content-type", "")[:_MOST_OF_A_TYPE]
        content_type = said.get_content_type() if said["content-type"] else ""
        return Fetched(str(url), content_type, str(said.get_param("charset") or ""), body)

    async def _read(
        self, url: httpx.URL, response: httpcore.Response, headers: httpx.Headers
    ) -> bytes:
        """The body as sent."""
        most = self._limits.max_bytes
        announced = headers.get("content-length", "")
        if announced.isdecimal() and int(announced[:20]) > most:
            raise PageError(f"{url} is larger than {most / 1e6:g} MB.")
        raw, parts = bytearray(), 0
        async for part in response.aiter_stream():
            raw += part
            if len(raw) > most:
                raise PageError(f"{url} is larger than {most / 1e6:g} MB.")
            # What has come already is given without a pause, and may be chunks of a byte each.
            parts += 1
            if parts > _MOST_PARTS:
                raise PageError(f"{url} comes in more than {_MOST_PARTS:,} parts.")
            if parts % _PARTS_AT_A_TIME == 0:
                await asyncio.sleep(0)
        return bytes(raw)

    async def _decoded(self, url: httpx.URL, raw: bytes, encoding: str) -> bytes:
        """The body without the encoding that was not asked for, and that some servers use all the same."""
        encoding = encoding.strip().casefold()
        if encoding in ("", "identity"):
            return raw
        if encoding not in ("gzip", "x-gzip", "deflate"):
            raise PageError(f"{url} is encoded as {encoding[:40]!r}, which was not asked for.")
        # Off the loop: megabytes take tens of milliseconds.
        body = await asyncio.to_thread(_inflated, raw, self._limits.max_bytes)
        if body is None:
            raise PageError(
                f"{url} is damaged, or larger than {self._limits.max_bytes / 1e6:g} MB when unpacked."
            )
        return body


def parsed_address(url: str) -> httpx.URL:
    """`url`, if it is the address of a page, in the one spelling that every reader takes for the same.

    Raises:
        PageError: It is none.
    """
    if len(url) > _MAX_URL:
        raise PageError(f"this address is longer than {_MAX_URL} characters.")
    try:
        parsed = httpx.URL(url)
        plain = (
            _HOST.fullmatch(parsed.raw_host) and parsed.host and (parsed.port or 0) in range(65536)
        )
    except (httpx.InvalidURL, UnicodeError) as error:  # some names cannot be read back
        raise PageError(f"{url} is no address of a page: {error}") from error
    if parsed.scheme not in ("http", "https") or not plain:
        raise PageError(
            f"{url} is no address of a page: write one that begins with https:// or http://."
        )
    if parsed.userinfo:
        raise PageError(f"{url} holds a name or password, which no page needs.")
    return parsed


def _inflated(raw: bytes, most: int) -> bytes | None:
    """What zlib or gzip data hold, None if that is more than `most` bytes or cannot be read."""
    for bits in (zlib.MAX_WBITS | 32, -zlib.MAX_WBITS):  # with a header of either, without
        unpacking = zlib.decompressobj(bits)
        try:
            body = unpacking.decompress(raw, most + 1)
        except zlib.error:
            continue
        return body if len(body) <= most and unpacking.eof else None
    return None
