"""The guard at the socket and what a fetch may cost, on loopback alone."""

from __future__ import annotations

import asyncio
import errno
import gzip
import socket
import time
import zlib
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler
from ipaddress import ip_address
from typing import Any

import httpcore
import pytest

from atommem.envs.web.net.fetcher import Fetched, Fetcher, Limits
from atommem.envs.web.net.guard import GuardedBackend, public
from atommem.envs.web.net.hosts import HostRules, denied_by_default
from atommem.envs.web.tools import PageError
from atommem.errors import ConfigError, OutageError
from tests.envs.web.net.internet import Route, answering, on_loopback, resolver, serving


def fetch(
    url: str, hosts: HostRules | None = None, names: Any = None, private: Any = (), **limits: Any
) -> Fetched:
    guard = GuardedBackend(
        on_loopback, private, names if callable(names) else resolver(names or {})
    )
    fetcher = Fetcher(guard, hosts or HostRules(), Limits(**{"seconds": 5.0, **limits}), "tests")
    return asyncio.run(fetcher.fetch(url))


ON_THE_WEB = ("93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946", "64:ff9b::5db8:d822")
ELSEWHERE = [
    *(
        "127.0.0.1",
        "10.1.2.3",
        "169.254.169.254",
        "100.64.0.1",
        "192.168.1.1",
        "0.0.0.0",
        "224.0.0.1",
    ),
    *(
        "255.255.255.255",
        "168.63.129.16",
        "192.0.0.9",
        "192.88.99.1",
        "240.0.0.1",
        "198.18.0.1",
        "64:ff9b::7f00:1",
    ),
    *(
        "3fff::1",
        "::1",
        "::",
        "::ffff:127.0.0.1",
        "::ffff:8.8.8.8",
        "::127.0.0.1",
        "2002:7f00:1::",
        "fe80::1%1",
    ),
    *("fec0::1", "fd00::1", "ff02::1"),
]


@pytest.mark.parametrize("address", [*ON_THE_WEB, *ELSEWHERE])
def test_the_rule_of_the_live_web(address: str) -> None:
    assert public(ip_address(address), 443) is (address in ON_THE_WEB)
    assert not public(ip_address(address), 22)


def test_a_page_comes_with_its_type_and_nothing_of_ours_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with serving({"/a": answering("Grüße", "text/html; charset=UTF-8")}) as (host, asked):
        page = fetch(f"http://{host}/a?q=1")
    assert page == Fetched(f"http://{host}/a?q=1", "text/html", "UTF-8", "Grüße".encode())
    ((line, headers, _),) = asked
    assert line == "GET /a?q=1"
    assert {name.lower() for name in headers} == {"host", "user-agent", "accept", "accept-encoding"}
    assert headers["User-Agent"] == "tests"
    assert headers["Accept-Encoding"] == "identity"


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1", "0x7f000001", "2130706433", "0177.0.0.1", "[::1]", "0"]
)
def test_private_addresses_in_any_notation_get_no_packet(host: str) -> None:
    with serving({"/": answering("secret")}, "127.0.0.1") as (at, asked):
        port = at.partition(":")[2]
        with pytest.raises(PageError, match=r"not on the public web|Invalid IPv4"):
            fetch(f"http://{host}:{port}/")
    assert asked == []


def test_all_addresses_of_a_name_must_be_allowed_and_the_checked_one_is_connected_to() -> None:
    with serving({"/": answering("public")}) as (host, asked):
        port = host.partition(":")[2]
        names: dict[str, Sequence[str]] = {
            "mixed.test": ["127.0.0.2", "127.0.0.1"],
            "good.test": ["127.0.0.2"],
        }
        with pytest.raises(PageError, match=r"mixed\.test.*not on the public web"):
            fetch(f"http://mixed.test:{port}/", names=names)
        assert fetch(f"http://good.test:{port}/", names=names).body == b"public"
        answers = [["127.0.0.1"], ["127.0.0.2"]]

        async def rebinding(host: str, port: int) -> list[str]:
            return answers.pop()

        assert fetch(f"http://rebinding.test:{port}/", names=rebinding).body == b"public"
        assert len(answers) == 1, "a name is resolved once a connection"
        with pytest.raises(PageError, match="not on the public web"):
            fetch(f"http://rebinding.test:{port}/", names=rebinding)
    assert [headers["Host"] for _, headers, _ in asked] == [
        f"good.test:{port}",
        f"rebinding.test:{port}",
    ]


