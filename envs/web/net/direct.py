"""``tools: [direct]``: pages fetched through the SSRF guard, bounded in bytes and time."""

import asyncio
import codecs
import ssl
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import httpcore
import httpx

from atommem.envs.web.net import extraction
from atommem.envs.web.net.guard import GuardedBackend, HostRules, parse_address
from atommem.envs.web.tools import PageError, ToolResult, ToolSource, visit_tool
from atommem.errors import ConfigError

_PACKAGES = ("trafilatura", "lxml_html_clean", "pypdf", "protego", "webencodings")
_MAX_REDIRECTS = 5
_HEADERS = {
    "Accept": "text/html,application/xhtml+xml,application/pdf,text/plain;q=0.9,*/*;q=0.5",
    "Accept-Encoding": "gzip, deflate",
}
_MAX_ROBOTS_BYTES = 512_000  # RFC 9309 asks for 500 KiB at least


@dataclass(frozen=True, slots=True)
class Fetched:
    """A fetched page: its URL after redirects, declared type and charset, and decoded body."""

    url: str
    content_type: str
    charset: str | None
    body: bytes


class Direct(ToolSource):
    """Fetches pages without proxies, cookies or credentials; `options` are of `GuardedBackend`."""

    backend = "direct"

    def __init__(self, config: Any, *args: Any, **options: Any) -> None:
        super().__init__(config)
        if missing := [name for name in _PACKAGES if find_spec(name) is None]:
            raise ConfigError(f"tools=direct needs {', '.join(missing)}: pip install -e '.[web]'.")
        self._guard = GuardedBackend(*args, **options)
        self._tls = ssl.create_default_context()
        self._hosts = HostRules.of(config)
        self._extraction = extraction.Extraction(config.parse_seconds, config.parse_megabytes)
        self._robots: dict[str, bytes] = {}
        self.tools = [visit_tool(self._read)]

    async def _read(self, url: str) -> ToolResult:
        target = url
        for _ in range(_MAX_REDIRECTS + 1):
            page = await self.fetch(target)
            found = await self._extract(page)
            if not (target := found.refresh):
                title = found.title or page.url
                return ToolResult(found.text, title=title, links=found.links, origin=page.url)
        raise PageError(f"{url} redirects more than {_MAX_REDIRECTS} times.")

    async def _extract(self, page: Fetched) -> extraction.Extracted:
        kind, start = page.content_type, page.body[:1024].removeprefix(codecs.BOM_UTF8).lstrip()
        run = self._extraction.run
        if kind == "application/pdf" or start.startswith(b"%PDF-"):
            return await run(extraction.read_pdf, page.body)
        if kind in ("text/html", "application/xhtml+xml") or (not kind and start.startswith(b"<")):
            return await run(extraction.read_html, page.body, page.url, page.charset)
        if not kind or kind.startswith("text/") or kind.endswith(("json", "xml")):
            return await run(extraction.read_text, page.body, page.charset)
        raise PageError(f"{page.url} is {kind}, not a text.")

    async def fetch(self, url: str, is_page: bool = True) -> Fetched:
        """Return the page at `url`; every redirect obeys the same rules.

        PageError: it is missing, not allowed, too slow, too large, or breaks off. OutageError: this
        machine's resolver does not answer. robots.txt and lists of hosts count for pages alone.
        """
        target = url
        for _ in range(_MAX_REDIRECTS + 1):
            address = parse_address(target)
            if is_page and not self._hosts.allows(str(address)):
                raise PageError(f"{address} may not be visited.")
            if is_page and self.config.obey_robots:
                await self._check_robots(address)
            found = await self._get(address)
            if isinstance(found, Fetched):
                return found
            target = found
        raise PageError(f"{url} redirects more than {_MAX_REDIRECTS} times.")

    async def _get(self, url: httpx.URL) -> Fetched | str:
        seconds = self.config.page_seconds
        try:
            async with asyncio.timeout(seconds):
                return await self._request(url)
        except TimeoutError as error:
            raise PageError(f"{url} takes longer than {seconds:g} seconds.") from error
        except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError, UnicodeError) as error:
            why = str(error) or type(error).__name__
            raise PageError(f"{url} cannot be fetched: {why}.") from error

    async def _request(self, url: httpx.URL) -> Fetched | str:
        transport = httpx.AsyncHTTPTransport(self._tls, trust_env=False)
        # httpx has no public way to set the network backend.
        transport._pool = httpcore.AsyncConnectionPool(self._tls, network_backend=self._guard)
        headers = {"User-Agent": self.config.user_agent, **_HEADERS}
        async with (
            httpx.AsyncClient(transport=transport, headers=headers, timeout=None) as client,
            client.stream("GET", url) as response,
        ):
            if response.next_request is not None:
                return str(response.next_request.url)
            if not response.is_success or response.status_code == httpx.codes.PARTIAL_CONTENT:
                raise PageError(f"{url} answers {response.status_code}.", response.status_code)
            body = bytearray()
            async for part in _unpacked(response):
                body += part
                if len(body) > self.config.page_megabytes * 1e6:
                    raise PageError(f"{url} is larger than {self.config.page_megabytes:g} MB.")
                await asyncio.sleep(0)  # buffered chunks arrive without a pause
        kind = response.headers.get("content-type", "").partition(";")[0].strip().casefold()
        return Fetched(str(url), kind, response.charset_encoding, bytes(body))

    async def _check_robots(self, url: httpx.URL) -> None:
        site = str(url.join("/robots.txt"))
        if site not in self._robots:
            try:
                rules = (await self.fetch(site, is_page=False)).body[:_MAX_ROBOTS_BYTES]
            except PageError as error:
                if error.status is None or not 400 <= error.status < 500:
                    raise
                rules = b""
            self._robots[site] = rules.strip()
        # Wildcards can make matching take forever, hence a worker process.
        rules, asked = self._robots[site], (str(url), self.config.user_agent)
        if rules and not await self._extraction.run(extraction.is_allowed_by_robots, rules, *asked):
            raise PageError(f"{url.host} does not allow robots to read {url}.")


def _unpacked(response: httpx.Response) -> AsyncIterator[bytes]:
    """Return the body, unpacked to its end: httpx stops at the first member, or at a broken one."""
    parts = response.aiter_raw()
    for name in reversed(response.headers.get("content-encoding", "").lower().split(",")):
        if name.strip() in ("gzip", "x-gzip", "deflate"):
            parts = _inflated(parts)
        elif name.strip() in ("br", "zstd", "compress"):  # others are ignored, as browsers do
            raise httpx.DecodingError(f"it is packed as {name.strip()}")
    return parts


async def _inflated(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    member, ended = zlib.decompressobj(zlib.MAX_WBITS | 32), False  # gzip or zlib
    first = True
    async for part in parts:
        while part:
            try:
                unpacked = member.decompress(part)
            except zlib.error as error:
                if ended:
                    return  # padding
                if not first:
                    raise httpx.DecodingError(str(error)) from error
                member, first = zlib.decompressobj(-zlib.MAX_WBITS), False  # without a header
                continue
            yield unpacked
            part, ended, first = member.unused_data, member.eof, False
            if ended:
                member = zlib.decompressobj(zlib.MAX_WBITS | 32)
    if not (ended or first):
        raise httpx.DecodingError("it breaks off")
