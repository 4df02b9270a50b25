"""The chat policy against a chat server in memory."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from atommem.errors import ConfigError, OutageError, PolicyError, PromptTooLongError, UnknownModelError
from atommem.policy.chat import ChatPolicy
from atommem.policy.contract import Completion, Sampling
from tests.fake_chat import FakeChat, Reply, choice, refusal

MESSAGES = [{"role": "system", "content": "Read."}, {"role": "user", "content": "half \ud83d, \u0436"}]
SAMPLING = Sampling(temperature=0.7, max_tokens=8)


def policy(server: FakeChat, model: str | None = "m", url: str = "http://s/v1") -> ChatPolicy:
    return ChatPolicy(url, model, retries=2, backoff=0.0, transport=server.transport)


async def ask(*replies: Reply, sampling: Sampling = SAMPLING) -> Completion:
    return await policy(FakeChat(*replies)).complete_chat(MESSAGES, sampling)


async def test_messages_in_text_and_counts_out() -> None:
    server = FakeChat("<read_memory>\u0436</read_memory>")
    chat = policy(server)
    assert chat.speaks_chat
    completion = await chat.complete_chat(MESSAGES, Sampling(temperature=0.7, max_tokens=8, seed=3, top_p=0.9, top_k=5))
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
    await chat.complete_chat(MESSAGES, SAMPLING)
    assert set(server.bodies[1]) == {"model", "messages", "max_tokens", "temperature"}, "hosted servers know no top_k"
    await chat.close()


@pytest.mark.parametrize(
    ("reply", "text", "finish_reason"),
    [
        (choice("cut", "length"), "cut", "length"),
        (choice("x", "eos"), "x", "stop"),
        (choice(None), "", "stop"),
        (choice([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), "ab", "stop"),
        (choice("answer", reasoning_content="let me see"), "answer", "stop"),
        (choice("half \ud83d"), "half \ufffd", "stop"),
        (choice("I", "content_filter"), "", "content_filter"),
        (choice(None, refusal="I cannot help with that."), "", "content_filter"),
        (refusal(400, "The response was filtered", code="content_filter"), "", "content_filter"),
        (refusal(422, "Your prompt was flagged by moderation"), "", "content_filter"),
    ],
)
async def test_refusals_are_empty_completions(reply: Reply, text: str, finish_reason: str) -> None:
    completion = await ask(reply)
    assert (completion.text, completion.finish_reason, completion.token_ids) == (text, finish_reason, [])


@pytest.mark.parametrize(
    ("reply", "error", "words"),
    [
        (refusal(400, "This model's maximum context length is 8 tokens"), PromptTooLongError, "maximum context"),
        (refusal(401, "Incorrect API key"), PolicyError, r"401.*Incorrect.*ATOMMEM_POLICY_API_KEY"),
        (404, UnknownModelError, r"no.* 'm'"),
        (503, OutageError, "failed 3 times"),
        (httpx.Response(200, json={"error": {"message": "engine"}}), OutageError, "no chat completion.*engine"),
        (httpx.Response(200, json={"choices": []}), OutageError, "no chat completion"),
        (choice("x", "abort"), OutageError, "no chat completion"),
        (refusal(400, "bad model", code="unsupported_value", param="model"), PolicyError, "model"),
    ],
)
async def test_errors(reply: Reply, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as raised:
        await ask(reply)
    assert raised.type is error


async def test_settings_that_a_server_does_not_take_are_left_out_and_said() -> None:
    """OpenAI's reasoning models: another name for max_tokens, no temperature."""

    def answer(body: dict[str, Any]) -> Reply:
        if "max_tokens" in body:
            return refusal(400, "Use 'max_completion_tokens'", code="unsupported_parameter", param="max_tokens")
        if "temperature" in body:
            return refusal(400, "Only the default (1)", code="unsupported_value", param="temperature")
        return "x"

    server = FakeChat(answer=answer)
    chat = policy(server)
    with pytest.warns(UserWarning, match="takes no temperature"):
        assert (await chat.complete_chat(MESSAGES, SAMPLING)).text == "x"
    assert server.bodies[-1] == {"model": "m", "messages": server.bodies[0]["messages"], "max_completion_tokens": 8}
    await chat.complete_chat(MESSAGES, SAMPLING)
    assert len(server.bodies) == 4, "it remembers"


async def test_it_takes_no_token_ids_and_no_key_over_plain_http(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PolicyError, match="takes messages, no token ids"):
        await policy(FakeChat("x")).complete([1, 2], SAMPLING)
    monkeypatch.setenv("ATOMMEM_POLICY_API_KEY", "k")
    with pytest.raises(ConfigError, match="plain http"):
        policy(FakeChat("x"), url="http://far")
