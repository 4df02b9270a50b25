"""Search engines and readers that are called over HTTP, and whose fault a failure is."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple
from urllib.parse import urlencode

from atommem.envs.web import tools
from atommem.envs.web.net.guard import HostRules, parse_address
from atommem.errors import ConfigError, OutageError
from atommem.servers.client import RefusedError, ServerClient, Service, key_variable

_REQUEST_STATUSES = (400, 413, 414, 415, 422, 431, 451, 502)
"""Statuses that concern one query or page; `ServerClient` refuses a large answer with 502."""
Request = tuple[str, dict[str, Any] | None]  # a path, and the body to post to it; None to get it


class ProviderSource(tools.ToolSource):
    """The tool of one provider; `service` names its key, too (``ATOMMEM_SERPER_API_KEY``)."""

    service: ClassVar[Service]
    headers: ClassVar[Mapping[str, str]] = {}
    url_settings: ClassVar[Sequence[str]] = ("search_url",)
    default_url: ClassVar[str] = ""
    to_check: ClassVar[str] = ""  # if it refuses all requests; else its key and account

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        urls = (getattr(config, name) for name in self.url_settings)
        self._url = next(filter(None, urls), self.default_url)
        if not self._url:
            raise ConfigError(
                f"tools={self.service}: search_url (or reader_url) is missing. Give it."
            )
        self.backend = f"{self.service} {self._url}"
        self._client = ServerClient(
            self._url,
            service=self.service,
            timeout=config.tool_seconds,
            retries=config.tool_retries,
            max_in_flight=config.tool_requests,
            headers=self.headers,
            max_bytes=int(config.page_megabytes * 1_000_000),
        )

    async def close(self) -> None:
        await self._client.close()

    @abstractmethod
    def request(self, text: str) -> Request:
        """Return the request for a query or a page."""

    @abstractmethod
    def parse(self, answer: Any, text: str) -> Any:
        """Read the JSON of the response: a list of hits, best first, or a page."""

    async def ask(self, text: str) -> Any:
        """Send the request for a query or page, and return the parsed response.

        PageError: this query or page is refused, or its answer exceeds ``page_megabytes``.
        OutageError: the provider is out of reach, overloaded, refuses the key, or is another.
        """
        path, body = self.request(text)
        try:
            answer = await self._client.request("GET" if body is None else "POST", path, body)
        except RefusedError as error:
            if error.status in _REQUEST_STATUSES and not error.of_account:
                message = f"{error.message[:300]} ({error.status})"
                raise tools.PageError(message, error.status) from error
            check = self.to_check or f"{key_variable(self.service)}, the account and the URL"
            raise OutageError(
                f"{self._url} refuses {self.service} requests ({error}): check {check}."
            ) from error
        try:
            return self.parse(answer, text)
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise OutageError(
                f"{self._url} does not answer as {self.service} does: {str(answer)[:200]}."
            ) from error


class Hit(NamedTuple):
    """A search result; `url` is empty if it has no address."""

    title: str
    url: str
    text: str


def _hit(title: Any, url: Any, text: Any) -> Hit:
    """Return a result by its fields, which may be null; without a title, its URL stands there."""
    title, url, text = (" ".join(str(value or "").split()) for value in (title, url, text))
    return Hit(title or url or "-", url, text)


def _page(text: Any, title: Any, url: Any, links: Iterable[tuple[Any, Any]]) -> tools.ToolResult:
    """Return a page by its fields, which may be null; `links` are pairs of name and URL."""
    shown = tuple(tools.Link(str(name or target).strip(), str(target)) for name, target in links)
    return tools.ToolResult(str(text or ""), False, str(title or url), shown, str(url))


class SearchSource(ProviderSource):
    """One tool, ``search``. Results of hosts that may not be visited are left out."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.backend = f"{self.backend} {config.search_results}"
        self._hosts = HostRules.of(config)
        words = "Words to look for."
        self.tools = [tools.text_tool("search", "Searches the web.", "query", words, self._search)]

    async def _search(self, query: str, task: Any) -> tools.ToolResult:
        allowed = [hit for hit in await self.ask(query) if self._hosts.allows(hit.url)]
        hits = allowed[: self.config.search_results]
        lines = [" ".join(f"{hit.title}: {hit.url} {hit.text}".split()) for hit in hits]
        links = [tools.Link(hit.title, hit.url) for hit in hits if hit.url]
        return tools.search_result(query, lines, links)


