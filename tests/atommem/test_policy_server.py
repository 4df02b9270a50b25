"""The policy that a configuration opens; policies of completion and chat servers."""

from typing import Any

import httpx
import pytest

from atommem.errors import OutageError, PolicyError, PromptTooLongError, UnknownModelError
from atommem.policy.contract import Completion, Sampling
from atommem.policy.server import ChatPolicy, ServerPolicy
from tests.fake_chat import FakeChat, refusal
from tests.fake_vllm import FakeServer
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


async def test_server_policy_sends_all_values_and_returns_ids_and_logprobs() -> None:
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
    with pytest.raises(PromptTooLongError, match=r"57 tokens.*_length=8.*context of 64"):
        await policy.complete([5] * 57, SAMPLING)
    assert len(server.bodies) == 1


async def test_chat_policy_sends_messages_and_returns_counts() -> None:
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


async def test_chat_policy_unsupported_parameters_are_dropped_with_a_warning() -> None:
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
