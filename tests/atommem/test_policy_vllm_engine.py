"""The policy of a colocated engine, with a fake engine that steps like vLLM's `LLMEngine`."""

import asyncio
import sys
import time
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from atommem.errors import PolicyError, PromptTooLongError
from atommem.policy import vllm_engine
from atommem.policy.contract import Completion, Sampling
from atommem.policy.server_pool import Adapter
from atommem.policy.vllm_engine import VllmEnginePolicy
from tests.fakes import WordTokenizer

SAMPLING = Sampling(temperature=1.0, max_completion_length=3, seed=5)


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


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands where vLLM's two classes would."""
    for name, attribute in (("vllm", "SamplingParams"), ("vllm.lora.request", "LoRARequest")):
        module = ModuleType(name)
        setattr(module, attribute, lambda *args, **fields: SimpleNamespace(args=args, **fields))
        monkeypatch.setitem(sys.modules, name, module)


def make() -> tuple[VllmEnginePolicy, FakeEngine]:
    engine = FakeEngine()
    tokenizer = WordTokenizer()
    tokenizer.encode("one two three four five six seven eight")
    return VllmEnginePolicy(engine, tokenizer), engine


async def start(policy: VllmEnginePolicy, engine: FakeEngine) -> asyncio.Task[Completion]:
    running = asyncio.create_task(policy.complete([5], SAMPLING))
    while not engine.batches:
        await asyncio.sleep(0)
    return running


async def test_engine_requests_join_running_batch():
    policy, engine = make()
    running = await start(policy, engine)
    second = await policy.complete([7, 8], SAMPLING)
    first = await running
    assert (first.token_ids, second.token_ids) == ([5] * 3, [7] * 3)
    assert (first.logprobs, first.finish_reason) == ([-0.5] * 3, "length")
    assert max(engine.batches) == 2


async def test_engine_cancelled_request_is_aborted():
    policy, engine = make()
    running = await start(policy, engine)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len((await policy.complete([6], SAMPLING)).token_ids) == 3
    assert engine.batches[-3:] == [1, 1, 1], "it is out of the batch"


async def test_engine_errors_reach_waiting_requests(monkeypatch):
    policy, engine = make()
    engine.logprob = float("nan")
    with pytest.raises(PolicyError, match="0 finite log-probabilities for 3 tokens"):
        await policy.complete([5], SAMPLING)
    engine.error = RuntimeError("out of memory")
    requests = [policy.complete([5], SAMPLING) for _ in range(3)]
    results = await asyncio.gather(*requests, return_exceptions=True)
    assert [str(result) for result in results] == ["out of memory"] * 3
    engine.error = None
    monkeypatch.setattr(vllm_engine, "_settle", mock.Mock(side_effect=RuntimeError("CUDA error")))
    with pytest.raises(RuntimeError, match="CUDA error"):
        await asyncio.wait_for(policy.complete([5], SAMPLING), 5)
    with pytest.raises(PromptTooLongError, match="exceeds the context of 16"):
        await policy.complete([5] * 14, SAMPLING)


async def test_engine_requests_use_current_adapter():
    policy, engine = make()
    await policy.complete([5], SAMPLING)
    policy.use_adapter(Adapter("v1", "/a/v1"))
    await policy.complete([5], SAMPLING)
    assert [a and a.args for a in engine.adapters] == [None, ("v1", 1, "/a/v1")]
