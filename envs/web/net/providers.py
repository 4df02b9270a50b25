"""Search engines and readers that are called over HTTP, and whose fault a failure is."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple
from urllib.parse import urlencode

from atommem.envs.web.net.hosts import HostRules, parse_address
from atommem.envs.web.tools import (
    LONGEST_TEXT,
    Link,
    PageError,
    Tool,
    ToolResult,
    ToolSource,
    search_result,
    text_tool,
    visit_tool,
)
from atommem.errors import ConfigError, OutageError
from atommem.servers.client import RefusedError, ServerClient, Service, key_variable

SERPER_URL = "https://google.serper.dev"
JINA_URL = "https://r.jina.ai"
_JINA_HEADERS = {
    "Accept": "application/json",
    "X-With-Links-Summary": "true",
    "X-Retain-Images": "none",
}
_REQUEST_STATUSES = (400, 409, 413, 414, 415, 422, 431, 451)
"""Statuses that concern one query or page, and not the provider as a whole."""
_MAX_QUERY = 2048
_MAX_PASSAGE = 5000
_MAX_LINKS = 100


class ProviderSource(ToolSource):
    """Tools of one provider.

    `service` is the provider's name, also of its key (``ATOMMEM_SERPER_API_KEY``).
    """

    service: ClassVar[Service]

    def __init__(
        self, config: Any, url: str | None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(config)
        if not url:
            raise ConfigError(
                f"tools={self.service}: search_url (or reader_url) is missing. Give the server's "
                "URL."
            )
        self.backend = f"{self.service} {url}"
        self._url = url
        self._hosts = HostRules.of(config)
        self._client = ServerClient(
            url,
            service=self.service,
            timeout=config.tool_seconds,
            retries=config.tool_retries,
            max_in_flight=config.tool_requests,
            headers=headers,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _request(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Get `path`, or post `body` to it, and return the JSON of the response.

        Raises:
            PageError: This query or page is refused.
            OutageError: The provider is out of reach, overloaded after retries, or refuses the key.
        """
        try:
            if body is None:
                return await self._client.get(path)
            return await self._client.post(path, body)
        except RefusedError as error:
            if error.status in _REQUEST_STATUSES and not error.of_account:
                raise PageError(f"{error.message[:300]} ({error.status})", error.status) from error
            raise OutageError(
                f"{self._url} refuses {self.service} requests ({error}): check "
                f"{key_variable(self.service)}, the account and the URL."
            ) from error

    @contextmanager
    def _parsing(self, answer: Any) -> Iterator[None]:
        """Turn errors of reading a malformed `answer` into an outage."""
        try:
            yield
        except (LookupError, TypeError, AttributeError, ValueError, StopIteration) as error:
            raise OutageError(
                f"{self._url} does not answer as {self.service} does: {str(answer)[:200]}."
            ) from error

    def _check_host(self, name: str) -> None:
        if not self._hosts.allows(name):
            raise PageError(f"{name} may not be visited.")


class Hit(NamedTuple):
    """A search result; `url` is empty if it has no address."""

    title: str
    url: str
    text: str


class SearchSource(ProviderSource):
    """One tool, ``search``. Results of hosts that may not be visited are left out."""

    default_url: ClassVar[str | None] = None

    def __init__(self, config: Any) -> None:
        super().__init__(config, config.search_url or self.default_url)
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
        lines = [" ".join(filter(None, (f"{hit.title}:", hit.url, hit.text))) for hit in hits]
        has_addresses = all(hit.url for hit in hits)
        links = [Link(hit.title, hit.url) for hit in hits] if has_addresses else []
        return search_result(query, lines, links)


class Serper(SearchSource):
    """Google through Serper (``POST /search`` with ``q`` and ``num``, key in ``X-API-KEY``)."""

    service = "serper"
    default_url = SERPER_URL

    async def _find(self, query: str) -> list[Hit]:
        answer = await self._request("/search", {"q": query, "num": self.config.search_results})
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
        answer = await self._request(f"/search?{urlencode({'q': query, 'format': 'json'})}")
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
        answer = await self._request("/retrieve", body)
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


class ReaderSource(ProviderSource):
    """One tool, ``visit``."""

    @property
    def tools(self) -> Sequence[Tool]:
        """The visit tool."""
        return (visit_tool(self._read),)

    @abstractmethod
    async def _read(self, url: str) -> ToolResult:
        """Return the page at `url`; raises as `_request` does."""

    def _page(self, text: Any, title: Any, url: Any, links: Sequence[Link]) -> ToolResult:
        self._check_host(str(url))
        shown = tuple(links[:_MAX_LINKS])
        return ToolResult(str(text)[:LONGEST_TEXT], False, str(title), shown, str(url))


class Jina(ReaderSource):
    """Jina Reader (``POST /`` with ``url``; JSON with ``data``: title, url, content, links)."""

    service = "jina"

    def __init__(self, config: Any) -> None:
        super().__init__(config, config.reader_url or JINA_URL, _JINA_HEADERS)

    async def _read(self, url: str) -> ToolResult:
        url = str(parse_address(url))
        self._check_host(url)
        answer = await self._request("/", {"url": url})
        with self._parsing(answer):
            data = answer["data"]
            pairs = (data.get("links") or {}).items()
            links = [Link(str(name).strip() or str(at), str(at)) for name, at in pairs]
            warning = str(data.get("warning") or "")
            origin = data.get("url") or url
        if "returned error" in warning:
            raise PageError(warning[:300])
        return self._page(data.get("content") or "", data.get("title") or origin, origin, links)


class Access(ReaderSource):
    """Pages of a server with ASearcher's protocol (``POST /access`` with ``urls``)."""

    service = "access"

    def __init__(self, config: Any) -> None:
        super().__init__(config, config.reader_url or config.search_url)

    async def _read(self, url: str) -> ToolResult:
        self._check_host(url)
        answer = await self._request("/access", {"urls": [url]})
        with self._parsing(answer):
            (page,) = answer["result"]
            if page is None:
                raise PageError(f"there is no page {url}.")
            names = ("text", "contents", "page")
            text = next(page[name] for name in names if page.get(name) is not None)
            links = [Link(str(one["title"]), str(one["url"])) for one in page.get("links") or ()]
            origin = page.get("url") or url
        return self._page(text, page.get("title") or origin, origin, links)
