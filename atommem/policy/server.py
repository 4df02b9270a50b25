"""Policies behind a server: vLLM by token ids, or a chat endpoint by messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf
from typing import Any

from atommem.chat_format import Message, turn_ends
from atommem.errors import OutageError, PolicyError, PromptTooLongError, UnknownModelError
from atommem.policy.contract import Completion, Sampling, check_request, make_completion
from atommem.servers.chat import ChatClient
from atommem.servers.client import RefusedError, ServerClient
from atommem.tokens import ApproximateTokenizer

_PADDING = 1024  # rows that a model may have beyond its tokenizer, and so may sample


class RemotePolicy:
    """Share the client, the model's name and the error mapping of server policies.

    Without `model`, ``/v1/models`` must list exactly one. `options` are those of `ServerClient`.
    """

    def __init__(self, base_url: str, model: str | None, tokenizer: Any, **options: Any) -> None:
        self.tokenizer = tokenizer
        self._client = ServerClient(base_url, service="policy", **options)
        self._model = model
        self._context_length: int | None = None

    async def model_name(self) -> str:
        """Return the model's name on the server; ask for it if it was not set."""
        if self._model is None:
            url = self._client.base_url
            try:
                reply = await self._client.request("GET", "/v1/models")
                models = {str(item["id"]): item.get("max_model_len") for item in reply["data"]}
            except (RefusedError, KeyError, TypeError, AttributeError) as error:
                raise PolicyError(
                    f"{url} does not list its models ({error}). Name the model (model=NAME)."
                ) from error
            if len(models) != 1:
                names = ", ".join(list(models)[:8])
                raise PolicyError(f"{url} serves {len(models)} models ({names}): give model=NAME.")
            ((self._model, self._context_length),) = models.items()
        return self._model

    async def close(self) -> None:
        await self._client.close()

    def _policy_error(self, error: RefusedError, prompt: str) -> PolicyError:
        url = self._client.base_url
        if error.status == 404:
            return UnknownModelError(
                f"{url} does not serve a model named {self._model!r} ({error}). Check name and URL."
            )
        if error.too_long:
            return PromptTooLongError(f"{url} refused {prompt}: {error.message}")
        return PolicyError(
            f"{url} refused a completion of model {self._model!r} ({error}). Check the model's "
            "name, the key (ATOMMEM_POLICY_API_KEY) and the sampling values."
        )


