"""Policies of completion and chat servers, of a pool whose servers die, and of an engine."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import httpx
import pytest

from atommem.errors import OutageError, PolicyError, PromptTooLongError, UnknownModelError
from atommem.policy import vllm_engine
from atommem.policy.contract import Completion, Sampling
from atommem.policy.server import ChatPolicy, ServerPolicy
from atommem.policy.server_pool import Adapter, ServerPool
from atommem.policy.vllm_engine import VllmEnginePolicy
from tests.fake_chat import FakeChat, refusal
from tests.fake_vllm import Cluster, FakeServer
from tests.fakes import WordTokenizer

SAMPLING = Sampling(temperature=0.7, max_completion_length=8, seed=3)
TOKENIZER = WordTokenizer()
IDS = [*TOKENIZER.encode("forty two"), TOKENIZER.eos_token_id]
CHOICE = {"token_ids": IDS, "logprobs": {"token_logprobs": [-0.5, -0.25, -1.0]}}
MESSAGES = [{"role": "system", "content": "Read."}, {"role": "user", "content": "half \ud83d"}]


def vllm_policy(model: str | None = "policy") -> tuple[ServerPolicy, FakeServer]:
    server = FakeServer()
    server.choice = CHOICE
    settings: Any = {"tokenizer": TOKENIZER, "retries": 0, "backoff": 0.0}
    transport = httpx.MockTransport(server.answer)
    return ServerPolicy("http://s", model, transport=transport, **settings), server


def chat_policy(server: FakeChat) -> ChatPolicy:
    return ChatPolicy("http://s/v1", "m", retries=2, backoff=0.0, transport=server.transport)


async def test_server_policy_sends_all_values_and_returns_ids_and_logprobs():
    policy, server = vllm_policy()
    completion = await policy.complete([5, 6], SAMPLING)
    assert completion == Completion(IDS, [-0.5, -0.25, -1.0], "forty two", "stop")
    sampling = {"temperature": 0.7, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": 3}
    request = {"model": "policy", "prompt": [5, 6], "max_tokens": 8, "repetition_penalty": 1.0}
    assert server.bodies == [request | sampling | {"logprobs": 0, "return_token_ids": True}]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (None, PolicyError, "no completion with token ids"),
        ({"logprobs": {"token_logprobs": [-1, float("nan")]}}, PolicyError, "1 finite log-prob"),
        ({"token_ids": [1, 9999, 0]}, PolicyError, "token 9999, which the tokenizer does not"),
        ({"finish_reason": "abort"}, OutageError, "'abort'"),
        (refusal(400, "maximum context length is 4"), PromptTooLongError, "2 tokens with"),
        (refusal(404, "No such model."), UnknownModelError, r"'policy'.*404.*No such model"),
    ],
)
async def test_server_policy_invalid_answer_is_an_error(change, error, message):
    policy, server = vllm_policy()
    if isinstance(change, httpx.Response):
        server.refusal = change
    else:
        server.choice = None if change is None else {**CHOICE, **change}
    with pytest.raises(error, match=message) as raised:
        await policy.complete([5, 6], SAMPLING)
    assert raised.type is error


async def test_server_policy_finds_the_one_model_and_its_context():
    policy, server = vllm_policy(model=None)
    await policy.complete([5], SAMPLING)
    assert [body["model"] for body in server.bodies] == ["policy"]
    with pytest.raises(PromptTooLongError, match=r"57 tokens.*_length=8.*context of 64"):
        await policy.complete([5] * 57, SAMPLING)
    assert len(server.bodies) == 1


async def test_chat_policy_sends_messages_and_returns_counts():
    server = FakeChat("<read_memory>\u0436</read_memory>")
    policy = chat_policy(server)
    sampling = Sampling(temperature=0.7, max_completion_length=8, seed=3, top_p=0.9, top_k=5)
    completion = await policy.complete_chat(MESSAGES, sampling)
    assert completion == Completion([], [], "<read_memory>\u0436</read_memory>", "stop", 11, 3)
    values = {"max_tokens": 8, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "seed": 3}
    messages = [MESSAGES[0], {"role": "user", "content": "half \ufffd"}]
    assert server.bodies == [{"model": "m", "messages": messages, **values}]
    with pytest.raises(PolicyError, match=r"401.*Incorrect.*ATOMMEM_POLICY_API_KEY"):
        await chat_policy(FakeChat(refusal(401, "Incorrect"))).complete_chat(MESSAGES, sampling)


async def test_chat_policy_unsupported_parameters_are_dropped_with_a_warning():
    """OpenAI's reasoning models: another name for max_tokens, no temperature."""
    refusals = [
        refusal(400, code="unsupported_parameter", param="max_tokens"),
        refusal(400, code="unsupported_value", param="temperature"),
    ]
    server = FakeChat(*refusals, "x", "x")
    policy, sampling = chat_policy(server), Sampling(temperature=0.7, max_completion_length=8)
    with pytest.warns(UserWarning, match="does not support temperature"):
        assert (await policy.complete_chat(MESSAGES, sampling)).text == "x"
    await policy.complete_chat(MESSAGES, sampling)
    assert len(server.bodies) == 4, "it remembers"
    for body in server.bodies[2:]:
        assert body.keys() == {"model", "messages", "max_completion_tokens"}


