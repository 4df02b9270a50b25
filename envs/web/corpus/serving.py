"""A corpus over HTTP: Search-R1's ``/retrieve`` and ASearcher's ``/access``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from atommem.envs.web.corpus.corpus import Corpus, Found
from atommem.errors import OutageError

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

_Texts = Annotated[list[Annotated[str, Field(max_length=10_000)]], Field(max_length=1024)]


class _Retrieve(BaseModel):
    queries: _Texts
    topk: Annotated[int, Field(ge=1, le=1000)] = 5
    return_scores: bool = False


class _Access(BaseModel):
    urls: _Texts


def make_app(corpus: Corpus, mode: str | None = None) -> Starlette:
    """Return the server of a corpus.

    - ``POST /retrieve {queries, topk, return_scores}``: ``{"result": [[...], ...]}``, for each
      query a list of ``{"document": {id, contents, title, url}, "score"}``, or of documents without
      ``return_scores``.
    - ``POST /access {urls}``: ``{"result": [{contents, title, url, links} or null, ...]}``.

    An invalid request gets status 400, an embedder out of reach 503.

    Args:
        corpus: Closed by the caller.
        mode: As in `Corpus.search`.
    """
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def retrieve(request: Request) -> Response:
        body = _Retrieve.model_validate_json(await request.body())
        found = await corpus.search(body.queries, body.topk, mode)
        shown = _scored if body.return_scores else _document
        return JSONResponse({"result": [[shown(hit) for hit in hits] for hits in found]})

    async def access(request: Request) -> Response:
        body = _Access.model_validate_json(await request.body())
        pages = await asyncio.to_thread(lambda: [_page(corpus, name) for name in body.urls])
        return JSONResponse({"result": pages})

    async def refuse(request: Request, error: Exception) -> Response:
        status = 400 if isinstance(error, ValidationError) else 503
        return JSONResponse({"error": str(error)}, status)

    routes = [
        Route("/retrieve", retrieve, methods=["POST"]),
        Route("/access", access, methods=["POST"]),
    ]
    return Starlette(
        routes=routes, exception_handlers={ValidationError: refuse, OutageError: refuse}
    )


def _document(hit: Found) -> dict[str, Any]:
    url = hit.page.url or hit.page.id
    contents = f'"{hit.page.title}"\n{hit.passage}'  # as in Search-R1's corpora
    return {"id": hit.page.id, "contents": contents, "title": hit.page.title, "url": url}


def _scored(hit: Found) -> dict[str, Any]:
    return {"document": _document(hit), "score": hit.score}


def _page(corpus: Corpus, name: str) -> dict[str, Any] | None:
    page = corpus.pages.find(name)
    if page is None:
        return None
    links = [{"title": title, "url": title} for title in corpus.links(page)]
    return {"contents": page.text, "title": page.title, "url": page.url or page.id, "links": links}