class ServerPolicy(RemotePolicy):
    """Sample from a vLLM server by token ids; the server batches the requests of all episodes.

    The server must return token ids (``"return_token_ids": true``, vLLM 0.10.2 and later). Its
    log-probabilities include the temperature only with ``--logprobs-mode processed_logprobs``;
    with `scaled_logprobs`, a server without them is refused at a temperature other than 1.
    """

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        *,
        tokenizer: Any,
        scaled_logprobs: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(base_url, model, tokenizer, **{"max_in_flight": 256, **options})
        self._requires_scaling = scaled_logprobs
        self.scaling_checked = False
        self._scaling_lock = asyncio.Lock()
        self._tokens = len(tokenizer) + _PADDING if hasattr(tokenizer, "__len__") else inf
        stops = turn_ends(tokenizer) - {getattr(tokenizer, "eos_token_id", None)}
        self._stops = {"stop_token_ids": sorted(stops)} if stops else {}

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        """Sample one completion; raises as `Policy.complete` does, and UnknownModelError."""
        model = await self.model_name()
        check_request(prompt_ids, sampling, self._context_length)
        body = completion_request(model, prompt_ids, sampling) | self._stops
        try:
            if self._requires_scaling and sampling.temperature not in (0.0, 1.0):
                async with self._scaling_lock:  # requests that start together share one check
                    if not self.scaling_checked:
                        await self._check_scaling(body)
            reply = await self._client.post("/v1/completions", body)
        except RefusedError as error:
            most = f"max_completion_length={sampling.max_completion_length}"
            prompt = f"a prompt of {len(prompt_ids)} tokens with {most}"
            raise self._policy_error(error, prompt) from error
        url = f"{self._client.base_url}/v1/completions"
        try:
            choice = reply["choices"][0]
            token_ids, finish_reason = choice["token_ids"], choice["finish_reason"]
            logprobs = (choice["logprobs"] or {}).get("token_logprobs")
        except (KeyError, IndexError, TypeError) as error:
            raise PolicyError(
                f"{url} returned no completion with token ids. Use a server with return_token_ids "
                "(vLLM 0.10.2 or later)."
            ) from error
        if finish_reason not in ("stop", "length"):
            raise OutageError(f"{url} aborted a completion: finish_reason={finish_reason!r}.")
        if max(token_ids, default=0) >= self._tokens:
            raise PolicyError(
                f"{url} returned token {max(token_ids)}, which the tokenizer does not have. Give "
                "the tokenizer of the model that is served."
            )
        return make_completion(self.tokenizer, token_ids, logprobs, finish_reason == "stop", url)

    def use_model(self, name: str) -> None:
        """Request this model (or adapter) from now on; requests in flight keep theirs."""
        self._model = name

    async def _check_scaling(self, body: dict[str, Any]) -> None:
        """Compare the two likeliest tokens with those at temperature 1: scaled, they lie apart."""
        probe = {**body, "max_tokens": 1, "logprobs": 2, "return_tokens_as_token_ids": True}
        at_one = _gap(await self._client.post("/v1/completions", {**probe, "temperature": 1.0}))
        sampled = _gap(await self._client.post("/v1/completions", probe))
        temperature: float = body["temperature"]
        if abs(sampled - at_one) < abs(sampled - at_one / temperature):
            raise PolicyError(
                f"{self._client.base_url} returns log-probabilities without the temperature "
                f"{temperature:g} that it samples at. Start it with --logprobs-mode "
                "processed_logprobs, or train at temperature 1."
            )
        self.scaling_checked = True


class ChatPolicy(RemotePolicy):
    """Sample text from an OpenAI-compatible chat endpoint, for evaluation and use.

    Reasoning that the server separates from the content is dropped from the completion. Without
    `tokenizer`, tokens of chunks and memory are estimated.
    """

    def __init__(
        self, base_url: str, model: str | None = None, *, tokenizer: Any = None, **options: Any
    ) -> None:
        super().__init__(base_url, model, tokenizer or ApproximateTokenizer(), **options)
        self._chat = ChatClient(self._client)

    def record(self) -> dict[str, Any]:
        """Return ``chat_format`` of a summary, as `ChatFormat.record`: what the server refused."""
        folds = self._chat.folds_system
        return {"chat_format": {"system": "before the user's text"}} if folds else {}

    async def complete_chat(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        """Sample one completion of `messages` (each a ``role`` and its ``content``).

        A refusal by the model or a filter is an empty completion. Raises as `Policy.complete` does.
        """
        try:
            reply = await self._chat.ask(await self.model_name(), messages, **sampling.to_request())
        except RefusedError as error:
            if error.filtered and not error.too_long:
                return Completion([], [], "", "content_filter")
            raise self._policy_error(error, "a prompt") from error
        if reply.finish_reason == "error":
            problem = f"returned no chat completion: {reply.text[:200]!r}."
            raise OutageError(f"{self._client.base_url} {problem}")
        counts, apart = (reply.prompt_tokens, reply.completion_tokens), bool(reply.reasoning)
        return Completion([], [], reply.text, reply.finish_reason, *counts, thinking_apart=apart)


def completion_request(model: str, prompt_ids: list[int], sampling: Sampling) -> dict[str, Any]:
    """Build a ``/v1/completions`` body, complete: vLLM fills gaps from generation_config.json."""
    values = {**sampling.to_request(), "min_p": 0.0, "repetition_penalty": 1.0, "logprobs": 0}
    return {"model": model, "prompt": prompt_ids, **values, "return_token_ids": True}


def _gap(reply: Any) -> float:
    """Nats between the two likeliest next tokens."""
    likeliest = sorted(reply["choices"][0]["logprobs"]["top_logprobs"][0].values(), reverse=True)
    return float(likeliest[0] - likeliest[1])
