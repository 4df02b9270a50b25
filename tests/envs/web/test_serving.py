"""A corpus behind /retrieve, /access and MCP, as a tool source, and from the command line."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from atommem.environment import environment_config
from atommem.envs.web.corpus import Corpus, Page, build_corpus
from atommem.envs.web.sources import make_sources
from tests.envs.web.browsing import use
from tests.fakes import command

pytest.importorskip("tantivy")
pytest.importorskip("mcp")
from atommem.envs.web.corpus.serving import make_server

main = command("corpus")
ORLA = Page("Orla Finch lives in Brent and builds bells.", "Orla Finch")
BRENT = Page("Brent is a town.", "Brent", "https://a.example/brent", "b1")


@pytest.fixture
def corpus(tmp_path: Path) -> Iterator[Corpus]:
    build_corpus([ORLA, BRENT], tmp_path / "corpus")
    corpus = Corpus(tmp_path / "corpus")
    yield corpus
    asyncio.run(corpus.close())


def ask(corpus: Corpus, path: str, body: Any = None) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(make_server(corpus).streamable_http_app())
        url = "http://127.0.0.1:8000"
        async with httpx.AsyncClient(transport=transport, base_url=url) as client:
            return await client.request("GET" if body is None else "POST", path, json=body)

    return asyncio.run(send())


def test_retrieve_follows_search_r1s_protocol(corpus: Corpus) -> None:
    body = {"queries": ["bells", "nothing at all"], "topk": 1, "return_scores": True}
    (hit,), nothing = ask(corpus, "/retrieve", body).json()["result"]
    document = {"id": "Orla Finch", "title": "Orla Finch", "url": "Orla Finch"}
    assert hit["document"] == {**document, "contents": f'"Orla Finch"\n{ORLA.text}'}
    assert hit["score"] > 0
    assert nothing == []
    unscored = ask(corpus, "/retrieve", {"queries": ["town"]}).json()["result"]
    assert unscored[0][0]["url"] == BRENT.url
    reply = ask(corpus, "/retrieve", {"queries": ["x"], "topk": 0})
    assert reply.status_code == 400
    assert "topk" in reply.json()["error"]


def test_access_returns_pages_with_links_and_health_the_version(corpus: Corpus) -> None:
    urls = [BRENT.url, "https://a.example/none", "orla finch"]
    brent, none, orla = ask(corpus, "/access", {"urls": urls}).json()["result"]
    page = {"contents": BRENT.text, "title": "Brent", "url": BRENT.url, "links": []}
    assert (brent, none) == (page, None)
    assert orla["links"] == [{"title": "Brent", "url": "Brent"}]
    health = ask(corpus, "/health").json()
    assert (health["pages"], health["version"]) == (2, corpus.pages.digest())


def test_mcp_offers_search_and_get_document(corpus: Corpus) -> None:
    from mcp import Client

    async def run() -> tuple[Any, ...]:
        async with Client(make_server(corpus)) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            hits = await client.call_tool("search", {"query": "town"})
            return names, hits, await client.call_tool("get_document", {"docid": "b1"})

    names, hits, page = asyncio.run(run())
    assert names == {"search", "get_document"}
    hit = {"docid": "b1", "score": 0, "snippet": '"Brent"\nBrent is a town.'}
    assert hits.structured_content["result"][0] | {"score": 0} == hit
    assert json.loads(page.content[0].text)["text"] == BRENT.text


def test_corpus_source_searches_and_visits(corpus: Corpus) -> None:
    config = environment_config("web", tools=["corpus"], corpus=str(corpus.folder))
    queries = [("search", {"query": query}) for query in ("who builds bells?", "xyzzy")]
    pages = [("visit", {"page": page}) for page in ("orla finch", "nowhere")]
    hits, none, page, missing = use(make_sources(["corpus"], config)[0], *queries, *pages)
    assert "Orla Finch: Orla Finch lives in Brent" in hits.text
    assert [link.target for link in hits.links] == ["Orla Finch"]
    assert (page.title, page.text, page.origin) == ("Orla Finch", ORLA.text, "Orla Finch")
    assert [link.title for link in page.links] == ["Brent"]
    assert (none.is_error, missing.is_error) == (True, True)


def test_command_builds_and_searches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pages, folder = tmp_path / "pages.jsonl", str(tmp_path / "corpus")
    rows = [{"title": page.title, "text": page.text} for page in (ORLA, BRENT)]
    pages.write_text("\n".join(map(json.dumps, rows)))
    dense = ("--embedder", "hashing", "--embedder_dim", "64")
    assert main(["build", "--input", str(pages), "--out", folder, *dense]) == 0
    assert "2 pages added; 2 pages in 2 passages" in capsys.readouterr().out
    assert main(["search", "bells", folder]) == 0
    assert "Orla Finch:" in capsys.readouterr().out.splitlines()[0]
    assert main(["search", "bells", str(tmp_path / "none")]) == 2
    assert "not a corpus" in capsys.readouterr().err


@pytest.mark.slow
def test_served_corpus_answers_another_process(corpus: Corpus) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    serve = ["-m", "atommem.cli", "corpus", "serve", str(corpus.folder), "--port", str(port)]
    server = subprocess.Popen([sys.executable, *serve])
    try:
        for _ in range(300):
            try:
                body = {"queries": ["town"], "topk": 3}
                reply = httpx.post(f"http://127.0.0.1:{port}/retrieve", json=body)
                break
            except httpx.TransportError:
                time.sleep(0.1)
        assert reply.json()["result"][0][0]["id"] == "b1"
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait(20) == 130
