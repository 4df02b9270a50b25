"""The server policy against a fake ``/v1/completions``; scripts/real_eval runs it against vLLM."""

import json
from typing import Any

import httpx
import pytest

from atommem.errors import OutageError, PolicyError, PromptTooLongError
from atommem.policy.contract import Completion, Sampling
from atommem.policy.server import ServerPolicy
from tests.fakes import WordTokenizer

SAMPLING = Sampling(temperature=0.7, max_tokens=8, seed=3)


class Vllm:
    """Answers like vLLM; `choice` overrides parts of the answer, `status` and `error` refuse."""

    def __init__(self, tokenizer: WordTokenizer) -> None:
        ids = [*tokenizer.encode("forty two"), tokenizer.eos_token_id]
        self.choice: Any = {
            "token_ids": ids,
            "finish_reason": "stop",
            "logprobs": {"token_logprobs": [-0.5, -0.25, -1.0]},
        }
        self.refusal: httpx.Response | None = None
        self.bodies: list[dict[str, Any]] = []
        self.listed = 0

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            self.listed += 1
            return httpx.Response(200, json={"data": [{"id": "m", "max_model_len": 64}]})
        self.bodies.append(json.loads(request.content))
        if self.refusal is not None:
            return self.refusal
        # Not httpx's json=: vLLM may write NaN, which httpx refuses to.
        return httpx.Response(200, content=json.dumps({"choices": [self.choice] if self.choice else []}))


@pytest.fixture
def tokenizer() -> WordTokenizer:
    return WordTokenizer()


@pytest.fixture
def vllm(tokenizer: WordTokenizer) -> Vllm:
    return Vllm(tokenizer)


def policy_of(vllm: Vllm, tokenizer: WordTokenizer, model: str | None = "m") -> ServerPolicy:
    transport = httpx.MockTransport(vllm)
    return ServerPolicy("http://server", model, tokenizer=tokenizer, retries=1, backoff=0.001, transport=transport)


async def complete(vllm: Vllm, tokenizer: WordTokenizer) -> Completion:
    return await policy_of(vllm, tokenizer).complete([5, 6], SAMPLING)


async def test_ids_and_logprobs_come_back_as_they_are(vllm: Vllm, tokenizer: WordTokenizer) -> None:
    done = await complete(vllm, tokenizer)
    assert done == Completion(vllm.choice["token_ids"], [-0.5, -0.25, -1.0], "forty two", "stop")


async def test_every_sampling_value_is_sent(vllm: Vllm, tokenizer: WordTokenizer) -> None:
    policy = policy_of(vllm, tokenizer)
    await policy.complete([5, 6], SAMPLING)
    await policy.complete([5], Sampling(temperature=0, top_p=0.9, top_k=4, max_tokens=2))
    await policy.close()
    first, second = vllm.bodies
    assert first == {
        "model": "m",
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
    assert (second["temperature"], second["top_p"], second["top_k"], "seed" in second) == (0, 0.9, 4, False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (None, "no completion with token ids"),
        ({"token_ids": None}, "without token ids"),
        ({"logprobs": None}, "no log-probabilities for 3 tokens"),
        ({"logprobs": {"token_logprobs": [-1.0, None, -1.0]}}, "None for token 1 of 3"),
        ({"logprobs": {"token_logprobs": [-1.0, -1.0, float("nan")]}}, "nan for token 2 of 3"),
    ],
)
async def test_an_answer_that_lacks_something_is_an_error(
    vllm: Vllm, tokenizer: WordTokenizer, change: dict[str, Any] | None, message: str
) -> None:
    vllm.choice = None if change is None else vllm.choice | change
    with pytest.raises(PolicyError, match=message):
        await complete(vllm, tokenizer)


async def test_an_aborted_request_is_an_outage(vllm: Vllm, tokenizer: WordTokenizer) -> None:
    vllm.choice["finish_reason"] = "abort"
    with pytest.raises(OutageError, match="'abort'"):
        await complete(vllm, tokenizer)


async def test_refusals(vllm: Vllm, tokenizer: WordTokenizer) -> None:
    vllm.refusal = httpx.Response(400, json={"error": {"message": "This model's maximum context length is 4 tokens."}})
    with pytest.raises(PromptTooLongError, match=r"2 tokens with max_tokens=8.*maximum context length is 4"):
        await complete(vllm, tokenizer)
    vllm.refusal = httpx.Response(404, json={"error": {"message": "The model `m` does not exist."}})
    with pytest.raises(PolicyError, match=r"'m'.*404.*does not exist") as refused:
        await complete(vllm, tokenizer)
    assert not isinstance(refused.value, PromptTooLongError)
    vllm.refusal = httpx.Response(503, text="overloaded")
    with pytest.raises(OutageError, match="overloaded"):
        await complete(vllm, tokenizer)
    assert len(vllm.bodies) == 4


async def test_the_one_model_of_the_server_and_its_context_are_found(vllm: Vllm, tokenizer: WordTokenizer) -> None:
    policy = policy_of(vllm, tokenizer, model=None)
    await policy.complete([5], SAMPLING)
    await policy.complete([5], SAMPLING)
    assert ([body["model"] for body in vllm.bodies], vllm.listed) == (["m", "m"], 1)
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
    tokenizer: WordTokenizer, response: httpx.Response, message: str
) -> None:
    policy = ServerPolicy("http://s", tokenizer=tokenizer, transport=httpx.MockTransport(lambda request: response))
    with pytest.raises(PolicyError, match=message):
        await policy.complete([5], SAMPLING)
