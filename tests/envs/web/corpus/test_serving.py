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
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest

from atommem.environment import environment_config
from atommem.envs.web.corpus import Corpus, Page, build_corpus
from atommem.envs.web.sources import make_sources
from atommem.envs.web.tools import ToolSource
from atommem.errors import ConfigError, OutageError
from tests.envs.benchmark_rows import twowiki_row, write_json
from tests.envs.web.test_environment import use
from tests.fakes import command

pytest.importorskip("tantivy")
pytest.importorskip("mcp")
from atommem.envs.web.corpus.serving import make_server

main = command("corpus")

PAGES = [
    Page("Orla Finch lives in Brent and builds bells.", "Orla Finch"),
    Page("Brent is a town.", "Brent", "https://a.example/brent", "b1"),
]


@pytest.fixture
def corpus(tmp_path: Path) -> Iterator[Corpus]:
    build_corpus(PAGES, tmp_path / "corpus")
    corpus = Corpus(tmp_path / "corpus")
    yield corpus
    asyncio.run(corpus.close())


def ask(corpus: Corpus, path: str, body: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(make_server(corpus).streamable_http_app())
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1:8000"
        ) as client:
            if body is None:
                return await client.get(path)
            return await client.post(
                path, content=body if isinstance(body, bytes) else json.dumps(body)
            )

    return asyncio.run(send())


def test_retrieve_speaks_search_r1s_protocol_and_access_gives_pages(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = ask(
        corpus,
        "/retrieve",
        {"queries": ["bells", "nothing at all"], "topk": 1, "return_scores": True},
    )
    bells, nothing = reply.json()["result"]
    document = {"id": "Orla Finch", "title": "Orla Finch", "url": "Orla Finch"}
    assert bells[0]["document"] == document | {
        "contents": '"Orla Finch"\nOrla Finch lives in Brent and builds bells.'
    }
    assert bells[0]["score"] > 0
    assert nothing == []
    unscored = ask(corpus, "/retrieve", {"queries": ["town"]}).json()["result"]
    assert unscored[0][0]["url"] == "https://a.example/brent"
    reply = ask(
        corpus,
        "/access",
        {"urls": ["https://a.example/brent", "https://a.example/none", "orla finch"]},
    )
    page = {
        "contents": "Brent is a town.",
        "title": "Brent",
        "url": "https://a.example/brent",
        "links": [],
    }
    brent, none, orla = reply.json()["result"]
    assert (brent, none) == (page, None)
    assert orla["links"] == [{"title": "Brent", "url": "Brent"}]
    told = ask(corpus, "/health", None).json()
    assert told == {"pages": 2, "passages": 2, "version": corpus.version, "mode": "lexical"}
    build_corpus([replace(PAGES[1], text="Brent was a town.")], corpus.folder)
    assert ask(corpus, "/health", None).json() == {**told, "version": Corpus(corpus.folder).version}
    assert corpus.version != told["version"]
    monkeypatch.setattr(
        corpus, "search", AsyncMock(side_effect=OutageError("the embedder is gone."))
    )
    reply = ask(corpus, "/retrieve", {"queries": ["x"]})
    assert (reply.status_code, reply.json()) == (503, {"error": "the embedder is gone."})


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/retrieve", {"queries": [3]}, "queries is"),
        ("/retrieve", {"queries": ["x"] * 2000}, "at most 1024"),
        ("/retrieve", {"queries": ["x"], "topk": 0}, "topk is 0"),
        ("/retrieve", [1], "no JSON object"),
        ("/retrieve", b"{", "Expecting"),
        ("/access", {}, "urls is"),
    ],
)
def test_bad_requests_are_refused(corpus: Corpus, path: str, body: Any, said: str) -> None:
    reply = ask(corpus, path, body)
    assert reply.status_code == 400
    assert said in reply.json()["error"]


