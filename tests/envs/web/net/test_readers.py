"""Readers as tools: what they make of pages, and of those that cannot be read."""

from __future__ import annotations

import asyncio
import io
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from atommem.environment import environment_config
from atommem.envs.web.net.fetcher import Fetched
from atommem.envs.web.net.reader_tools import Access, Direct, Jina, ReaderSource
from atommem.envs.web.net.robots import Robots
from atommem.envs.web.tools import Link, ToolResult
from atommem.errors import ConfigError, OutageError
from tests.envs.web.net.internet import answering, on_loopback, resolver, serving
from tests.envs.web.test_environment import use

PROSE = (
    "Ann Gray lives in Oakrest, where she has made bells since the flood took her first workshop. "
    * 4
)
PAGE = f"""<html><head><title>Ann Gray</title><script>var x = 'not text';</script></head><body>
<nav><a href="/">Home</a></nav><article><h1>Ann Gray</h1><p>{PROSE}</p>
<p>She wrote to <a href="/bob#top">Bob Vin</a> and <a href="mailto:b@b.test">mailed</a>.</p></article></body></html>"""


def read(source: ReaderSource, *pages: str) -> list[ToolResult]:
    return use(source, *(("visit", {"page": page}) for page in pages))


def direct(**settings: Any) -> Direct:
    pytest.importorskip("lxml_html_clean")
    config = environment_config(
        "web", **{"obey_robots": False, "parse_workers": 1, "page_seconds": 10.0, **settings}
    )
    return Direct(config, rule=on_loopback, resolve=resolver({}))


def make_pdf(text: str) -> bytes:
    fpdf = pytest.importorskip("fpdf")
    pdf = fpdf.FPDF()
    pdf.set_title("A notice")
    for part in text.split("\f"):
        pdf.add_page()
        pdf.set_font("Helvetica")
        pdf.multi_cell(0, 10, part)
    made = io.BytesIO()
    pdf.output(made)
    return made.getvalue()


def test_html_gives_title_text_and_links_and_pdf_and_plain_text_their_text() -> None:
    routes = {
        "/ann": answering(PAGE, "text/html; charset=utf-8"),
        "/pdf": answering(make_pdf("The bell was stolen.\fIt is back."), "application/pdf"),
        "/txt": answering("Grüße".encode("latin-1"), "text/plain; charset=latin-1"),
        "/bare": answering("<html><body>few words</body></html>", ""),
    }
    with serving(routes) as (host, _):
        ann, pdf, text, bare = read(direct(), *(f"http://{host}{path}" for path in routes))
    assert (ann.title, ann.is_error, ann.origin) == ("Ann Gray", False, f"http://{host}/ann")
    assert PROSE.strip() in ann.text
    assert "not text" not in ann.text
    assert ann.links == (Link("Home", f"http://{host}/"), Link("Bob Vin", f"http://{host}/bob"))
    assert pdf.title == "A notice"
    assert "The bell was stolen." in pdf.text
    assert "It is back." in pdf.text
    assert text.text == "Grüße"
    assert bare.text == "few words"


@pytest.mark.slow
def test_a_page_that_takes_too_long_or_too_much_memory_is_given_up_and_the_next_one_is_read() -> (
    None
):
    table = (
        "<html><body><table>"
        + "<tr>"
        + "<td><p>x</p></td>" * 40_000
        + "</tr></table></body></html>"
    )
    routes = {"/table": answering(table), "/ann": answering(PAGE)}
    with serving(routes) as (host, _):
        slow, fine = read(direct(parse_seconds=1.0), f"http://{host}/table", f"http://{host}/ann")
    assert slow.is_error
    assert "longer than 1 seconds" in slow.text
    assert fine.title == "Ann Gray"


