"""A corpus over HTTP: Search-R1's ``/retrieve``, ASearcher's ``/access``, and MCP at ``/mcp``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from atommem.envs.web.corpus.corpus import Corpus, Found
from atommem.errors import OutageError

if TYPE_CHECKING:
    from mcp.server import MCPServer
    from starlette.requests import Request
    from starlette.responses import Response

_MAX_QUERIES, _MAX_RESULTS, _MAX_TEXT = 1024, 1000, 10_000
Handler = Callable[[dict[str, Any]], Awaitable[Any]]


def make_server(corpus: Corpus, mode: str | None = None, results: int = 5) -> MCPServer:
    """Return the server of a corpus.

    - ``POST /retrieve {queries, topk, return_scores}``: ``{"result": [[...], ...]}``, for each
      query a list of ``{"document": {id, contents, title, url}, "score"}``, or of documents without
      ``return_scores``.
    - ``POST /access {urls}``: ``{"result": [{contents, title, url, links} or null, ...]}``.
    - ``GET /health``: the numbers of pages and passages, version and mode.

    An invalid request gets status 400, an embedder out of reach 503.

    Args:
        corpus: Closed by the caller.
        mode: As in `Corpus.search`.
        results: Documents of a search without ``topk``.
    """
    from mcp.server import MCPServer
    from starlette.responses import JSONResponse

    server: MCPServer = MCPServer("corpus")

    async def retrieve(body: dict[str, Any]) -> Any:
        queries = _strings(body, "queries")
        count = results if body.get("topk") is None else body["topk"]
        if not isinstance(count, int) or not 1 <= count <= _MAX_RESULTS:
            raise ValueError(f"topk={count!r}: must be a whole number from 1 to {_MAX_RESULTS}.")
        found = await corpus.search(queries, count, mode)
        if not body.get("return_scores"):
            return [[_document(hit) for hit in hits] for hits in found]
        return [
            [{"document": _document(hit), "score": hit.score} for hit in hits] for hits in found
        ]

    async def access(body: dict[str, Any]) -> Any:
        names = _strings(body, "urls")
        return await asyncio.to_thread(lambda: [_page(corpus, name) for name in names])

    @server.tool()
    async def search(query: str) -> list[dict[str, Any]]:
        """Finds documents: the id, the score and a snippet of each."""
        (hits,) = await corpus.search([query[:_MAX_TEXT]], results, mode)
        return [
            {"docid": hit.page.id, "score": hit.score, "snippet": _contents(hit)} for hit in hits
        ]

    @server.tool()
    async def get_document(docid: str) -> dict[str, Any] | None:
        """Shows the whole text of a document by its id."""
        page = corpus.page(docid)
        return None if page is None else {"docid": page.id, "text": page.text, "url": page.url}

    async def health(request: Request) -> Response:
        version = await asyncio.to_thread(lambda: corpus.version)
        return JSONResponse({**corpus.counts, "version": version, "mode": mode or corpus.modes[-1]})

    server.custom_route("/retrieve", ["POST"])(_route(retrieve))
    server.custom_route("/access", ["POST"])(_route(access))
    server.custom_route("/health", ["GET"])(health)
    return server


def _route(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        from starlette.responses import JSONResponse

        try:
            body = await request.json()
            if not isinstance(body, dict):
                raise ValueError("the body must be a JSON object.")
            return JSONResponse({"result": await handler(body)})
        except ValueError as error:
            return JSONResponse({"error": str(error)}, 400)
        except OutageError as error:
            return JSONResponse({"error": str(error)}, 503)

    return answer


def _strings(body: dict[str, Any], name: str) -> list[str]:
    texts = body.get(name)
    if (
        not isinstance(texts, list)
        or len(texts) > _MAX_QUERIES
        or not all(isinstance(text, str) for text in texts)
    ):
        raise ValueError(f"{name}: must be a list of at most {_MAX_QUERIES} strings.")
    return [text[:_MAX_TEXT] for text in texts]


def _document(hit: Found) -> dict[str, Any]:
    url = hit.page.url or hit.page.id
    return {"id": hit.page.id, "contents": _contents(hit), "title": hit.page.title, "url": url}


def _contents(hit: Found) -> str:
    return f'"{hit.page.title}"\n{hit.passage}'  # as in Search-R1's corpora


def _page(corpus: Corpus, name: str) -> dict[str, Any] | None:
    page = corpus.page(name)
    if page is None:
        return None
    links = [{"title": title, "url": title} for title in corpus.links(page)]
    return {"contents": page.text, "title": page.title, "url": page.url or page.id, "links": links}
