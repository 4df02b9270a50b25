"""Readers of pages as tools: ``direct`` (guarded), ``jina``, and ``/access`` servers."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from atommem.envs.web.net.extraction import Extraction
from atommem.envs.web.net.fetcher import Fetched, Fetcher, Limits, parsed_address
from atommem.envs.web.net.guard import GuardedBackend, Resolve, Rule, public, resolve
from atommem.envs.web.net.hosts import HostRules
from atommem.envs.web.net.provider import ProviderSource, served
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
from atommem.errors import ConfigError, OutageError

JINA = "https://r.jina.ai"
_ALWAYS_THERE = "https://example.com/"
_TEXT_BYTES = 1_000_000
_MOST_LINKS = 100
_MOST_PDF_PAGES = 200
_LIBRARIES = ("trafilatura", "lxml_html_clean", "pypdf", "protego")


class ReaderSource(ToolSource):
    """One tool, ``visit``."""

    @property
    def tools(self) -> Sequence[Tool]:
        """The one."""
        page = "A page's address (https://...), or the number of a link shown now."
        return (text_tool("visit", "Shows a page.", "page", page, self._visit),)

    async def _visit(self, page: str, task: Any) -> ToolResult:
        result = await self._read(page.strip())
        if not result.text.strip():
            raise PageError(f"{result.origin} has no text.")
        return result

    @abstractmethod
    async def _read(self, url: str) -> ToolResult:
        """The page at `url`.

        Raises:
            PageError: It cannot be read.
            OutageError: A provider, or this machine's network, is out of reach.
        """


class Direct(ReaderSource):
    """Fetches pages itself: through the guard, held to robots.txt, HTML and PDF read in processes of their own.

    Args:
        config: Settings of tools.
        rule: Which addresses may be connected to.
        resolve: Makes addresses of names.

    Raises:
        ConfigError: Its libraries are not installed.
    """

    def __init__(self, config: Any, rule: Rule = public, resolve: Resolve = resolve) -> None:
        super().__init__(config)
        missing = [name for name in _LIBRARIES if find_spec(name) is None]
        if missing:
            raise ConfigError(
                f"tools name direct, which needs {', '.join(missing)}: pip install 'atommem[web]'."
            )
        limits = Limits(int(config.page_megabytes * 1e6), config.page_seconds)
        guard = GuardedBackend(rule, config.private_hosts, resolve)
        self._fetcher = Fetcher(guard, HostRules.of(config), limits, config.user_agent)
        self._extraction = Extraction(
            config.parse_workers, config.parse_seconds, config.parse_megabytes
        )
        # Of their own: rules are read within a page's time, in which it must not wait for others to be read.
        self._rules = Extraction(1, config.parse_seconds, config.parse_megabytes)
        self._robots = (
            Robots(self._fetcher, self._rules, config.user_agent) if config.obey_robots else None
        )
        self.backend = f"direct trafilatura-{version('trafilatura')} pypdf-{version('pypdf')}"

    async def close(self) -> None:
        """End the processes."""
        for extraction in (self._extraction, self._rules):
            await asyncio.to_thread(extraction.close)

    async def _read(self, url: str) -> ToolResult:
        page = await self._fetcher.fetch(url, None if self._robots is None else self._robots.check)
        read = await self._text(page)
        links = tuple(Link(name, target) for target, name in read["links"])
        return ToolResult(
            read["text"], title=read["title"] or page.url, links=links, origin=page.url
        )

    async def _text(self, page: Fetched) -> dict[str, Any]:
        start = page.body[:1024].lstrip()
        kind = page.content_type
        most = {"most": LONGEST_TEXT}
        if kind == "application/pdf" or start.startswith(b"%PDF-"):
            return await self._extraction.read("pdf", page.body, most_pages=_MOST_PDF_PAGES, **most)
        text, charset = page.body[:_TEXT_BYTES], page.charset
        if kind in ("text/html", "application/xhtml+xml") or (not kind and start.startswith(b"<")):
            details = {"url": page.url, "charset": charset, "most_links": _MOST_LINKS, **most}
            return await self._extraction.read("html", text, **details)
        if not kind or kind.startswith("text/") or kind.endswith(("json", "xml")):
            return await self._extraction.read("text", text, charset=charset, **most)
        raise PageError(f"{page.url} is {kind}, not a text.")


class Jina(ProviderSource, ReaderSource):
    """Jina Reader (``POST /`` with ``url``; JSON with ``data``: title, url, content, links)."""

    def __init__(self, config: Any) -> None:
        url = config.reader_url or JINA
        headers = {
            "Accept": "application/json",
            "X-With-Links-Summary": "true",
            "X-Retain-Images": "none",
        }
        super().__init__(config, "jina", url, headers)
        self.backend = f"jina {url}"

    async def _read(self, url: str) -> ToolResult:
        url = str(parsed_address(url))
        if not self._hosts.allows(url):
            raise PageError(f"{url} may not be visited.")
        try:
            answer = await self._provider.post("/", {"url": url})
        except OutageError as error:
            if not await self._provider.breaks_at(
                error, lambda: self._provider.post("/", {"url": _ALWAYS_THERE})
            ):
                raise
            raise PageError(f"{url} is too much for the reader ({error.status}).") from error
        with self._provider.reading(answer):
            data = answer["data"]
            warning = str(data.get("warning") or "")
            links = data.get("links") or {}
            pairs = [
                (str(name), str(target))
                for name, target in (links.items() if isinstance(links, dict) else links)
            ]
            text, title, at = (
                str(data.get("content") or ""),
                str(data.get("title") or ""),
                str(data.get("url") or url),
            )
        if "returned error" in warning:
            raise PageError(warning[:300])
        if not self._hosts.allows(at):
            raise PageError(f"{url} leads to {at}, which may not be visited.")
        shown = tuple(Link(name.strip() or target, target) for name, target in pairs[:_MOST_LINKS])
        return ToolResult(text[:LONGEST_TEXT], title=title or at, links=shown, origin=at)


class Access(ProviderSource, ReaderSource):
    """Pages of a server with ASearcher's protocol (``POST /access`` with ``urls``)."""

    def __init__(self, config: Any) -> None:
        url = config.reader_url or config.search_url
        if not url:
            raise ConfigError(
                "tools name access, and neither reader_url nor search_url is set: give its server's URL."
            )
        super().__init__(config, "access", url)
        self.backend = served(config, "access", url)

    async def _read(self, url: str) -> ToolResult:
        if not self._hosts.allows_name(url):
            raise PageError(f"{url} may not be visited.")
        try:
            answer = await self._provider.post("/access", {"urls": [url]})
        except OutageError as error:
            control = {"urls": [_ALWAYS_THERE]}  # there or not, it can be answered
            if not await self._provider.breaks_at(
                error, lambda: self._provider.post("/access", control)
            ):
                raise
            raise PageError(
                f"{url} is too much for the server of pages ({error.status})."
            ) from error
        with self._provider.reading(answer):
            (page,) = answer["result"]
            if page is None:
                raise PageError(f"there is no page {url}.")
            text = next(
                page[name] for name in ("text", "contents", "page") if page.get(name) is not None
            )
            links = tuple(
                Link(str(one["title"]), str(one["url"])) for one in page.get("links") or ()
            )
            at = str(page.get("url") or url)
            title = str(page.get("title") or at)
        if not self._hosts.allows_name(at):
            raise PageError(f"{url} leads to {at}, which may not be visited.")
        return ToolResult(str(text)[:LONGEST_TEXT], title=title, links=links, origin=at)
