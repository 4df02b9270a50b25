"""Readers and search engines as tools, against servers that speak as documented."""

from __future__ import annotations

import json
from typing import Any

import pytest

from atommem.environment import environment_config
from atommem.envs.web.net.direct import Direct
from atommem.envs.web.net.providers import Access, Jina, Retrieve, Searxng, Serper
from atommem.envs.web.tools import Link, ToolResult, ToolSource
from tests.envs.web.browsing import LoopbackDirect, answering, serving, use

PROSE = "Ann Gray lives in Oakrest, where she has made bells since the flood took her shop. " * 4
PAGE = f"""<html><head><title>Ann Gray</title><script>var x = 'not text';</script></head><body>
<nav><a href="/">Home</a></nav><article><h1>Ann Gray</h1><p>{PROSE}</p><p>She wrote to
<a href="/bob#top">Bob Vin</a> and <a href="mailto:b@b.test">mailed</a>.</p></article></body>"""
DENIED = "https://huggingface.co/datasets/x"


def read(source: ToolSource, *pages: str) -> list[ToolResult]:
    return use(source, *(("visit", {"page": page}) for page in pages))


def direct(**settings: Any) -> Direct:
    pytest.importorskip("lxml_html_clean")
    config = environment_config(
        "web", **{"obey_robots": False, "parse_workers": 1, "page_seconds": 10.0, **settings}
    )
    return LoopbackDirect(config)


def make_pdf(text: str) -> bytes:
    fpdf = pytest.importorskip("fpdf")
    pdf = fpdf.FPDF()
    pdf.set_title("A notice")
    pdf.add_page()
    pdf.set_font("Helvetica")
    pdf.multi_cell(0, 10, text)
    return bytes(pdf.output())


@pytest.mark.slow
def test_direct_extracts_html_pdf_and_text_and_gives_up_slow_pages() -> None:
    table = "<table><tr>" + "<td><p>x</p></td>" * 40_000 + "</tr></table>"
    routes = {
        "/ann": answering(PAGE, "text/html; charset=utf-8"),
        "/pdf": answering(make_pdf("The bell was stolen."), "application/pdf"),
        "/txt": answering("Grüße".encode("latin-1"), "text/plain; charset=latin-1"),
        "/slow": answering(table),
        "/again": answering(PAGE),
    }
    with serving(routes) as (host, _):
        pages = read(direct(parse_seconds=2.0), *(f"http://{host}{path}" for path in routes))
    ann, pdf, text, slow, again = pages
    assert (ann.title, ann.origin) == ("Ann Gray", f"http://{host}/ann")
    assert PROSE.strip() in ann.text
    assert "not text" not in ann.text
    assert ann.links == (Link("Home", f"http://{host}/"), Link("Bob Vin", f"http://{host}/bob"))
    assert (pdf.title, pdf.text, text.text) == ("A notice", "The bell was stolen.", "Grüße")
    assert "cannot be read in 2 seconds" in slow.text
    assert again.title == "Ann Gray", "another worker takes over"


@pytest.mark.slow
def test_direct_obeys_robots_also_after_redirects() -> None:
    routes = {
        "/robots.txt": answering("User-agent: *\nDisallow: /private\n", "text/plain"),
        "/open": answering(PROSE, "text/plain"),
        "/in": answering("", status=302, Location="/private/a"),
    }
    with serving(routes) as (host, asked):
        pages = (f"http://{host}/{path}" for path in ("private/a", "open", "in"))
        refused, fine, redirected = read(direct(obey_robots=True), *pages)
    assert "does not allow robots" in refused.text
    assert not fine.is_error
    assert "does not allow robots" in redirected.text
    assert [line for line, _, _ in asked] == ["GET /robots.txt", "GET /open", "GET /in"]


def ask(source: Any, path: str, answer: Any, *calls: Any, **settings: Any) -> tuple[Any, list[Any]]:
    """Return the results of calls at a provider, and its requests."""
    with serving({path: answering(answer, "application/json")}, "127.0.0.1") as (host, asked):
        url = f"http://{host}"
        config = environment_config("web", search_url=url, reader_url=url, **settings)
        return use(source(config), *(calls or [("search", {"query": "who is Ann"})])), asked


