"""Readers of pages as tools: ``direct`` (guarded), ``jina``, and ``/access`` servers."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from atommem.envs.web.net.extraction import Extracted, Extraction, read_html, read_pdf, read_text
from atommem.envs.web.net.fetcher import Fetched, Fetcher, parse_address
from atommem.envs.web.net.guard import GuardedBackend, Resolve, Rule, is_public, resolve
from atommem.envs.web.net.hosts import HostRules
from atommem.envs.web.net.provider import ProviderSource
from atommem.envs.web.net.robots import Robots
from atommem.envs.web.tools import (
    LONGEST_TEXT,
    Link,
    PageError,
    Tool,
    ToolResult,
    ToolSource,
    text_tool,
)
from atommem.errors import ConfigError

JINA_URL = "https://r.jina.ai"
_MAX_LINKS = 100
_PACKAGES = ("trafilatura", "lxml_html_clean", "pypdf", "protego")


class ReaderSource(ToolSource):
    """One tool, ``visit``."""

    @property
    def tools(self) -> Sequence[Tool]:
        """The visit tool."""
        page = "A page's address (https://...), or the number of a link shown now."
        return (text_tool("visit", "Shows a page.", "page", page, self._visit),)

    async def _visit(self, page: str, task: Any) -> ToolResult:
        result = await self._read(page.strip())
        if not result.text.strip():
            raise PageError(f"{result.origin} has no text.")
        return result

    @abstractmethod
    async def _read(self, url: str) -> ToolResult:
        """Return the page at `url`.

        Raises:
            PageError: It cannot be read.
            OutageError: The provider, or this machine's network, is out of reach.
        """


class Direct(ReaderSource):
    """Fetches pages through the SSRF guard, obeys robots.txt, and reads HTML, PDF and text.

    Args:
        config: A `WebConfig`.
        rule, resolve: As in `GuardedBackend`.

    Raises:
        ConfigError: A package is missing.
    """

    backend = "direct"

    def __init__(self, config: Any, rule: Rule = is_public, resolve: Resolve = resolve) -> None:
        super().__init__(config)
        missing = [name for name in _PACKAGES if find_spec(name) is None]
        if missing:
            raise ConfigError(
                f"tools=direct needs {', '.join(missing)}: pip install 'atommem[web]'."
            )
        self._fetcher = Fetcher(
            GuardedBackend(rule, config.private_hosts, resolve),
            HostRules.of(config),
            config.user_agent,
            int(config.page_megabytes * 1e6),
            config.page_seconds,
        )
        self._extraction = Extraction(
            config.parse_workers, config.parse_seconds, config.parse_megabytes
        )
        robots = Robots(self._fetcher, self._extraction, config.user_agent)
        self._check = robots.check if config.obey_robots else None

    async def close(self) -> None:
        """Stop the worker processes."""
        await asyncio.to_thread(self._extraction.close)

    async def _read(self, url: str) -> ToolResult:
        page = await self._fetcher.fetch(url, self._check)
        title, text, links = await self._extract(page)
        return ToolResult(text, title=title or page.url, links=links, origin=page.url)

    async def _extract(self, page: Fetched) -> Extracted:
        kind, start = page.content_type, page.body[:1024].lstrip()
        if kind == "application/pdf" or start.startswith(b"%PDF-"):
            return await self._extraction.run(read_pdf, page.body)
        if kind in ("text/html", "application/xhtml+xml") or (not kind and start.startswith(b"<")):
            return await self._extraction.run(read_html, page.body, page.url, page.charset)
        if not kind or kind.startswith("text/") or kind.endswith(("json", "xml")):
            return await self._extraction.run(read_text, page.body, page.charset)
        raise PageError(f"{page.url} is {kind}, not a text.")


class Jina(ProviderSource, ReaderSource):
    """Jina Reader (``POST /`` with ``url``; JSON with ``data``: title, url, content, links)."""

    service = "jina"

    def __init__(self, config: Any) -> None:
        headers = {
            "Accept": "application/json",
            "X-With-Links-Summary": "true",
            "X-Retain-Images": "none",
        }
        super().__init__(config, config.reader_url or JINA_URL, headers)

    async def _read(self, url: str) -> ToolResult:
        url = str(parse_address(url))
        self._check_host(url)
        answer = await self._post("/", {"url": url})
        with self._parsing(answer):
            data = answer["data"]
            links = data.get("links") or {}
            pairs = links.items() if isinstance(links, dict) else links
            shown = [Link(str(name).strip() or str(at), str(at)) for name, at in pairs]
            text, origin = str(data.get("content") or ""), str(data.get("url") or url)
            title, warning = str(data.get("title") or origin), str(data.get("warning") or "")
        if "returned error" in warning:
            raise PageError(warning[:300])
        self._check_host(origin)
        links = tuple(shown[:_MAX_LINKS])
        return ToolResult(text[:LONGEST_TEXT], title=title, links=links, origin=origin)


class Access(ProviderSource, ReaderSource):
    """Pages of a server with ASearcher's protocol (``POST /access`` with ``urls``)."""

    service = "access"

    def __init__(self, config: Any) -> None:
        url = config.reader_url or config.search_url
        if not url:
            raise ConfigError("tools=access: reader_url is missing. Give the server's URL.")
        super().__init__(config, url)

    async def _read(self, url: str) -> ToolResult:
        self._check_host(url)
        answer = await self._post("/access", {"urls": [url]})
        with self._parsing(answer):
            (page,) = answer["result"]
            if page is None:
                raise PageError(f"there is no page {url}.")
            names = ("text", "contents", "page")
            text = str(next(page[name] for name in names if page.get(name) is not None))
            origin = str(page.get("url") or url)
            title = str(page.get("title") or origin)
            links = [Link(str(one["title"]), str(one["url"])) for one in page.get("links") or ()]
        self._check_host(origin)
        return ToolResult(text[:LONGEST_TEXT], title=title, links=tuple(links), origin=origin)
