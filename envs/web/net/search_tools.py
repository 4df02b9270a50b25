"""Search engines as tools: ``serper``, ``searxng``, and any ``/retrieve`` server."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

from atommem.envs.web.net.provider import ProviderSource
from atommem.envs.web.tools import Link, PageError, Tool, ToolResult, text_tool
from atommem.errors import ConfigError, OutageError

SERPER_URL = "https://google.serper.dev"
_MAX_QUERY = 2048
_MAX_PASSAGE = 5000


class Hit(NamedTuple):
    """A search result; `url` is empty if it has no address."""

    title: str
    url: str
    text: str


class SearchSource(ProviderSource):
    """One tool, ``search``. Results of hosts that may not be visited are left out.

    Raises:
        ConfigError: ``search_url`` is missing.
    """

    def __init__(self, config: Any) -> None:
        url = config.search_url or (SERPER_URL if self.service == "serper" else None)
        if not url:
            raise ConfigError(
                f"tools={self.service}: search_url is missing. Give the server's URL."
            )
        super().__init__(config, url)
        self.backend = f"{self.backend} {config.search_results}"

    @property
    def tools(self) -> Sequence[Tool]:
        """The search tool."""
        return (
            text_tool("search", "Searches the web.", "query", "Words to look for.", self._search),
        )

    @abstractmethod
    async def _find(self, query: str) -> list[Hit]:
        """Return the results for `query`, best first."""

    async def _search(self, query: str, task: Any) -> ToolResult:
        query = query[:_MAX_QUERY]
        if not query.strip():
            raise PageError("The query is empty.")
        allowed = [hit for hit in await self._find(query) if self._hosts.allows(hit.url)]
        hits = allowed[: self.config.search_results]
        if not hits:
            raise PageError(f"No page was found for: {query}")
        lines = [" ".join(filter(None, (f"{hit.title}:", hit.url, hit.text))) for hit in hits]
        has_addresses = all(hit.url for hit in hits)
        links = tuple(Link(hit.title, hit.url) for hit in hits) if has_addresses else ()
        return ToolResult("\n".join(lines), links=links)


class Serper(SearchSource):
    """Google through Serper (``POST /search`` with ``q`` and ``num``, key in ``X-API-KEY``)."""

    service = "serper"

    async def _find(self, query: str) -> list[Hit]:
        answer = await self._post("/search", {"q": query, "num": self.config.search_results})
        with self._parsing(answer):
            hits = [_parse_result(one, "link", "snippet") for one in answer.get("organic", ())]
            box = answer.get("answerBox") or {}
            text = box.get("answer") or box.get("snippet")
            if box.get("link") and text:
                hits.insert(0, Hit(str(box.get("title", "")), str(box["link"]), str(text)))
        return hits


class Searxng(SearchSource):
    """A SearxNG server (``GET /search?q=...&format=json``; its settings must enable JSON)."""

    service = "searxng"

    async def _find(self, query: str) -> list[Hit]:
        answer = await self._get(f"/search?{urlencode({'q': query, 'format': 'json'})}")
        with self._parsing(answer):
            hits = [_parse_result(one, "url", "content") for one in answer["results"]]
            silent = answer.get("unresponsive_engines")
        if not hits and silent:
            raise OutageError(f"no engine behind {self._url} responds: {str(silent)[:200]}.")
        return hits


class Retrieve(SearchSource):
    """A server with Search-R1's protocol (``POST /retrieve`` with ``queries``, ``topk``).

    A document has ``contents``, whose first line is its title in quotes, or ``title`` and ``text``;
    its address is ``url``."""

    service = "retrieve"

    async def _find(self, query: str) -> list[Hit]:
        body = {"queries": [query], "topk": self.config.search_results, "return_scores": True}
        answer = await self._post("/retrieve", body)
        with self._parsing(answer):
            return [_parse_passage(one.get("document", one)) for one in answer["result"][0]]


def _parse_result(result: Mapping[str, Any], url: str, text: str) -> Hit:
    title = result.get("title") or result[url]
    return Hit(_one_line(title), str(result[url]), _one_line(result.get(text)))


def _parse_passage(document: Mapping[str, Any]) -> Hit:
    title, text = document.get("title"), document.get("text")
    if text is None:
        first, _, rest = str(document["contents"]).partition("\n")
        title, text = (title or first.strip('" '), rest) if rest else (title, first)
    url = str(document.get("url") or title or "")
    return Hit(_one_line(title or "-"), url, _one_line(text)[:_MAX_PASSAGE])


def _one_line(text: Any) -> str:
    return " ".join(str(text or "").split())