# A pool ---


AT_ONE = Sampling(temperature=1.0, max_completion_length=4)
AT_HALF = Sampling(temperature=0.5, max_completion_length=4)
V1, V2 = Adapter("v1", "/adapters/v1"), Adapter("v2", "/adapters/v2")


@pytest.fixture
async def pools() -> AsyncIterator[Callable[..., ServerPool]]:
    made: list[ServerPool] = []

    def make(cluster: Cluster, **settings: Any) -> ServerPool:
        settings = {"patience": 5.0, "backoff": 0.01, "tokenizer": WordTokenizer(), **settings}
        made.append(ServerPool(cluster.urls, transport=cluster.transport, **settings))
        return made[-1]

    yield make
    for pool in made:
        await pool.close()


async def complete(pool: ServerPool, count: int, affinity: str | None = None) -> list[Completion]:
    sampling = replace(AT_ONE, affinity=affinity)
    return await asyncio.gather(*(pool.complete([5, 6], sampling) for _ in range(count)))


async def until(condition: Callable[[], object], seconds: float = 2.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


async def test_pool_server_dies_others_answer(pools):
    cluster = Cluster("a", "b")
    pool = pools(cluster)
    cluster["a"].seconds = cluster["b"].seconds = 0.02
    running = asyncio.create_task(complete(pool, 8))
    await until(lambda: cluster["a"].in_flight == 4)
    cluster["a"].up = False
    assert len(await running) == 8
    assert [server.url for server in pool.serving] == ["http://b"]


async def test_pool_returned_server_loads_the_adapter_before_requests(pools):
    cluster = Cluster("a", "b")
    pool = pools(cluster)
    await pool.use_adapter(V1)
    cluster["a"].up = False
    await complete(pool, 4)
    await pool.use_adapter(V2)
    cluster["a"].restart()
    await until(lambda: len(pool.serving) == 2)
    await complete(pool, 4)
    assert cluster["a"].models == {"policy": "", "v2": "/adapters/v2"}
    assert cluster["a"].asked == ["v2"] * 2
    cluster["a"].restart()  # nobody saw it die: it answers 404 for a model that it has forgotten
    await complete(pool, 4)
    await until(lambda: cluster["a"].loads == ["v1", "v2", "v2"])


async def test_pool_requests_an_adapter_only_after_it_is_loaded(pools, monkeypatch):
    cluster = Cluster("a")
    pool = pools(cluster)
    await pool.use_adapter(V1)
    load, may_load = pool.servers[0].load_adapter, asyncio.Event()

    async def slow(adapter: Adapter) -> None:
        await may_load.wait()
        await load(adapter)

    monkeypatch.setattr(pool.servers[0], "load_adapter", slow)
    publishing = asyncio.create_task(pool.use_adapter(V2))
    await complete(pool, 2)
    may_load.set()
    await publishing
    await complete(pool, 1)
    assert cluster["a"].asked == ["v1", "v1", "v2"]


async def test_pool_restricted_to_servers_keeps_a_dropped_one_out(pools):
    """A restarted server has its checkpoint's weights, and not those of the training."""
    cluster = Cluster("a", "b")
    pool = pools(cluster)
    await pool.restrict(["http://b"])
    await complete(pool, 2)
    cluster["b"].up = False
    with pytest.raises(OutageError, match="current weights"):
        await complete(pool, 1)
    cluster["b"].restart()
    await asyncio.sleep(0.05)
    assert pool.serving == []
    await pool.restrict(cluster.urls)
    assert [server.url for server in pool.serving] == cluster.urls


async def test_pool_without_servers_waits_then_is_an_outage(pools):
    cluster = Cluster("a", "b")
    cluster["a"].up = cluster["b"].up = False
    with pytest.raises(OutageError, match=r"No server answered for 0 s \(http://a, http://b\)"):
        await complete(pools(cluster, patience=0.1), 1)
    waiting = asyncio.create_task(complete(pools(cluster), 3))
    await asyncio.sleep(0.03)
    cluster["b"].up = True
    assert len(await waiting) == 3


async def test_pool_checks_logprobs_once_and_again_after_a_restart(pools):
    cluster = Cluster("a")
    server, pool = cluster["a"], pools(cluster, scaled_logprobs=True)
    await pool.complete([5, 6], AT_ONE)
    with pytest.raises(PolicyError, match=r"temperature 0.5 .* --logprobs-mode processed_logprobs"):
        await pool.complete([5, 6], AT_HALF)
    server.logprobs_mode = "processed_logprobs"
    server.bodies.clear()
    await asyncio.gather(*(pool.complete([5, 6], AT_HALF) for _ in range(64)))
    assert len(server.bodies) == 64 + 2
    server.up = False
    waiting = asyncio.create_task(pool.complete([5, 6], AT_HALF))
    await until(lambda: not pool.serving)
    server.restart()
    server.logprobs_mode = "raw_logprobs"
    with pytest.raises(PolicyError, match="without the temperature"):
        await waiting


# A colocated engine, which steps like vLLM's `LLMEngine` ---


THREE = Sampling(temperature=1.0, max_completion_length=3, seed=5)


class FakeEngine:
    """Samples the first id of the prompt; records the batch size of each step."""

    error: Exception | None = None
    logprob = -0.5

    def __init__(self) -> None:
        self.model_config = SimpleNamespace(max_model_len=16)
        self.requests: dict[str, Any] = {}
        self.batches, self.adapters = list[int](), list[Any]()

    def add_request(self, name: str, prompt: Any, params: Any, lora_request: Any = None) -> None:
        ids = prompt["prompt_token_ids"]
        self.requests[name] = SimpleNamespace(ids=ids, params=params, sampled=[])
        self.adapters.append(lora_request)

    def abort_request(self, names: list[str]) -> None:
        for name in names:
            self.requests.pop(name, None)

    def step(self) -> list[Any]:
        if self.error:
            raise self.error
        self.batches.append(len(self.requests))
        time.sleep(0.02)
        outputs = []
        for name, request in list(self.requests.items()):
            request.sampled.append(request.ids[0])
            finished = len(request.sampled) == request.params.max_tokens
            logprobs = [{token: SimpleNamespace(logprob=self.logprob)} for token in request.sampled]
            sampled = {"token_ids": request.sampled, "finish_reason": "length"}
            output = SimpleNamespace(logprobs=logprobs, **sampled)
            ended = {"request_id": name, "finished": finished}
            outputs.append(SimpleNamespace(outputs=[output], **ended))
            if finished:
                del self.requests[name]
        return outputs


@pytest.fixture
def colocated(monkeypatch: pytest.MonkeyPatch) -> tuple[VllmEnginePolicy, FakeEngine]:
    """A policy and its engine, beside what stands where vLLM's two classes would."""
    for name, attribute in (("vllm", "SamplingParams"), ("vllm.lora.request", "LoRARequest")):
        module = ModuleType(name)
        setattr(module, attribute, lambda *args, **fields: SimpleNamespace(args=args, **fields))
        monkeypatch.setitem(sys.modules, name, module)
    engine, tokenizer = FakeEngine(), WordTokenizer()
    tokenizer.encode("one two three four five six seven eight")
    return VllmEnginePolicy(engine, tokenizer), engine


async def start(policy: VllmEnginePolicy, engine: FakeEngine) -> asyncio.Task[Completion]:
    running = asyncio.create_task(policy.complete([5], THREE))
    while not engine.batches:
        await asyncio.sleep(0)
    return running


async def test_engine_requests_join_running_batch(colocated):
    policy, engine = colocated
    running = await start(policy, engine)
    second = await policy.complete([7, 8], THREE)
    first = await running
    assert (first.token_ids, second.token_ids) == ([5] * 3, [7] * 3)
    assert (first.logprobs, first.finish_reason) == ([-0.5] * 3, "length")
    assert max(engine.batches) == 2


async def test_engine_cancelled_request_is_aborted(colocated):
    policy, engine = colocated
    running = await start(policy, engine)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len((await policy.complete([6], THREE)).token_ids) == 3
    assert engine.batches[-3:] == [1, 1, 1], "it is out of the batch"


async def test_engine_errors_reach_waiting_requests(colocated, monkeypatch):
    policy, engine = colocated
    engine.logprob = float("nan")
    with pytest.raises(PolicyError, match="0 finite log-probabilities for 3 tokens"):
        await policy.complete([5], THREE)
    engine.error = RuntimeError("out of memory")
    requests = [policy.complete([5], THREE) for _ in range(3)]
    results = await asyncio.gather(*requests, return_exceptions=True)
    assert [str(result) for result in results] == ["out of memory"] * 3
    engine.error = None
    monkeypatch.setattr(vllm_engine, "_settle", mock.Mock(side_effect=RuntimeError("CUDA error")))
    with pytest.raises(RuntimeError, match="CUDA error"):
        await asyncio.wait_for(policy.complete([5], THREE), 5)
    with pytest.raises(PromptTooLongError, match="exceeds the context of 16"):
        await policy.complete([5] * 14, THREE)


async def test_engine_requests_use_current_adapter(colocated):
    policy, engine = colocated
    await policy.complete([5], THREE)
    policy.use_adapter(Adapter("v1", "/a/v1"))
    await policy.complete([5], THREE)
    assert [a and a.args for a in engine.adapters] == [None, ("v1", 1, "/a/v1")]