def test_mcp_offers_search_and_get_document(corpus: Corpus) -> None:
    from mcp import Client

    async def asked() -> tuple[Any, ...]:
        async with Client(make_server(corpus)) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            hits = await client.call_tool("search", {"query": "town"})
            page = await client.call_tool("get_document", {"docid": "b1"})
            none = await client.call_tool("get_document", {"docid": "zzz"})
            return names, hits, page, none

    names, hits, page, none = asyncio.run(asked())
    assert names == {"search", "get_document"}
    hit = {"docid": "b1", "score": 0, "snippet": '"Brent"\nBrent is a town.'}
    assert hits.structured_content["result"][0] | {"score": 0} == hit
    assert json.loads(page.content[0].text)["text"] == "Brent is a town."
    assert not none.is_error


def test_the_tool_source(corpus: Corpus, tmp_path: Path) -> None:
    def source(folder: Path | None, **more: Any) -> ToolSource:
        settings = {
            "tools": ["corpus"],
            "corpus": None if folder is None else str(folder),
            "search_results": 3,
            **more,
        }
        return make_sources(["corpus"], environment_config("web", **settings))[0]

    queries = [("search", {"query": query}) for query in ("who builds bells?", "xyzzy")]
    pages = [("visit", {"page": page}) for page in ("orla finch", "nowhere")]
    hits, none, page, gone = use(source(corpus.folder), *queries, *pages)
    assert "Orla Finch: Orla Finch lives in Brent" in hits.text
    assert [link.target for link in hits.links] == ["Orla Finch"]
    assert (page.title, page.text, page.origin) == ("Orla Finch", PAGES[0].text, "Orla Finch")
    assert [link.title for link in page.links] == ["Brent"]
    assert (none.is_error, gone.is_error) == (True, True)
    for folder, message in ((None, "corpus is not set"), (tmp_path, "is no corpus")):
        with pytest.raises(ConfigError, match=message):
            source(folder)
    with pytest.raises(ConfigError, match=r"corpus_search=dense: unknown\. Give one of lexical"):
        source(corpus.folder, corpus_search="dense")


def test_the_command_builds_and_searches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = tmp_path / "pages.jsonl"
    pages.write_text("".join(json.dumps({"title": p.title, "text": p.text}) + "\n" for p in PAGES))
    folder = str(tmp_path / "corpus")
    dense = ("--embedder", "hashing", "--embedder_dim", "64")
    assert main(["build", "--input", str(pages), "--out", folder, *dense]) == 0
    assert "2 pages added; 2 pages in 2 passages" in capsys.readouterr().out
    assert main(["search", "bells", folder]) == 0
    assert "Orla Finch:" in capsys.readouterr().out.splitlines()[0]
    assert main(["search", "bells", str(tmp_path / "none")]) == 2
    assert "is no corpus" in capsys.readouterr().err
    assert main(["search", "bells", folder, "--results", "0"]) == 2
    assert "results=0: must be at least 1" in capsys.readouterr().err
    rows, out = write_json(tmp_path / "dev.json", [twowiki_row()]), str(tmp_path / "paragraphs")
    assert (
        main(["build", "--benchmark", "2wikimultihopqa", "--input", str(rows), "--out", out]) == 0
    )
    assert Corpus(out).page("Orla 0").text == "Orla is a potter. Her brother is Bran 0."


def test_an_address_that_cannot_be_listened_at_is_said(
    corpus: Corpus, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for more in (
            ["--port", "99999"],
            ["--port", str(taken.getsockname()[1])],
            ["--host", "nowhere.invalid"],
        ):
            assert main(["serve", str(corpus.folder), *more]) == 2
            assert "cannot listen at" in capsys.readouterr().err
    assert main(["serve", str(corpus.folder), "--port", "0", "--mode", "dense"]) == 2
    assert "mode=dense: unknown. Give one of lexical" in capsys.readouterr().err


@pytest.mark.slow
def test_served_to_another_process(corpus: Corpus) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "atommem.cli",
        "corpus",
        "serve",
        str(corpus.folder),
        "--port",
        str(port),
    ]
    server = subprocess.Popen(command)
    try:
        for _ in range(200):
            try:
                reply = httpx.post(
                    f"http://127.0.0.1:{port}/retrieve", json={"queries": ["town"], "topk": 3}
                )
                break
            except httpx.TransportError:
                time.sleep(0.1)
        assert reply.json()["result"][0][0]["id"] == "b1"
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait(10) == 130
