"""The server policy against a fake ``/v1/completions``; scripts/real_eval runs it against vLLM."""

from typing import Any

import httpx
import pytest

from atommem.errors import OutageError, PolicyError, PromptTooLongError, UnknownModelError
from atommem.policy.contract import Completion, Sampling
from atommem.policy.server import ServerPolicy
from tests.fake_chat import refusal
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


async def test_every_sampling_value_is_sent_and_ids_and_logprobs_come_back_as_they_are() -> None:
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
    assert (second["temperature"], second["top_p"], second["top_k"], "seed" in second) == (0, 0.9, 4, False)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (None, PolicyError, "no completion with token ids"),
        ({"token_ids": None}, PolicyError, "without token ids"),
        ({"logprobs": None}, PolicyError, "no log-probabilities for 3 tokens"),
        ({"logprobs": {"token_logprobs": [-1.0, None, -1.0]}}, PolicyError, "None for token 1 of 3"),
        ({"logprobs": {"token_logprobs": [-1.0, -1.0, float("nan")]}}, PolicyError, "nan for token 2 of 3"),
        ({"finish_reason": "abort"}, OutageError, "'abort'"),
        (
            refusal(400, "This model's maximum context length is 4 tokens."),
            PromptTooLongError,
            r"2 tokens with max_tokens=8.*maximum context length is 4",
        ),
        (refusal(404, "The model `policy` does not exist."), UnknownModelError, r"'policy'.*404.*does not exist"),
        (httpx.Response(503, text="overloaded"), OutageError, "overloaded"),
    ],
)
async def test_what_is_no_completion_is_an_error(change: Any, error: type[Exception], message: str) -> None:
    policy, vllm = make()
    if isinstance(change, httpx.Response):
        vllm.refusal = change
    else:
        vllm.choice = None if change is None else {**CHOICE, **change}
    with pytest.raises(error, match=message) as raised:
        await policy.complete([5, 6], SAMPLING)
    assert raised.type is error


async def test_the_one_model_of_the_server_and_its_context_are_found() -> None:
    policy, vllm = make(model=None)
    await policy.complete([5], SAMPLING)
    await policy.complete([5], SAMPLING)
    assert [body["model"] for body in vllm.bodies] == ["policy", "policy"]
    with pytest.raises(PromptTooLongError, match="context of 64"):
        await policy.complete([5] * 57, SAMPLING)
    assert len(vllm.bodies) == 2


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (httpx.Response(404, text="?"), "does not list"),
        (httpx.Response(200, json={}), "returned no list"),
        (httpx.Response(200, json={"data": [{"id": "base"}, {"id": "adapter"}]}), r"2 models \(base, adapter\)"),
    ],
)
async def test_a_server_that_lists_none_or_several_models_asks_for_a_name(
    response: httpx.Response, message: str
) -> None:
    policy = ServerPolicy("http://s", tokenizer=TOKENIZER, transport=httpx.MockTransport(lambda request: response))
    with pytest.raises(PolicyError, match=message):
        await policy.complete([5], SAMPLING)
