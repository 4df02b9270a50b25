"""Retries, back-off and refusals of the HTTP client that the server policy and the HTTP embedder share."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from atommem.errors import ConfigError, OutageError
from atommem.servers.client import RefusedError, ServerClient
from atommem.servers.keys import Service

Answer = httpx.Response | Exception


class Server:
    """Gives the scripted answers, then ``{"ok": true}``."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []
        self.running = self.most_running = 0

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(0.001)
        self.running -= 1
        answer = self.answers.pop(0) if self.answers else httpx.Response(200, json={"ok": True})
        if isinstance(answer, Exception):
            raise answer
        return answer

    def client(
        self, *, retries: int = 3, max_in_flight: int = 4, url: str = "http://server", service: Service = "policy"
    ) -> ServerClient:
        return ServerClient(
            url,
            service=service,
            timeout=5,
            retries=retries,
            max_in_flight=max_in_flight,
            backoff=0.001,
            transport=httpx.MockTransport(self),
        )


@pytest.mark.parametrize(
    "trouble",
    [
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("slow"),
        httpx.Response(429, headers={"retry-after": "0"}, text="busy"),
        httpx.Response(500, json={"error": {"message": "engine dead"}}),
        httpx.Response(503, text="starting"),
        httpx.Response(200, text="<html>"),
    ],
)
async def test_passing_trouble_is_retried_and_lasting_trouble_is_an_outage(trouble: Answer) -> None:
    server = Server(trouble, trouble)
    assert await server.client().post("/v1/x", {"a": 1}) == {"ok": True}
    assert len(server.requests) == 3
    assert {request.content for request in server.requests} == {b'{"a":1}'}

    server = Server(*[trouble] * 9)
    with pytest.raises(OutageError, match=r"POST http://server/v1/x failed 4 times, last with .+: check"):
        await server.client().post("/v1/x", {})
    assert len(server.requests) == 4


async def test_a_connection_that_breaks_is_replaced_once() -> None:
    """A server may close an idle connection just as it is used again; one that is gone accepts no new one."""
    broken = httpx.RemoteProtocolError("cut off")
    server = Server(broken)
    assert await server.client(retries=0).post("/v1/x", {}) == {"ok": True}
    server = Server(broken, httpx.ConnectError("refused"))
    with pytest.raises(OutageError, match="failed 1 times, last with ConnectError: refused"):
        await server.client(retries=0).post("/v1/x", {})
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("response", "message", "too_long"),
    [
        (httpx.Response(404, json={"error": {"message": "no such model"}}), "no such model", False),
        (httpx.Response(400, json={"message": "maximum context length is 8"}), "maximum context length is 8", True),
        (httpx.Response(422, json=["what"]), "['what']", False),
        (httpx.Response(401, text="who are you"), "who are you", False),
    ],
)
async def test_a_refusal_is_not_retried(response: httpx.Response, message: str, too_long: bool) -> None:
    server = Server(response)
    with pytest.raises(RefusedError) as refused:
        await server.client().get("/v1/x")
    assert (refused.value.status, refused.value.message) == (response.status_code, message)
    assert refused.value.too_long is too_long
    assert len(server.requests) == 1


async def test_waits_double_and_follow_the_servers_word(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    sleep = asyncio.sleep

    async def recorded(seconds: float) -> None:
        if seconds != 0.001:  # the fake server's own
            waits.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", recorded)
    monkeypatch.setattr("random.uniform", lambda low, high: (low + high) / 2)
    busy = httpx.Response(429, headers={"retry-after": "7"})
    dated = httpx.Response(429, headers={"retry-after": "Wed, 21 Oct 2065 07:28:00 GMT"})
    server = Server(*[httpx.ConnectError("x")] * 3, busy, dated, httpx.Response(503, headers={"retry-after": "9999"}))
    client = ServerClient(
        "http://s",
        service="policy",
        timeout=5,
        retries=6,
        max_in_flight=1,
        backoff=0.5,
        transport=httpx.MockTransport(server),
    )
    await client.get("/v1/x")
    assert waits == [0.5, 1.0, 2.0, 7.0, 8.0, 30.0]


async def test_no_more_requests_than_allowed_are_in_flight() -> None:
    server = Server()
    client = server.client(max_in_flight=3)
    await asyncio.gather(*(client.get("/v1/x") for _ in range(12)))
    assert (server.most_running, len(server.requests)) == (3, 12)
    await client.close()
    await client.close()


def test_it_works_in_one_event_loop_after_the_other() -> None:
    server = Server()
    client = server.client()
    for _ in range(3):
        assert asyncio.run(client.get("/v1/x")) == {"ok": True}
    assert len(client._connections) == 1


@pytest.mark.parametrize("url", ["http://server", "http://server/", "http://server/v1", "http://server/v1/"])
async def test_the_url_may_end_in_v1(url: str) -> None:
    server = Server()
    await server.client(url=url).get("/v1/models")
    assert str(server.requests[0].url) == "http://server/v1/models"


def test_a_url_without_a_scheme_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"'localhost:8000'.*http://"):
        Server().client(url="localhost:8000")


@pytest.mark.parametrize("text", ["half a pair: \ud83d", "\udc00", "whole: \ud83d\ude00"])
async def test_lone_surrogates_are_replaced_where_json_is_sent(text: str) -> None:
    server = Server()
    await server.client().post("/v1/x", {"input": [text], "café": "ж"})
    (request,) = server.requests
    sent = json.loads(request.content.decode())
    assert sent["café"] == "ж"
    assert sent["input"] == [{"h": "half a pair: \ufffd", "\udc00": "\ufffd", "w": "whole: \U0001f600"}[text[0]]]
    assert request.headers["content-type"] == "application/json"


