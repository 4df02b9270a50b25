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


def make(model: str | None = "policy") -> tuple[ServerPolicy, FakeServer]:
    vllm = FakeServer()
    vllm.choice, transport = CHOICE, httpx.MockTransport(vllm.answer)
    own = {"tokenizer": TOKENIZER, "retries": 1, "backoff": 0.001, "transport": transport}
    return ServerPolicy("http://server", model, **own), vllm  # type: ignore[arg-type]


async def test_server_policy_sends_all_sampling_values_and_returns_ids() -> None:
    policy, vllm = make()
    done = await policy.complete([5, 6], SAMPLING)
    assert done == Completion(IDS, [-0.5, -0.25, -1.0], "forty two", "stop")
    await policy.complete([5], Sampling(temperature=0, top_p=0.9, top_k=4, max_tokens=2))
    await policy.close()
    first, second = vllm.bodies
    assert first == {
        "model": "policy",
        "prompt": [5, 6],
        **{"max_tokens": 8, "temperature": 0.7, "top_p": 1.0, "top_k": 0, "seed": 3},
        **{"min_p": 0.0, "repetition_penalty": 1.0, "logprobs": 0, "return_token_ids": True},
    }
    assert (second["temperature"], second["top_p"], second["top_k"], "seed" in second) == (
        0,
        0.9,
        4,
        False,
    )


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
        (
            refusal(404, "The model `policy` does not exist."),
            UnknownModelError,
            r"'policy'.*404.*does not exist",
        ),
        (httpx.Response(503, text="overloaded"), OutageError, "overloaded"),
    ],
)
async def test_server_policy_invalid_answer_is_an_error(
    change: Any, error: type[Exception], message: str
) -> None:
    policy, vllm = make()
    if isinstance(change, httpx.Response):
        vllm.refusal = change
    else:
        vllm.choice = None if change is None else {**CHOICE, **change}
    with pytest.raises(error, match=message) as raised:
        await policy.complete([5, 6], SAMPLING)
    assert raised.type is error


async def test_server_policy_finds_model_and_context() -> None:
    policy, vllm = make(model=None)
    await policy.complete([5], SAMPLING)
    await policy.complete([5], SAMPLING)
    assert [body["model"] for body in vllm.bodies] == ["policy", "policy"]
    with pytest.raises(PromptTooLongError, match="context of 64"):
        await policy.complete([5] * 57, SAMPLING)
    assert len(vllm.bodies) == 2


async def test_server_policy_ambiguous_model_asks_for_name() -> None:
    response = httpx.Response(200, json={"data": [{"id": "base"}, {"id": "adapter"}]})
    policy = ServerPolicy(
        "http://s", tokenizer=TOKENIZER, transport=httpx.MockTransport(lambda request: response)
    )
    with pytest.raises(PolicyError, match=r"2 models \(base, adapter\)"):
        await policy.complete([5], SAMPLING)


# Messages in, text out ----------------------------------------------------------------------------


MESSAGES = [
    {"role": "system", "content": "Read."},
    {"role": "user", "content": "half \ud83d, \u0436"},
]
CHAT_SAMPLING = Sampling(temperature=0.7, max_tokens=8)


def chat_policy(server: FakeChat, model: str | None = "m", url: str = "http://s/v1") -> ChatPolicy:
    return ChatPolicy(url, model, retries=2, backoff=0.0, transport=server.transport)


async def ask(*replies: Reply, sampling: Sampling = CHAT_SAMPLING) -> Completion:
    return await chat_policy(FakeChat(*replies)).complete_chat(MESSAGES, sampling)


async def test_chat_policy_sends_messages_and_returns_counts() -> None:
    server = FakeChat("<read_memory>\u0436</read_memory>")
    chat = chat_policy(server)
    completion = await chat.complete_chat(
        MESSAGES, Sampling(temperature=0.7, max_tokens=8, seed=3, top_p=0.9, top_k=5)
    )
    assert completion == Completion([], [], "<read_memory>\u0436</read_memory>", "stop", 11, 3)
    assert server.bodies == [
        {
            "model": "m",
            "messages": [MESSAGES[0], {"role": "user", "content": "half \ufffd, \u0436"}],
            "max_tokens": 8,
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": 5,
            "seed": 3,
        }
    ]
    await chat.complete_chat(MESSAGES, CHAT_SAMPLING)
    assert set(server.bodies[1]) == {"model", "messages", "max_tokens", "temperature"}, (
        "hosted servers know no top_k"
    )
    await chat.close()


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
    completion = await ask(reply)
    assert (completion.text, completion.finish_reason, completion.token_ids) == (
        text,
        finish_reason,
        [],
    )


@pytest.mark.parametrize(
    ("reply", "error", "words"),
    [
        (
            refusal(400, "This model's maximum context length is 8 tokens"),
            PromptTooLongError,
            "maximum context",
        ),
        (refusal(401, "Incorrect API key"), PolicyError, r"401.*Incorrect.*ATOMMEM_POLICY_API_KEY"),
        (
            httpx.Response(200, json={"error": {"message": "engine"}}),
            OutageError,
            "no chat completion.*engine",
        ),
    ],
)
async def test_chat_policy_errors(reply: Reply, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as raised:
        await ask(reply)
    assert raised.type is error


async def test_chat_policy_unsupported_parameters_are_dropped_with_warning() -> None:
    """OpenAI's reasoning models: another name for max_tokens, no temperature."""

    def answer(body: dict[str, Any]) -> Reply:
        if "max_tokens" in body:
            return refusal(
                400, "Use 'max_completion_tokens'", code="unsupported_parameter", param="max_tokens"
            )
        if "temperature" in body:
            return refusal(
                400, "Only the default (1)", code="unsupported_value", param="temperature"
            )
        return "x"

    server = FakeChat(answer=answer)
    chat = chat_policy(server)
    with pytest.warns(UserWarning, match="does not support temperature"):
        assert (await chat.complete_chat(MESSAGES, CHAT_SAMPLING)).text == "x"
    assert server.bodies[-1] == {
        "model": "m",
        "messages": server.bodies[0]["messages"],
        "max_completion_tokens": 8,
    }
    await chat.complete_chat(MESSAGES, CHAT_SAMPLING)
    assert len(server.bodies) == 4, "it remembers"


async def test_chat_policy_refuses_token_ids_and_plain_http_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(PolicyError, match="takes messages, not token ids"):
        await chat_policy(FakeChat("x")).complete([1, 2], CHAT_SAMPLING)
    monkeypatch.setenv("ATOMMEM_POLICY_API_KEY", "k")
    with pytest.raises(ConfigError, match="plain http"):
        chat_policy(FakeChat("x"), url="http://far")
