"""The policies of completion and chat servers."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from atommem.errors import (
    ConfigError,
    OutageError,
    PolicyError,
    PromptTooLongError,
    UnknownModelError,
)
from atommem.policy.contract import Completion, Sampling
from atommem.policy.server import ChatPolicy, ServerPolicy
from tests.fake_chat import FakeChat, Reply, choice, refusal
from tests.fake_vllm import FakeServer
from tests.fakes import WordTokenizer

SAMPLING = Sampling(temperature=0.7, max_tokens=8, seed=3)
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


def chat_policy(server: FakeChat, url: str = "http://s/v1") -> ChatPolicy:
    return ChatPolicy(url, "m", retries=2, backoff=0.0, transport=server.transport)


async def test_server_policy_sends_all_values_and_returns_ids_and_logprobs() -> None:
    policy, server = vllm_policy()
    completion = await policy.complete([5, 6], SAMPLING)
    assert completion == Completion(IDS, [-0.5, -0.25, -1.0], "forty two", "stop")
    await policy.complete([5], Sampling(temperature=0, top_p=0.9, top_k=4, max_tokens=8))
    expected = {
        "model": "policy",
        "prompt": [5, 6],
        "max_tokens": 8,
        "temperature": 0.7,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "logprobs": 0,
        "return_token_ids": True,
        "seed": 3,
    }
    greedy = expected | {"prompt": [5], "temperature": 0, "top_p": 0.9, "top_k": 4}
    del greedy["seed"]
    assert server.bodies == [expected, greedy]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (None, PolicyError, "no completion with token ids"),
        ({"logprobs": None}, PolicyError, "no log-probabilities for 3 tokens"),
        (
            {"logprobs": {"token_logprobs": [-1.0, -1.0, float("nan")]}},
            PolicyError,
            "nan for token 2 of 3",
        ),
        ({"finish_reason": "abort"}, OutageError, "'abort'"),
        (
            refusal(400, "This model's maximum context length is 4 tokens."),
            PromptTooLongError,
            r"2 tokens with max_tokens=8.*maximum context length is 4",
        ),
        (refusal(404, "No such model."), UnknownModelError, r"'policy'.*404.*No such model"),
        (httpx.Response(503, text="overloaded"), OutageError, "overloaded"),
    ],
)
async def test_server_policy_invalid_answer_is_an_error(
    change: Any, error: type[Exception], message: str
) -> None:
    policy, server = vllm_policy()
    if isinstance(change, httpx.Response):
        server.refusal = change
    else:
        server.choice = None if change is None else {**CHOICE, **change}
    with pytest.raises(error, match=message) as raised:
        await policy.complete([5, 6], SAMPLING)
    assert raised.type is error


async def test_server_policy_finds_the_one_model_and_its_context() -> None:
    policy, server = vllm_policy(model=None)
    await policy.complete([5], SAMPLING)
    assert [body["model"] for body in server.bodies] == ["policy"]
    with pytest.raises(PromptTooLongError, match="context of 64"):
        await policy.complete([5] * 57, SAMPLING)
    assert len(server.bodies) == 1
    policy, server = vllm_policy(model=None)
    server.models["adapter"] = ""
    with pytest.raises(PolicyError, match=r"2 models \(policy, adapter\)"):
        await policy.complete([5], SAMPLING)


async def test_chat_policy_sends_messages_and_returns_counts() -> None:
    server = FakeChat("<read_memory>\u0436</read_memory>")
    policy = chat_policy(server)
    sampling = Sampling(temperature=0.7, max_tokens=8, seed=3, top_p=0.9, top_k=5)
    completion = await policy.complete_chat(MESSAGES, sampling)
    assert completion == Completion([], [], "<read_memory>\u0436</read_memory>", "stop", 11, 3)
    values = {"max_tokens": 8, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "seed": 3}
    messages = [MESSAGES[0], {"role": "user", "content": "half \ufffd"}]
    assert server.bodies == [{"model": "m", "messages": messages, **values}]
    await policy.complete_chat(MESSAGES, Sampling(temperature=0.7, max_tokens=8))
    assert {*server.bodies[1]} == {"model", "messages", "max_tokens", "temperature"}
    with pytest.raises(PolicyError, match="takes messages, not token ids"):
        await policy.complete([1, 2], SAMPLING)


@pytest.mark.parametrize(
    ("reply", "text", "finish_reason"),
    [
        (choice("cut", "length"), "cut", "length"),
        (choice([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), "ab", "stop"),
        (choice("half \ud83d"), "half \ufffd", "stop"),
        (choice("I", "content_filter"), "", "content_filter"),
        (refusal(400, "The response was filtered", code="content_filter"), "", "content_filter"),
    ],
)
async def test_chat_policy_reply_forms(reply: Reply, text: str, finish_reason: str) -> None:
    completion = await chat_policy(FakeChat(reply)).complete_chat(MESSAGES, SAMPLING)
    assert (completion.text, completion.finish_reason) == (text, finish_reason)
    assert completion.token_ids == []


@pytest.mark.parametrize(
    ("reply", "error", "words"),
    [
        (refusal(400, "The maximum context length is 8"), PromptTooLongError, "maximum context"),
        (refusal(401, "Incorrect API key"), PolicyError, r"401.*Incorrect.*ATOMMEM_POLICY_API_KEY"),
        (httpx.Response(200, json={"error": "engine"}), OutageError, "no chat completion.*engine"),
    ],
)
async def test_chat_policy_errors(reply: Reply, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as raised:
        await chat_policy(FakeChat(reply)).complete_chat(MESSAGES, SAMPLING)
    assert raised.type is error


async def test_chat_policy_unsupported_parameters_are_dropped_with_a_warning() -> None:
    """OpenAI's reasoning models: another name for max_tokens, no temperature."""

    def answer(body: dict[str, Any]) -> Reply:
        if "max_tokens" in body:
            return refusal(400, code="unsupported_parameter", param="max_tokens")
        if "temperature" in body:
            return refusal(400, code="unsupported_value", param="temperature")
        return "x"

    server = FakeChat(answer=answer)
    policy, sampling = chat_policy(server), Sampling(temperature=0.7, max_tokens=8)
    with pytest.warns(UserWarning, match="does not support temperature"):
        assert (await policy.complete_chat(MESSAGES, sampling)).text == "x"
    assert server.bodies[-1].keys() == {"model", "messages", "max_completion_tokens"}
    await policy.complete_chat(MESSAGES, sampling)
    assert len(server.bodies) == 4, "it remembers"


def test_policy_key_is_not_sent_over_plain_http(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOMMEM_POLICY_API_KEY", "k")
    with pytest.raises(ConfigError, match="plain http"):
        chat_policy(FakeChat("x"), url="http://far")