class Serper(SearchSource):
    """Google through Serper (key in ``X-API-KEY``)."""

    service = "serper"
    default_url = "https://google.serper.dev"

    def request(self, text: str) -> Request:
        return "/search", {"q": text, "num": self.config.search_results}

    def parse(self, answer: Any, text: str) -> list[Hit]:
        found = answer.get("organic") or ()
        hits = [_hit(one.get("title"), one.get("link"), one.get("snippet")) for one in found]
        box = answer.get("answerBox") or {}
        shown = box.get("answer") or box.get("snippet")
        if shown and box.get("link"):
            hits.insert(0, _hit(box.get("title"), box["link"], shown))
        return hits


class Searxng(SearchSource):
    """A SearxNG server; its settings must enable JSON."""

    service = "searxng"
    to_check = "that search.formats of its settings.yml lists json, and the URL"

    def request(self, text: str) -> Request:
        return f"/search?{urlencode({'q': text, 'format': 'json'})}", None

    def parse(self, answer: Any, text: str) -> list[Hit]:
        silent = answer.get("unresponsive_engines")
        if silent and not answer["results"]:
            raise OutageError(f"no engine behind {self._url} responds: {str(silent)[:200]}.")
        found = answer["results"]
        return [_hit(one.get("title"), one.get("url"), one.get("content")) for one in found]


class Retrieve(SearchSource):
    """A server with Search-R1's protocol.

    A document has ``contents``, whose first line is its title in quotes, or ``title`` and ``text``;
    its address is ``url``, if it has one.
    """

    service = "retrieve"

    def request(self, text: str) -> Request:
        body = {"queries": [text], "topk": self.config.search_results, "return_scores": True}
        return "/retrieve", body

    def parse(self, answer: Any, text: str) -> list[Hit]:
        hits = []
        for one in answer["result"][0]:
            document = one.get("document", one)
            title, shown = document.get("title"), document.get("text")
            if shown is None:
                first, newline, rest = str(document["contents"] or "").partition("\n")
                title, shown = (title or first.strip('" '), rest) if newline else (title, first)
            hits.append(_hit(title, document.get("url") or title, shown))
        return hits


class ReaderSource(ProviderSource):
    """One tool, ``visit``."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.tools = [tools.visit_tool(self.ask)]


class Jina(ReaderSource):
    """Jina Reader."""

    service = "jina"
    url_settings = ("reader_url",)
    default_url = "https://r.jina.ai"
    headers: ClassVar = {
        "Accept": "application/json",
        "X-With-Links-Summary": "true",
        "X-Retain-Images": "none",
    }

    def request(self, text: str) -> Request:
        return "/", {"url": str(parse_address(text))}

    def parse(self, answer: Any, text: str) -> tools.ToolResult:
        page = answer["data"]
        if "returned error" in (warning := str(page.get("warning") or "")):
            raise tools.PageError(warning[:300])
        links = (page.get("links") or {}).items()
        return _page(page.get("content"), page.get("title"), page.get("url") or text, links)


class Access(ReaderSource):
    """Pages of a server with ASearcher's protocol."""

    service = "access"
    url_settings = ("reader_url", "search_url")

    def request(self, text: str) -> Request:
        return "/access", {"urls": [text]}

    def parse(self, answer: Any, text: str) -> tools.ToolResult:
        (page,) = answer["result"]
        if page is None:
            raise tools.PageError(f"there is no page {text}.")
        texts = [page[name] for name in ("text", "contents", "page") if name in page]
        content = next(filter(None, texts), texts[0])
        links = [(one.get("title"), one["url"]) for one in page.get("links") or ()]
        return _page(content, page.get("title"), page.get("url") or text, links)
