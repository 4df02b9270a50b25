"""The reader `direct`: SSRF guard, lists of hosts, limits, extraction; on loopback alone."""

import asyncio
import gzip
import re
import socket
import time
import zlib
from http.server import BaseHTTPRequestHandler
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
import yaml

from atommem.environment import environment_config
from atommem.envs.web.net import direct
from atommem.envs.web.net.direct import Direct, Fetched
from atommem.envs.web.net.extraction import read_html, read_pdf, read_text
from atommem.envs.web.net.guard import HostRules, is_public
from atommem.envs.web.tools import Link, PageError, ToolResult
from atommem.episode import StopReason
from atommem.errors import ConfigError, OutageError
from tests.envs.web.browsing import (
    ANSWER,
    DIRECT,
    INTERNET,
    LoopbackDirect,
    call,
    on_loopback,
    play,
    resolver,
    serving,
    use,
)
from tests.loopback import answering

pytest.importorskip("lxml_html_clean")
CASES = yaml.safe_load(Path(__file__).with_name("direct.yaml").read_text(encoding="utf-8"))
PROSE = "Ann Gray lives in Oakrest, where she has made bells since the flood took her shop. " * 4
PAGE = f"""<html><head><title>Ann Gray</title><script>var x = 'not text';</script></head><body>
<nav><a href="/">Home</a></nav><article><h1>Ann Gray</h1><p>{PROSE}</p><p>She wrote to
<a href="/bob#top">Bob Vin</a> and <a href="mailto:b@b.test">mailed</a>.</p></article></body>"""


def fetch(url: str, resolve: Any = None, **settings: Any) -> Fetched:
    settings = {"user_agent": "tests", "page_seconds": 5.0, "obey_robots": False, **settings}
    config = environment_config("web", **settings)
    return asyncio.run(Direct(config, on_loopback, resolve or resolver({})).fetch(url))


def read(*pages: str, **settings: Any) -> list[ToolResult]:
    return use([LoopbackDirect(environment_config("web", page_seconds=10.0, **settings))], *pages)


PUBLIC = ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946", "64:ff9b::5db8:d822"]
PRIVATE_V4 = """127.0.0.1 10.1.2.3 169.254.169.254 100.64.0.1 192.168.1.1 0.0.0.0 224.0.0.1
255.255.255.255 168.63.129.16"""
PRIVATE_V6 = "::1 :: ::ffff:127.0.0.1 ::127.0.0.1 64:ff9b::7f00:1 2002:7f00:1:: fe80::1%1 fd00::1"


@pytest.mark.parametrize("address", [*PUBLIC, *PRIVATE_V4.split(), *PRIVATE_V6.split()])
def test_rule_allows_public_addresses_and_web_ports_only(address):
    assert is_public(ip_address(address), 443) is (address in PUBLIC)
    assert not is_public(ip_address(address), 22)


def test_fetch_sends_no_credentials_and_uses_no_proxy(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    page = answering("Grüße", "text/html; charset=UTF-8")
    redirect = answering("", status=302, Location="/a?q=1", Set_Cookie="a=b")
    with serving({"/": redirect, "/a": page}) as (host, asked):
        found = fetch(f"http://{host}/")
    assert found == Fetched(f"http://{host}/a?q=1", "text/html", "utf-8", "Grüße".encode())
    _, (line, headers, _) = asked
    assert (line, headers["User-Agent"]) == ("GET /a?q=1", "tests")
    sent = {"host", "user-agent", "accept", "accept-encoding", "connection"}
    assert {name.lower() for name in headers} == sent


@pytest.mark.parametrize("host", ["127.0.0.1", "0x7f000001", "[::1]", "mixed.test"])
def test_private_address_in_any_notation_gets_no_packet(host):
    mixed = resolver({"mixed.test": ["127.0.0.2", "127.0.0.1"]})
    refused = pytest.raises(PageError, match=r"not on the public web|Invalid IPv4")
    with serving({"/": answering("secret")}, "127.0.0.1") as (at, asked), refused:
        fetch(f"http://{host}:{at.partition(':')[2]}/", mixed)
    assert asked == []


def test_rebinding_name_is_resolved_once_a_connection():
    resolve = AsyncMock(side_effect=[["127.0.0.2"], ["127.0.0.1"]])
    with serving({"/": answering("public")}) as (host, asked):
        url = f"http://rebinding.test:{host.partition(':')[2]}/"
        assert fetch(url, resolve).body == b"public"
        assert resolve.await_count == 1
        with pytest.raises(PageError, match="not on the public web"):
            fetch(url, resolve)
    assert len(asked) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("target", "message"), CASES["redirects"])