def test_a_machine_that_can_start_no_process_has_an_outage_and_workers_have_no_keys_nor_our_ctrl_c(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ATOMMEM_JINA_API_KEY", "secret")
    source = direct()
    extraction = source._extraction
    command, extraction._command = extraction._command, ["/no/such/program"]

    async def run() -> ToolResult:
        for _ in range(2):
            with pytest.raises(OutageError, match="no process"):
                await asyncio.wait_for(
                    source.tools[0].run({"page": f"http://{host}/ann"}, None), 20
                )
        extraction._command = command
        return await asyncio.wait_for(source.tools[0].run({"page": f"http://{host}/ann"}, None), 20)

    with serving({"/ann": answering(PAGE)}) as (host, _):
        assert asyncio.run(run()).title == "Ann Gray"
    worker = extraction._idle.get()
    extraction._idle.put(worker)
    assert worker is not None
    assert os.getpgid(worker.pid) == worker.pid
    assert "secret" not in Path(f"/proc/{worker.pid}/environ").read_text()
    asyncio.run(source.close())


def test_robots_are_obeyed_where_their_rules_are_known_and_a_server_in_trouble_gives_no_permission() -> (
    None
):
    routes = {
        "/robots.txt": answering("User-agent: *\nDisallow: /private\n", "text/plain"),
        "/private/a": answering(PROSE, "text/plain"),
        "/open": answering(PROSE, "text/plain"),
    }
    with serving(routes) as (host, asked):
        refused, fine = read(
            direct(obey_robots=True), f"http://{host}/private/a", f"http://{host}/open"
        )
        routes["/in"] = answering("", status=302, Location="/private/a")
        (led,) = read(direct(obey_robots=True), f"http://{host}/in")
    assert "does not let robots read" in refused.text
    assert not fine.is_error
    assert "does not let robots read" in led.text
    assert [line for line, _, _ in asked] == [
        "GET /robots.txt",
        "GET /open",
        "GET /robots.txt",
        "GET /in",
    ]
    with serving({"/open": routes["/open"]}) as (host, _):
        assert not read(direct(obey_robots=True), f"http://{host}/open")[0].is_error, (
            "no rules: all is allowed"
        )
    with serving({"/open": routes["/open"], "/robots.txt": answering("", status=503)}) as (host, _):
        assert (
            "robots.txt answers 503"
            in read(direct(obey_robots=True), f"http://{host}/open")[0].text
        )


def test_a_sites_rules_are_read_while_all_pages_wait() -> None:
    source, done = direct(obey_robots=True), threading.Event()
    source._extraction._threads.submit(done.wait, 60.0)
    assert source._robots is not None
    with serving({"/robots.txt": answering("User-agent: *\nDisallow: /no", "text/plain")}) as (
        host,
        _,
    ):
        asyncio.run(source._robots.check(f"http://{host}/a"))
    done.set()
    asyncio.run(source.close())


def test_rules_of_many_sites_take_a_bounded_part_of_memory() -> None:
    class Hostile:
        async def fetch(self, url: str) -> Fetched:
            return Fetched(url, "text/plain", "", bytes(600_000))

    robots = Robots(Hostile(), None, "tests")  # type: ignore[arg-type]

    async def run() -> None:
        for number in range(200):
            await robots._rules(f"http://{number % 150}.test")

    asyncio.run(run())
    assert 120 < len(robots._known) < 128
    assert robots._size == 501_000 * len(robots._known)


def test_direct_says_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atommem.envs.web.net.reader_tools.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"trafilatura.*atommem\[web\]"):
        Direct(environment_config("web"))


@contextmanager
def provider(path: str, answer: Any) -> Iterator[tuple[str, list[Any]]]:
    with serving({path: answering(answer, "application/json")}, "127.0.0.1") as (host, asked):
        yield f"http://{host}", asked


def test_jina_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOMMEM_JINA_API_KEY", "my-key")
    data = {
        "title": "Ann",
        "url": "https://a.test/",
        "content": "Ann lives.",
        "links": {"Bob": "https://a.test/bob"},
    }
    pages = (
        "https://huggingface.co/datasets/x",
        "https://huggingface.co\\datasets",
        "http://[",
        "//a",
    )
    with provider("/", {"code": 200, "status": 20000, "data": data}) as (url, asked):
        *denied, result = read(
            Jina(environment_config("web", reader_url=url)), *pages, "https://a.test/"
        )
    assert all(one.is_error for one in denied)
    links = (Link("Bob", "https://a.test/bob"),)
    assert result == ToolResult("Ann lives.", title="Ann", links=links, origin="https://a.test/")
    ((line, headers, body),) = asked
    assert (line, body) == ("POST /", b'{"url":"https://a.test/"}')
    assert (headers["Authorization"], headers["Accept"]) == ("Bearer my-key", "application/json")


def test_access_servers_are_not_asked_for_what_is_denied() -> None:
    links = [{"title": "Bob", "url": "bob"}]
    page = {"url": "https://a.test/", "title": "Ann", "contents": "Ann lives.", "links": links}
    with provider("/access", {"result": [page]}) as (url, asked):
        source = Access(environment_config("web", search_url=url))
        denied, result = read(source, "huggingface.co/datasets/x", "https://a.test/")
    assert denied.is_error
    assert result == ToolResult(
        "Ann lives.", title="Ann", links=(Link("Bob", "bob"),), origin="https://a.test/"
    )
    assert [body for _, _, body in asked] == [b'{"urls":["https://a.test/"]}']
