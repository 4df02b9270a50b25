"""A corpus for other processes and nodes: Search-R1's ``/retrieve``, ASearcher's ``/access``, and MCP at ``/mcp``."""

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

_MOST_QUERIES, _MOST_RESULTS, _LONGEST = 1024, 1000, 10_000
Handler = Callable[[dict[str, Any]], Awaitable[Any]]


def make_server(corpus: Corpus, mode: str | None = None, results: int = 5) -> MCPServer:
    """The server of a corpus.

    ``POST /retrieve {queries, topk, return_scores}`` returns ``{"result": [[...], ...]}``, a list for each query of
    ``{"document": {id, contents, title, url}, "score"}``, or of the documents alone without ``return_scores``.
    ``POST /access {urls}`` returns ``{"result": [{contents, title, url, links} or null, ...]}``. ``GET /health`` counts
    pages.
    What is wrong with a request is said with status 400, an embedder that is out of reach with 503.

    Args:
        corpus: What is searched; closed by who opened it.
        mode: How (`Corpus.search`).
        results: Documents of a search where the request does not say.
    """
    from mcp.server import MCPServer

    server: MCPServer = MCPServer("corpus")

    async def retrieve(body: dict[str, Any]) -> Any:
        queries = _texts(body, "queries")
        count = results if body.get("topk") is None else body["topk"]
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= _MOST_RESULTS:
            raise _BadRequestError(
                f"topk is {count!r}: give a whole number from 1 to {_MOST_RESULTS}."
            )
        found = await corpus.search(queries, count, mode)
        scored = bool(body.get("return_scores"))
        return [
            [
                {"document": _document(hit), "score": hit.score} if scored else _document(hit)
                for hit in hits
            ]
            for hits in found
        ]

    async def access(body: dict[str, Any]) -> Any:
        names = _texts(body, "urls")
        # Off the event loop: a title may stand anywhere in a page.
        return await asyncio.to_thread(lambda: [_whole(corpus, name) for name in names])

    @server.tool()
    async def search(query: str) -> list[dict[str, Any]]:
        """Finds documents: the id, the score and a snippet of each."""
        hits = (await corpus.search([query[:_LONGEST]], results, mode))[0]
        return [
            {"docid": hit.page.id, "score": hit.score, "snippet": _contents(hit)} for hit in hits
        ]

    @server.tool()
    async def get_document(docid: str) -> dict[str, Any] | None:
        """Shows the whole text of a document by its id."""
        page = corpus.page(docid)
        return None if page is None else {"docid": page.id, "text": page.text, "url": page.url}

    async def health(request: Request) -> Response:
        from starlette.responses import JSONResponse

        version = await asyncio.to_thread(lambda: corpus.version)
        return JSONResponse({**corpus.counts, "version": version, "mode": mode or corpus.modes[-1]})

    server.custom_route("/retrieve", ["POST"])(_answering(retrieve))
    server.custom_route("/access", ["POST"])(_answering(access))
    server.custom_route("/health", ["GET"])(health)
    return server


class _BadRequestError(Exception):
    """What is wrong with a request."""


def _answering(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        from starlette.responses import JSONResponse

        try:
            body = await request.json()
            if not isinstance(body, dict):
                raise _BadRequestError("the body is no JSON object.")
            return JSONResponse({"result": await handler(body)})
        except (_BadRequestError, ValueError) as error:
            return JSONResponse({"error": str(error)}, 400)
        except OutageError as error:
            return JSONResponse({"error": str(error)}, 503)

    return answer


def _texts(body: dict[str, Any], name: str) -> list[str]:
    texts = body.get(name)
    if (
        not isinstance(texts, list)
        or len(texts) > _MOST_QUERIES
        or not all(isinstance(text, str) for text in texts)
    ):
        raise _BadRequestError(
            f"{name} is {str(texts)[:60]!r}: give a list of at most {_MOST_QUERIES} strings."
        )
    return [text[:_LONGEST] for text in texts]


def _document(hit: Found) -> dict[str, Any]:
    page = hit.page
    return {
        "id": page.id,
        "contents": _contents(hit),
        "title": page.title,
        "url": page.url or page.id,
    }


def _contents(hit: Found) -> str:
    """The passage under its title in quotes, as Search-R1's corpora have it."""
    return f'"{hit.page.title}"\n{hit.passage}'


def _whole(corpus: Corpus, name: str) -> dict[str, Any] | None:
    page = corpus.page(name)
    if page is None:
        return None
    links = [{"title": title, "url": title} for title in corpus.links(page)]
    return {"contents": page.text, "title": page.title, "url": page.url or page.id, "links": links}