def test_redirects_are_held_to_all_rules() -> None:
    routes: dict[str, Any] = {"/end": answering("here")}
    with (
        serving({"/secret": answering("secret")}, "127.0.0.1") as (inside, asked),
        serving(routes) as (host, _),
    ):
        routes["/good"] = answering("", status=302, Location="/end")
        routes["/in"] = answering("", status=307, Location=f"http://{inside}/secret")
        routes["/file"] = answering("", status=301, Location="file:///etc/passwd")
        routes["/round"] = answering("", status=302, Location="/round")
        routes["/denied"] = answering("", status=302, Location=f"http://{host}/no/answers")
        assert fetch(f"http://{host}/good").url == f"http://{host}/end"
        for path, message in (
            ("in", "not on the public web"),
            ("file", "no address of a page"),
            ("round", "more than 5 times"),
            ("denied", "may not be visited"),
        ):
            with pytest.raises(PageError, match=message):
                fetch(f"http://{host}/{path}", HostRules(deny=["127.0.0.2/no"]))
    assert asked == []


def test_a_private_host_that_is_named_with_its_port_may_be_visited() -> None:
    with serving({"/": answering("mine")}, "127.0.0.1") as (host, _):
        assert fetch(f"http://{host}/", private=[host]).body == b"mine"
        port = host.partition(":")[2]
        with pytest.raises(
            PageError, match="cannot be had"
        ):  # it does not listen there, but was asked
            fetch(f"http://[::1]:{port}/", private=[f"[::1]:{port}"])
        with pytest.raises(PageError, match="not on the public web"):
            fetch(f"http://{host}/", private=["127.0.0.1:1"])


@pytest.mark.parametrize(
    "url",
    [
        *(
            "ftp://a.test/",
            "file:///etc/passwd",
            "a.test",
            "http://",
            "http://u:p@a.test/",
            "http://a b/",
            "x" * 5000,
        ),
        *(
            "http://xn--/",
            "http://xn--a/",
            "http://[::1%25lo]/",
            "http://a\\b/",
            "http://[",
            "http://a.test/\ud800",
        ),
        *("http://a.test:-1/", "http://a.test:99999999999999999999/", "http://a\u2100b/"),
    ],
)
def test_what_is_no_address_of_a_page(url: str) -> None:
    with pytest.raises(PageError):
        fetch(url)
    with (
        serving({"/": answering("", status=302, Location=ascii(url)[1:-1])}) as (host, _),
        pytest.raises(PageError),
    ):
        fetch(f"http://{host}/")


def test_bytes_parts_and_seconds_are_bounded_as_sent_and_as_unpacked() -> None:
    def sending(
        part: bytes, count: int, pause: float = 0.0, start: bytes = b"HTTP/1.1 200 OK\r\n\r\n"
    ) -> Route:
        def route(handler: BaseHTTPRequestHandler, sent: bytes) -> None:
            handler.wfile.write(start)
            for _ in range(count):
                handler.wfile.write(part)
                time.sleep(pause)

        return route

    zeros, text = bytes(50_000_000), b"hello " * 100
    raw = zlib.compressobj(wbits=-15)
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    routes = {
        "/endless": sending(b"x" * 65536, 1000),
        "/announced": answering("x" * 2000),
        "/bomb": answering(gzip.compress(zeros), Content_Encoding="gzip"),
        "/gzip": answering(gzip.compress(text), Content_Encoding="gzip"),
        "/deflate": answering(raw.compress(text) + raw.flush(), Content_Encoding="deflate"),
        "/cut": answering(gzip.compress(text)[:-9], Content_Encoding="gzip"),
        "/br": answering(b"\x00", Content_Encoding="br"),
        "/drip": sending(b"x", 100, 0.05),
        "/crumbs": sending(b"1\r\nx\r\n" * 1_000_000, 1, start=chunked),
        "/type": answering("x", 'text/html; x="' + ";" * 60_000),
    }
    with serving(routes) as (host, _):
        for path in ("gzip", "deflate"):
            assert fetch(f"http://{host}/{path}", max_bytes=1000).body == text
        for path, limits, message in (
            *(
                (path, {"max_bytes": 1000}, r"larger than 0\.001 MB")
                for path in ("endless", "announced", "bomb")
            ),
            *((path, {"max_bytes": 1_000_000}, "damaged, or larger") for path in ("bomb", "cut")),
            ("br", {"max_bytes": 1000}, "encoded as 'br'"),
            ("drip", {"seconds": 0.4}, r"longer than 0\.4 seconds"),
            ("crumbs", {"seconds": 60.0}, "more than 100,000 parts"),
        ):
            began = time.perf_counter()
            with pytest.raises(PageError, match=message):
                fetch(f"http://{host}/{path}", **limits)
            assert time.perf_counter() - began < limits.get("seconds", 5.0) + 1.6
        began = time.process_time()
        assert fetch(f"http://{host}/type").content_type == "text/html"
        assert time.process_time() - began < 2, (
            "a type that is made to be read slowly takes no time"
        )


