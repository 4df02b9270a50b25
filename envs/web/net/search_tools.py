"""Search engines as tools: ``serper``, ``searxng``, and any ``/retrieve`` server."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from atommem.envs.web.net.provider import ProviderSource, served
from atommem.envs.web.tools import Link, PageError, Tool, ToolResult, text_tool
from atommem.errors import ConfigError, OutageError
from atommem.servers.client import Service

SERPER = "https://google.serper.dev"
_LONGEST_QUERY = 2048
_EASY_QUERY = "weather"
_LONGEST_PASSAGE = 5000


class SearchSource(ProviderSource):
    """One tool, ``search``: numbered results with title, address and what they say of the query.

    Results of hosts that may not be visited are left out: what they say is as good as a visit.

    Raises:
        ConfigError: Its server is not named, or its key may not be sent there.
    """

    service: Service

    def __init__(self, config: Any) -> None:
        url = self._url(config)
        super().__init__(config, self.service, url)
        self.backend = f"{self._served(url)} {config.search_results}"

    @property
    def tools(self) -> Sequence[Tool]:
        """The one."""
        return (
            text_tool("search", "Searches the web.", "query", "Words to look for.", self._search),
        )

    def _url(self, config: Any) -> str:
        if not config.search_url:
            raise ConfigError(
                f"tools name {self.service}, and search_url is unset: give its server's URL."
            )
        return str(config.search_url)

    def _served(self, url: str) -> str:
        return f"{self.service} {url}"

    @abstractmethod
    async def _found(self, query: str) -> list[tuple[str, str, str]]:
        """Title, address ("" where there is none) and text of the results for `query`, the best first."""

    async def _search(self, query: str, task: Any) -> ToolResult:
        query = query[:_LONGEST_QUERY]
        if not query.strip():
            raise PageError("The query is empty.")
        try:
            found = await self._found(query)
        except OutageError as error:
            if not await self._provider.breaks_at(error, lambda: self._found(_EASY_QUERY)):
                raise
            raise PageError(
                f"this query is too much for {self.service} ({error.status}): write another."
            ) from error
        shown = [one for one in found if self._hosts.allows_name(one[1])][
            : self.config.search_results
        ]
        if not shown:
            raise PageError(f"No page was found for: {query}")
        lines = [" ".join(filter(None, (f"{title}:", url, text))) for title, url, text in shown]
        links = (
            tuple(Link(title, url) for title, url, _ in shown)
            if all(url for _, url, _ in shown)
            else ()
        )
        return ToolResult("\n".join(lines), links=links)


class Serper(SearchSource):
    """Google through Serper (``POST /search`` with ``q`` and ``num``, key in ``X-API-KEY``)."""

    service = "serper"

    def _url(self, config: Any) -> str:
        return config.search_url or SERPER

    async def _found(self, query: str) -> list[tuple[str, str, str]]:
        answer = await self._provider.post(
            "/search", {"q": query, "num": self.config.search_results}
        )
        with self._provider.reading(answer):
            found = [_result(one, "link", "snippet") for one in answer.get("organic", ())]
            # The engine's own answer, where it has one, is a result like another.
            box = answer.get("answerBox") or {}
            if box.get("link") and (text := box.get("answer") or box.get("snippet")):
                found.insert(0, (str(box.get("title", "")), str(box["link"]), str(text)))
        return found


class Searxng(SearchSource):
    """A SearxNG server (``GET /search?q=...&format=json``; its settings must name the format json)."""

    service = "searxng"

    async def _found(self, query: str) -> list[tuple[str, str, str]]:
        answer = await self._provider.get(f"/search?{urlencode({'q': query, 'format': 'json'})}")
        with self._provider.reading(answer):
            found = [_result(one, "url", "content") for one in answer["results"]]
            silent = answer.get("unresponsive_engines") or ()
        if not found and silent:
            raise OutageError(
                f"none of the engines behind {self.config.search_url} answers: {str(silent)[:200]}."
            )
        return found


class Retrieve(SearchSource):
    """A server with Search-R1's protocol (``POST /retrieve`` with ``queries``, ``topk``, ``return_scores``).

    A document has ``contents``, whose first line is its title in quotes, or ``title`` and ``text``; its address is
    ``url``.
    """

    service = "retrieve"

    def _served(self, url: str) -> str:
        return served(self.config, self.service, url)

    async def _found(self, query: str) -> list[tuple[str, str, str]]:
        body = {"queries": [query], "topk": self.config.search_results, "return_scores": True}
        answer = await self._provider.post("/retrieve", body)
        with self._provider.reading(answer):
            found = [_passage(one.get("document", one)) for one in answer["result"][0]]
        return found


def _result(result: Mapping[str, Any], url: str, text: str) -> tuple[str, str, str]:
    said = " ".join(str(result.get(text) or "").split())
    return " ".join(str(result.get("title") or result[url]).split()), str(result[url]), said


def _passage(document: Mapping[str, Any]) -> tuple[str, str, str]:
    title, text = document.get("title"), document.get("text")
    if text is None:
        first, _, rest = str(document["contents"]).partition("\n")
        title, text = (title or first.strip('" '), rest) if rest else (title, first)
    url, said = str(document.get("url") or title or ""), " ".join(str(text).split())
    return " ".join(str(title or "-").split()), url, said[:_LONGEST_PASSAGE]
