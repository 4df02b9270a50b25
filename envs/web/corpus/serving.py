"""A corpus over HTTP: Search-R1's ``/retrieve``, ASearcher's ``/access``, and MCP at ``/mcp``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field, StringConstraints, ValidationError

from atommem.envs.web.corpus.corpus import Corpus, Found
from atommem.errors import OutageError

if TYPE_CHECKING:
    from mcp.server import MCPServer
    from starlette.requests import Request
    from starlette.responses import Response

_Texts = Annotated[
    list[Annotated[str, StringConstraints(max_length=10_000)]], Field(max_length=1024)
]


class _Retrieve(BaseModel):
    queries: _Texts
    topk: Annotated[int, Field(ge=1, le=1000)] | None = None
    return_scores: bool = False


class _Access(BaseModel):
    urls: _Texts


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

    async def retrieve(body: _Retrieve) -> Any:
        found = await corpus.search(body.queries, body.topk or results, mode)
        if not body.return_scores:
            return [[_document(hit) for hit in hits] for hits in found]
        return [
            [{"document": _document(hit), "score": hit.score} for hit in hits] for hits in found
        ]

    async def access(body: _Access) -> Any:
        return await asyncio.to_thread(lambda: [_page(corpus, name) for name in body.urls])

    @server.tool()
    async def search(query: str) -> list[dict[str, Any]]:
        """Finds documents: the id, the score and a snippet of each."""
        (hits,) = await corpus.search([query], results, mode)
        return [
            {"docid": hit.page.id, "score": hit.score, "snippet": _contents(hit)} for hit in hits
        ]

    @server.tool()
    async def get_document(docid: str) -> dict[str, Any] | None:
        """Shows the whole text of a document by its id."""
        page = corpus.pages.find(docid)
        return None if page is None else {"docid": page.id, "text": page.text, "url": page.url}

    async def health(request: Request) -> Response:
        version = await asyncio.to_thread(corpus.pages.digest)
        return JSONResponse(
            {**corpus.pages.counts(), "version": version, "mode": mode or corpus.modes[-1]}
        )

    server.custom_route("/retrieve", ["POST"])(_route(_Retrieve, retrieve))
    server.custom_route("/access", ["POST"])(_route(_Access, access))
    server.custom_route("/health", ["GET"])(health)
    return server


def _route(
    body: type[BaseModel], handler: Callable[[Any], Awaitable[Any]]
) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        from starlette.responses import JSONResponse

        try:
            parsed = body.model_validate_json(await request.body())
            return JSONResponse({"result": await handler(parsed)})
        except ValidationError as error:
            return JSONResponse({"error": str(error)}, 400)
        except OutageError as error:
            return JSONResponse({"error": str(error)}, 503)

    return answer


def _document(hit: Found) -> dict[str, Any]:
    url = hit.page.url or hit.page.id
    return {"id": hit.page.id, "contents": _contents(hit), "title": hit.page.title, "url": url}


def _contents(hit: Found) -> str:
    return f'"{hit.page.title}"\n{hit.passage}'  # as in Search-R1's corpora


def _page(corpus: Corpus, name: str) -> dict[str, Any] | None:
    page = corpus.pages.find(name)
    if page is None:
        return None
    links = [{"title": title, "url": title} for title in corpus.links(page)]
    return {"contents": page.text, "title": page.title, "url": page.url or page.id, "links": links}