def test_a_name_that_is_not_there_is_the_pages_fault_and_a_silent_resolver_or_no_network_is_not() -> (
    None
):
    with pytest.raises(PageError, match=r"there is no host nowhere\.test"):
        fetch("http://nowhere.test/")

    async def silent(host: str, port: int) -> list[str]:
        raise socket.gaierror(socket.EAI_AGAIN, "try again")

    class Unplugged(httpcore.AsyncNetworkBackend):
        async def connect_tcp(
            self, *arguments: Any, **settings: Any
        ) -> httpcore.AsyncNetworkStream:
            raise httpcore.ConnectError from OSError(errno.ENETUNREACH, "no network")

    names = resolver({"a.test": ["127.0.0.2"]})

    def get(guard: GuardedBackend) -> None:
        asyncio.run(Fetcher(guard, HostRules(), Limits(), "tests").fetch("http://a.test/"))

    unplugged = GuardedBackend(on_loopback, (), names, Unplugged(), has_way=lambda address: False)
    for guard in (GuardedBackend(on_loopback, (), silent), unplugged):
        with pytest.raises(OutageError, match="this machine"):
            get(guard)

    async def silent_for_one(host: str, port: int) -> list[str]:
        return await (
            silent if host == "a.test" else resolver({"a.root-servers.net": ["127.0.0.2"]})
        )(host, port)

    # A name whose own servers are silent, and a router far away that knows no way: anybody's page can have these.
    with pytest.raises(PageError, match=r"no host a\.test"):
        get(GuardedBackend(on_loopback, (), silent_for_one))
    with pytest.raises(PageError, match="cannot be had"):
        get(GuardedBackend(on_loopback, (), names, Unplugged()))


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("https://huggingface.co/datasets/some/thing", False),
        ("https://HuggingFace.co./datasets", False),
        ("https://huggingface.co//x/../datasets/a", False),
        ("https://huggingface.co/%64atasets/a", False),
        ("https://www.huggingface.co/datasets/a", False),
        ("https://web.archive.org/web/2024/https://huggingface.co/datasets/a", False),
        ("https://translate.test/?u=https%3A%2F%2Fhuggingface.co%2Fdatasets%2Fa", False),
        ("https://huggingface-co.translate.goog/datasets/a", False),
        ("https://huggingface.co\\datasets/a", False),
        ("https:huggingface.co/datasets/a", False),
        ("huggingface.co:443/datasets/a", False),
        ("https://hugging%66ace.co/datasets/a", False),
        ("https://\uff48uggingface\u3002co/datasets/a", False),
        ("https://hugging\u200bface.co/datasets/a", False),
        ("http://[huggingface", False),
        ("https://huggingface.co/datasetsofmine", True),
        ("https://huggingface.co/docs", True),
        ("https://nothuggingface.co/datasets", True),
        ("https://example.test/a-huggingface.co/datasets", True),
    ],
)
def test_hosts_that_publish_answers_are_denied(url: str, allowed: bool) -> None:
    assert HostRules(deny=denied_by_default()).allows(url) is allowed


def test_a_list_of_allowed_hosts_allows_no_other() -> None:
    rules = HostRules(allow=["example.test", "b.test/docs"], deny=["example.test/no"])
    allowed = ("https://www.example.test/a", "https://b.test/docs/1", "https://b.test/robots.txt")
    denied = (
        "https://b.test/",
        "https://example.test/no",
        "http://c.test",
        "https://c.test/robots.txt",
    )
    assert all(map(rules.allows, allowed))
    assert not any(map(rules.allows, denied))
    for entry in ("http://[", "", "/"):
        with pytest.raises(ConfigError, match="write a host"):
            HostRules(deny=[entry])
