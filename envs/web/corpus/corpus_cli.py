"""The command `atommem corpus`: build a corpus of pages, and serve it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import DecodeError, Meta, Struct, json
from tqdm import tqdm

from atommem.arguments import Command, Parser, given_flags, make, run_command
from atommem.config import EMBEDDERS, EmbedderConfig, check_choice, fields_of
from atommem.envs.web.corpus.corpus import MODES, PASSAGE_CHARACTERS, Corpus, Found, build_corpus
from atommem.envs.web.corpus.pages import Page, read_pages
from atommem.envs.web.recording import Recording
from atommem.errors import ConfigError, OutageError, check_writable
from atommem.text_safety import clean

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response


def main(argv: list[str] | None = None) -> int:
    commands = {
        "build": Command(_build, "make a corpus of files, or add files to one"),
        "serve": Command(_serve, "serve it over HTTP: /retrieve and /access"),
    }
    return run_command("atommem corpus", commands, sys.argv[1:] if argv is None else argv)


def recorded_pages(path: Path) -> Iterable[Page]:
    """Return the last version of each page in a recording, with its requested address as id."""
    recording = Recording(path, read_only=True)
    pages: dict[str, Page] = {}
    for arguments, result in recording.results():
        if result.title and not result.is_error:
            url = clean(result.origin or result.title)
            requested = next((value for value in arguments.values() if isinstance(value, str)), url)
            pages[url] = Page(clean(result.text), clean(result.title), url, clean(requested))
    recording.close()
    if not pages:
        raise ConfigError(f"{path}: no page was read.")
    return pages.values()


def _build(argv: list[str]) -> int:
    parser = Parser(
        "atommem corpus build",
        "Make a corpus of files, or add files to one.",
        usage="atommem corpus build --input FILE ... --output_dir DIR [--SETTING]",
    )
    add = parser.add_argument
    rows = "JSON, JSON Lines or parquet; a row has text (or contents), and maybe title, url, id."
    add("--input", type=Path, nargs="+", required=True, metavar="FILE", help=rows)
    add("--recording", action="store_true", help="Take the pages that recorded calls have read.")
    add("--output_dir", type=Path, required=True, metavar="DIR", help="The corpus.")
    longest = "Longest passage in the index; pages are read whole (%(default)s)."
    add("--passage_characters", type=int, default=PASSAGE_CHARACTERS, help=longest)
    add("--embedder", choices=EMBEDDERS, help="For dense and hybrid search (default: words alone).")
    parser.add_settings("embedder", EmbedderConfig, leave_out=["embedder"])
    args = parser.parse_args(argv)
    check_writable("output_dir", args.output_dir, folder=True)
    embedder = None if args.embedder is None else make(EmbedderConfig, args)
    pages = chain.from_iterable(map(recorded_pages if args.recording else read_pages, args.input))
    shown = tqdm(pages, "adding", unit="page", disable=None)
    done = build_corpus(shown, args.output_dir, embedder, args.passage_characters)
    total = f"{done['pages']} pages in {done['passages']} passages"
    print(f"{args.output_dir}: {done['added']} pages added; {total}.")
    if done["recall"] is not None:
        print(f"vector index: recall@10 {done['recall']:.3f} against exact search")
    return 0


def _serve(argv: list[str]) -> int:
    parser = Parser("atommem corpus serve", "Serve a corpus over HTTP.")
    add = parser.add_argument
    add("folder", type=Path, metavar="DIR", help="Folder of the corpus.")
    add("--host", default="127.0.0.1", help="Address to listen on (%(default)s).")
    add("--port", type=int, default=8000, help="Port (%(default)s).")
    add("--mode", choices=MODES, help="Kind of search (default: hybrid if it has vectors).")
    parser.add_settings("embedder", EmbedderConfig, leave_out=["embedder"])
    args = parser.parse_args(argv)
    import uvicorn

    corpus = Corpus(args.folder, fields_of(EmbedderConfig, given_flags(argv, args)))
    check_choice("mode", args.mode or corpus.modes[-1], corpus.modes)
    pages = corpus.pages.counts()["pages"]
    print(f"{args.folder}: {pages} pages at http://{args.host}:{args.port}", file=sys.stderr)
    uvicorn.run(make_app(corpus, args.mode), host=args.host, port=args.port, log_level="warning")
    return 0


_Texts = Annotated[list[Annotated[str, Meta(max_length=10_000)]], Meta(max_length=1024)]


class _Retrieve(Struct):
    queries: _Texts
    topk: Annotated[int, Meta(ge=1, le=1000)] = 5
    return_scores: bool = False


class _Access(Struct):
    urls: _Texts


def make_app(corpus: Corpus, mode: str | None = None) -> Starlette:
    """Return the server of a corpus, which the caller closes; `mode` is as in `Corpus.search`.

    - ``POST /retrieve {queries, topk, return_scores}``: ``{"result": [[...], ...]}``, for each
      query a list of ``{"document": {id, contents, title, url}, "score"}``, or of documents without
      ``return_scores``.
    - ``POST /access {urls}``: ``{"result": [{contents, title, url, links} or null, ...]}``.

    An invalid request gets status 400, an embedder out of reach 503.
    """
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def retrieve(request: Request) -> Response:
        body = json.decode(await request.body(), type=_Retrieve)
        found = await corpus.search(body.queries, body.topk, mode)
        shown = [[_hit(hit, body.return_scores) for hit in hits] for hits in found]
        return JSONResponse({"result": shown})

    async def access(request: Request) -> Response:
        body = json.decode(await request.body(), type=_Access)
        pages = await asyncio.to_thread(lambda: [_page(corpus, name) for name in body.urls])
        return JSONResponse({"result": pages})

    async def refuse(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": str(error)}, 400 if isinstance(error, DecodeError) else 503)

    routes = [Route(f"/{one.__name__}", one, methods=["POST"]) for one in (retrieve, access)]
    refused = dict.fromkeys((DecodeError, OutageError), refuse)
    return Starlette(routes=routes, exception_handlers=refused)


def _hit(hit: Found, scored: bool) -> dict[str, Any]:
    page = {"id": hit.page.id, "title": hit.page.title, "url": hit.page.url or hit.page.id}
    page["contents"] = f'"{hit.page.title}"\n{hit.passage}'  # as in Search-R1's corpora
    return {"document": page, "score": hit.score} if scored else page


def _page(corpus: Corpus, name: str) -> dict[str, Any] | None:
    if (page := corpus.pages.find(name)) is None:
        return None
    links = [{"title": title, "url": title} for title in corpus.links(page)]
    return {"contents": page.text, "title": page.title, "url": page.url or page.id, "links": links}