def test_redirect_obeys_all_rules(target, message):
    routes = {"/away": answering("", status=302, Location=target)}
    with serving(routes) as (host, _), pytest.raises(PageError, match=message):
        fetch(f"http://{host}/away", deny_hosts=["127.0.0.2/no"])


MEMBER = gzip.compress(b"first, " * 100, mtime=0)


@pytest.mark.parametrize(
    ("encoding", "body", "expected"),
    [
        ("gzip", MEMBER + gzip.compress(b"second", mtime=0), b"first, " * 100 + b"second"),
        ("gzip", MEMBER + bytes(9), b"first, " * 100),
        ("gzip", MEMBER[:-20], "it breaks off"),
        ("gzip, x-gzip", gzip.compress(MEMBER, mtime=0), b"first, " * 100),
        ("deflate", zlib.compress(b"first")[2:-4], b"first"),
        ("br", b"\x0b\x02\x80", "packed as br"),
        ("utf-8", b"first", b"first"),
        ("gzip", gzip.compress(bytes(700_000), mtime=0), "larger than 0.5 MB"),
    ],
)
def test_body_is_unpacked_to_its_end(encoding, body, expected):
    with serving({"/": answering(body, Content_Encoding=encoding)}) as (host, _):
        url, limit = f"http://{host}/", {"page_megabytes": 0.5}
        if isinstance(expected, bytes):
            assert fetch(url, **limit).body == expected
        else:
            with pytest.raises(PageError, match=expected):
                fetch(url, **limit)


@pytest.mark.parametrize(("head", "target"), CASES["refreshes"])
def test_page_that_another_replaces_names_it(head, target):
    page = f"{head}<p>{PROSE}".replace("{long}", "x" * 9000).encode()
    assert read_html(page, "http://a.test/", None).refresh == target


def test_unknown_host_is_a_page_error_and_silent_resolver_an_outage():
    with pytest.raises(OutageError, match="check this machine's resolver"):
        fetch("http://a.test/", resolver({}, silent=("a.test", "example.com")))
    with pytest.raises(PageError, match=r"no host a\.test"):
        fetch("http://a.test/", resolver({"example.com": [INTERNET]}, silent=("a.test",)))


@pytest.mark.parametrize(
    ("rules", "allowed"),
    [
        (HostRules.of(environment_config("web")), CASES["answers"]),
        (HostRules(allow=["a.test", "b.test/docs"], deny=["a.test/no"]), CASES["listed"]),
    ],
)
def test_host_rules_hold_in_any_notation(rules, allowed):
    assert {url: rules.allows(f"https://{url}") for url in allowed} == allowed


def make_pdf(*pages: str) -> bytes:
    pdf = pytest.importorskip("fpdf").FPDF()
    pdf.set_title("A notice")
    pdf.set_font("Helvetica")
    for page in pages:
        pdf.add_page()
        pdf.multi_cell(0, 10, page)
    return bytes(pdf.output())


def test_extraction_reads_the_start_of_a_large_document():
    links = "".join(f"<a href='/{number}'>{number}</a>" for number in range(150))
    script = f"<script>{'x' * 4_000_000}</script>"
    page = f"{script}<p>{PROSE}</p>{links}<!--{'x' * 3_000_000}--><p>The end.</p>".encode()
    _, text, found, _ = read_html(page, "http://a.test/", None)
    assert (PROSE.strip() in text, "The end." in text, len(found)) == (True, False, 100)
    assert "[50 more links are left out]" in text
    assert re.search(r"\[cut here: \d,\d{3} more characters of HTML\]$", text)
    pdf = make_pdf(*(f"page {number}." for number in range(205)))
    assert read_pdf(pdf).text.endswith("page 199.\n\n[cut here: 5 more of 205 pages]")
    assert read_pdf(make_pdf("Ann.", "", "Bob.")).text.endswith("[pages without text: 2]")


def test_posts_and_comments_are_read_and_hidden_text_is_not():
    posts = "".join(f"<div><article><p>Post {n}. {PROSE}</p></article></div>" for n in range(3))
    first, *others = (f"<article><p>Post {n}. Yes.</p></article>" for n in range(3))
    replies = "".join([first.replace("Yes.", PROSE * 3), *others])
    rows = "".join(f"<tr><td>Post {n}.</td><td>{n}</td></tr>" for n in range(99))
    hidden = "<p hidden>Visit evil.test.</p>"
    for shown in (posts, replies, f"<article><p>{PROSE}</p></article><table>{rows}</table>"):
        text = read_html(f"<body>{shown}{hidden}</body>".encode(), "http://a.test/", None).text
        assert [f"Post {n}." in text for n in range(3)] == [True] * 3
        assert "evil" not in text