def test_jina_sends_key_and_refuses_denied_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOMMEM_JINA_API_KEY", "my-key")
    data = {"title": "Ann", "url": "https://a.test/", "content": "Ann lives."}
    data |= {"links": {"Bob": "https://a.test/bob"}}
    pages = (DENIED, "https://huggingface.co\\datasets", "http://[", "//a", "https://a.test/")
    visits = [("visit", {"page": page}) for page in pages]
    (*denied, result), asked = ask(Jina, "/", {"code": 200, "data": data}, *visits)
    assert all(one.is_error for one in denied)
    links = (Link("Bob", "https://a.test/bob"),)
    assert result == ToolResult("Ann lives.", title="Ann", links=links, origin="https://a.test/")
    ((line, headers, body),) = asked
    assert (line, body) == ("POST /", b'{"url":"https://a.test/"}')
    assert (headers["Authorization"], headers["Accept"]) == ("Bearer my-key", "application/json")


def test_access_reads_pages_and_refuses_denied_ones() -> None:
    page = {"url": "https://a.test/", "title": "Ann", "contents": "Ann lives."}
    page |= {"links": [{"title": "Bob", "url": "bob"}]}
    visits = [("visit", {"page": name}) for name in (DENIED, "https://a.test/")]
    (denied, result), asked = ask(Access, "/access", {"result": [page]}, *visits)
    assert denied.is_error
    links = (Link("Bob", "bob"),)
    assert result == ToolResult("Ann lives.", title="Ann", links=links, origin="https://a.test/")
    assert [body for _, _, body in asked] == [b'{"urls":["https://a.test/"]}']


def test_serper_shows_allowed_results_and_sends_its_own_key_header(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ATOMMEM_SERPER_API_KEY", "my-key")
    organic = [
        {"title": "Leak", "link": DENIED, "snippet": "the answer"},
        {"title": "Ann  Gray", "link": "https://a.test/", "snippet": "Ann lives\nin Oakrest."},
        {"title": "Bob", "link": "https://b.test/"},
    ]
    (result,), asked = ask(Serper, "/search", {"organic": organic}, search_results=2)
    assert result.text == "Ann Gray: https://a.test/ Ann lives in Oakrest.\nBob: https://b.test/"
    assert result.links == (Link("Ann Gray", "https://a.test/"), Link("Bob", "https://b.test/"))
    ((_, headers, body),) = asked
    assert json.loads(body) == {"q": "who is Ann", "num": 2}
    assert headers["X-API-KEY"] == "my-key"
    assert "Authorization" not in headers


def test_retrieve_reads_documents_in_all_forms() -> None:
    documents = [
        {"document": {"id": "1", "contents": '"Ann Gray"\nAnn lives.'}, "score": 3.0},
        {"title": "Bob", "text": "Bob too.", "contents": "unused"},
        {"document": {"contents": "no title", "url": "https://c.test/"}},
        {"document": {"title": "Leak", "text": "the answer", "url": DENIED}},
    ]
    (result,), asked = ask(Retrieve, "/retrieve", {"result": [documents]})
    lines = ["Ann Gray: Ann Gray Ann lives.", "Bob: Bob Bob too.", "-: https://c.test/ no title"]
    assert result.text.split("\n") == lines
    assert [link.target for link in result.links] == ["Ann Gray", "Bob", "https://c.test/"]
    assert json.loads(asked[0][2]) == {"queries": ["who is Ann"], "topk": 5, "return_scores": True}


def test_searxng_requests_json() -> None:
    found = [{"title": "Ann", "url": "https://a.test/", "content": "Ann lives."}]
    (result,), asked = ask(Searxng, "/search", {"results": found})
    assert result.text == "Ann: https://a.test/ Ann lives."
    assert asked[0][0] == "GET /search?q=who+is+Ann&format=json"