async def test_what_is_neither_json_nor_utf8_is_trouble() -> None:
    server = Server(httpx.Response(200, content=b"\xff\xfe{"))
    assert await server.client().post("/v1/x", {}) == {"ok": True}
    with pytest.raises(RefusedError):
        await Server(httpx.Response(400, content=b"\xff\xfe{")).client().post("/v1/x", {})


@pytest.mark.parametrize(
    ("status", "error", "kinds"),
    [
        (400, {"message": "prompt is too long: 9 tokens > 8 maximum"}, {"too_long"}),
        (413, {"message": "no"}, {"too_long"}),
        (422, {"message": "`inputs` must have less than 512 tokens. Given: 1010"}, {"too_long"}),
        (400, {"message": "x", "code": "context_length_exceeded"}, {"too_long"}),
        (500, {"message": "input is too large to process. increase the physical batch size"}, {"too_long"}),
        (400, {"message": "The response was filtered due to the prompt", "code": "content_filter"}, {"filtered"}),
        (400, {"message": "max_tokens is too large: 40000. This model supports at most 16384", "code": None}, set()),
        (404, {"message": "no such model"}, {"of_access"}),
        (401, {"message": "Incorrect API key"}, {"of_access"}),
    ],
)
async def test_what_a_refusal_is_about(status: int, error: dict[str, object], kinds: set[str]) -> None:
    server = Server(httpx.Response(status, json={"error": error}))
    with pytest.raises(RefusedError) as refused:
        await server.client().post("/v1/x", {})
    assert {name for name in ("too_long", "filtered", "of_access") if getattr(refused.value, name)} == kinds
    assert len(server.requests) == 1


KEYS = {
    "ATOMMEM_POLICY_API_KEY": "p",
    "ATOMMEM_EMBEDDER_API_KEY": "e",
    "ATOMMEM_JUDGE_API_KEY": "j",
    "OPENAI_API_KEY": "o",
    "ATOMMEM_ALLOW_KEYS_OVER_HTTP": "1",
}


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets the variables that are given, and none of the others."""

    def give(*names: str) -> None:
        for name, value in KEYS.items():
            if name in names:
                monkeypatch.setenv(name, value)
            else:
                monkeypatch.delenv(name, raising=False)

    return give


@pytest.mark.parametrize(
    ("url", "service", "given", "header"),
    [
        ("https://far", "policy", ("ATOMMEM_POLICY_API_KEY", "OPENAI_API_KEY"), "Bearer p"),
        ("https://far", "embedder", ("ATOMMEM_EMBEDDER_API_KEY", "ATOMMEM_POLICY_API_KEY"), "Bearer e"),
        ("https://far", "judge", ("ATOMMEM_POLICY_API_KEY", "OPENAI_API_KEY"), None),
        ("https://far", "judge", ("ATOMMEM_POLICY_API_KEY",), None),
        ("http://127.0.0.1:8000", "judge", ("ATOMMEM_JUDGE_API_KEY",), "Bearer j"),
        ("http://[::1]:8000", "judge", ("ATOMMEM_JUDGE_API_KEY",), "Bearer j"),
        ("http://localhost:8000", "judge", ("OPENAI_API_KEY",), None),
        ("http://far:8000", "policy", ("OPENAI_API_KEY", "ATOMMEM_JUDGE_API_KEY"), None),
        ("http://far:8000", "policy", ("ATOMMEM_POLICY_API_KEY", "ATOMMEM_ALLOW_KEYS_OVER_HTTP"), "Bearer p"),
    ],
)
async def test_each_service_has_its_own_key(
    keys: Callable[..., None], url: str, service: Any, given: tuple[str, ...], header: str | None
) -> None:
    keys(*given)
    server = Server()
    await server.client(url=url, service=service).get("/v1/x")
    assert server.requests[0].headers.get("authorization") == header


@pytest.mark.parametrize("url", ["http://far:8000", "http://localhost.evil.org", "http://127.0.0.1.evil.org/"])
def test_no_key_goes_over_plain_http_to_another_machine(keys: Callable[..., None], url: str) -> None:
    keys("ATOMMEM_JUDGE_API_KEY")
    with pytest.raises(ConfigError, match=r"ATOMMEM_JUDGE_API_KEY is set, and http://.* plain http.*https"):
        Server().client(url=url, service="judge")


async def test_redirects_carry_no_key_anywhere(keys: Callable[..., None]) -> None:
    keys("ATOMMEM_POLICY_API_KEY")
    server = Server(httpx.Response(307, headers={"location": "https://evil.org/v1/x"}))
    with pytest.raises(RefusedError, match=r"307.*redirects to https://evil\.org/v1/x"):
        await server.client(url="https://far").post("/v1/x", {})
    assert [request.url.host for request in server.requests] == ["far"]


def test_a_key_for_this_machine_goes_through_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    client = ServerClient("http://127.0.0.1:1", service="judge", timeout=1, retries=0, max_in_flight=1)
    assert client._own_transport() is not None


async def test_many_requests_over_real_connections() -> None:
    """The transport that is used when none is given, against a server of this process."""
    open_now = most = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_now, most
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                open_now += 1
                most = max(most, open_now)
                await asyncio.sleep(0.05)
                open_now -= 1
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        except asyncio.IncompleteReadError:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    client = ServerClient(url, service="policy", timeout=10, retries=0, max_in_flight=60)
    assert await asyncio.gather(*(client.get("/") for _ in range(100))) == [{}] * 100
    assert 50 <= most <= 60
    await client.close()
    server.close()


def test_a_proxy_of_the_environment_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    client = ServerClient("http://far:1", service="judge", timeout=1, retries=0, max_in_flight=1)
    assert client._own_transport() is None  # httpx takes the proxy then