@pytest.mark.parametrize(("label", "encoding", "words"), CASES["labels"])
def test_labels_of_headers_are_those_of_browsers(label, encoding, words):
    assert read_text(words.encode(encoding), label).text == words


@pytest.mark.parametrize("before", CASES["declarations"])
def test_declaration_is_found_where_browsers_find_it(before):
    body = f"{before}Дом — 5 €".encode("cp1251")
    assert read_text(body, None, is_html="<meta" in before).text.endswith("Дом — 5 €")


def test_references_to_control_characters_are_those_of_windows():
    page = f"<p>25 &#128; &#x96; {PROSE}".encode()
    assert "25 € \u2013 Ann" in read_html(page, "http://a.test/", None).text


@pytest.mark.parametrize(
    ("encoding", "words"),
    [("cp1252", "Café à Paris : 25 €."), ("cp1251", "Привет мир, это дом и сад.")],
)
def test_few_words_without_a_declaration_are_guessed(encoding, words):
    body = f"<div class='a-long-name' id='another'><p>{words * 3}</p></div>".encode(encoding)
    assert words in read_html(body, "http://a.test/", None).text


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(direct, "find_spec", lambda name: name if name != "pypdf" else None)
    with pytest.raises(ConfigError, match="tools=direct needs pypdf:"):
        Direct(environment_config("web"))


@pytest.mark.slow
def test_direct_extracts_html_pdf_and_text_and_gives_up_slow_pages():
    table = "<table><tr>" + "<td><p>x</p></td>" * 40_000 + "</tr></table>"
    routes = {
        "/ann": answering(PAGE, "text/html; charset=utf-8"),
        "/pdf": answering(make_pdf("The bell was stolen."), "application/pdf"),
        "/txt": answering("Grüße".encode("latin-1"), "text/plain; charset=latin-1"),
        "/slow": answering(table),
        "/again": answering(PAGE),
    }
    with serving(routes) as (host, _):
        urls = [f"http://{host}{path}" for path in routes]
        ann, pdf, text, slow, again = read(*urls, obey_robots=False, parse_seconds=2.0)
    assert (ann.title, ann.origin) == ("Ann Gray", f"http://{host}/ann")
    assert PROSE.strip() in ann.text
    assert "not text" not in ann.text
    assert ann.links == (Link("Home", f"http://{host}/"), Link("Bob Vin", f"http://{host}/bob"))
    assert (pdf.title, pdf.text, text.text) == ("A notice", "The bell was stolen.", "Grüße")
    assert "cannot be read in 2 seconds" in slow.text
    assert again.title == "Ann Gray", "another worker takes over"


@pytest.mark.slow
def test_direct_obeys_robots_also_after_redirects():
    redirect = answering("", status=302, Location="/private/a")
    robots = answering("\ufeffUser-agent: *\nDisallow: /private\n", "text/plain")
    routes = {"/robots.txt": robots, "/open": answering(PROSE, "text/plain"), "/in": redirect}
    with serving(routes) as (host, asked):
        results = read(*(f"http://{host}/{path}" for path in ("private/a", "open", "in")))
    assert ["does not allow robots" in one.text for one in results] == [True, False, True]
    assert [line for line, _, _ in asked] == ["GET /robots.txt", "GET /open", "GET /in"]


def slow(handler: BaseHTTPRequestHandler, sent: bytes) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
    for _ in range(60):
        handler.wfile.write(b"x")
        time.sleep(0.05)


def breaking(handler: BaseHTTPRequestHandler, sent: bytes) -> None:
    handler.connection.shutdown(socket.SHUT_RDWR)


PAGES = {
    "/fine": answering("<p>Ann lives in Oakrest.</p>"),
    "/image": answering(b"\x89PNG", "image/png"),
    "/empty": answering("<script>x</script>"),
    "/slow": slow,
    "/breaking": breaking,
}


@pytest.mark.slow
def test_page_fault_is_an_observation_and_the_episode_goes_on():
    with serving(PAGES) as (host, _):
        pages = ["/fine", *CASES["faults"], "/fine"]
        pages = [f"http://{host}{page}" if page[0] == "/" else page for page in pages]
        completions = [*(call("visit", page=page) for page in pages), ANSWER]
        visits = play(completions, tools=[DIRECT], page_seconds=2.0, page_megabytes=1.0)
    _, _, *faults, last = [step.observation for step in visits.steps]
    for (page, message), observation in zip(CASES["faults"].items(), faults, strict=True):
        assert message in observation.values("text")[0], page
        assert observation.stream[0].name == "failure", page
    assert (visits.stop_reason, visits.reward) == (StopReason.ANSWERED, 1.0)
    assert "Oakrest" in last.values("text")[0]
