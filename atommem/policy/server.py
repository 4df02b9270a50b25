"""A vLLM server (or one that speaks its ``/v1/completions``): token ids in, token ids and log-probabilities out."""

from __future__ import annotations

import asyncio
from typing import Any, Unpack

from atommem.errors import OutageError, PolicyError
from atommem.policy.completions import check_request, make_completion
from atommem.policy.contract import Completion, Sampling
from atommem.policy.served import Served, ServedPolicy
from atommem.servers.client import ClientOptions, RefusedError


class ServerPolicy(ServedPolicy):
    """Samples from a server, which batches the requests of all episodes itself.

    The server must return token ids (``"return_token_ids": true``, vLLM 0.10.2 and later). Its log-probabilities
    are those of the distribution that it samples only with ``--logprobs-mode processed_logprobs``; vLLM's default
    leaves the temperature out. Every sampling value is sent with every request: left out, vLLM would take it
    from the model's generation_config.json.

    Args:
        base_url: The server, with or without the closing ``/v1``.
        model: The model's name there; None asks ``/v1/models``, which must list exactly one.
        tokenizer: The model's; decodes completions.
        scaled_logprobs: Refuse a server whose log-probabilities leave the temperature out, where it is not 1.
        options: Of the `ServerClient`.

    Raises:
        ConfigError: `base_url` is no http(s) URL.
    """

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        *,
        tokenizer: Any,
        scaled_logprobs: bool = False,
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__(base_url, model, tokenizer, ClientOptions(max_in_flight=256) | options)
        self._unscaled_is_error = scaled_logprobs
        self._scaling = asyncio.Lock()
        self._scales = False

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        """Sample one completion.

        Raises:
            OutageError: The server is out of reach, keeps failing, or gave up on the request.
            PromptTooLongError: The prompt leaves no room for ``sampling.max_tokens``.
            UnknownModelError: The server does not know the model's name.
            PolicyError: The server refused the request, or its answer lacks what training needs.
        """
        served = await self._model()
        check_request(prompt_ids, sampling, served.context_length)
        body = request_body(served.name, prompt_ids, sampling)
        try:
            if self._unscaled_is_error and sampling.temperature not in (0.0, 1.0):
                await self._check_scaling(body)
            reply = await self._client.post("/v1/completions", body)
        except RefusedError as error:
            prompt = f"a prompt of {len(prompt_ids)} tokens with max_tokens={sampling.max_tokens}"
            raise self._refused(error, served.name, prompt) from error
        return self._read(reply)

    def use_model(self, name: str) -> None:
        """Ask for this model from now on (an adapter that was loaded, say); requests in flight keep theirs."""
        self._served = Served(name, None if self._served is None else self._served.context_length)

    def forget_server(self) -> None:
        """The server may have been started anew: nothing that was found out about its settings holds."""
        self._scales = False

    async def _check_scaling(self, body: dict[str, Any]) -> None:
        """Once, compare the likeliest next tokens with those at temperature 1: scaled, they are farther apart."""
        async with self._scaling:
            if self._scales:
                return
            probe = {**body, "max_tokens": 1, "logprobs": 2, "return_tokens_as_token_ids": True}
            at_one = _spread(
                await self._client.post("/v1/completions", {**probe, "temperature": 1.0})
            )
            as_sampled = _spread(await self._client.post("/v1/completions", probe))
            temperature: float = body["temperature"]
            if abs(as_sampled - at_one) < abs(as_sampled - at_one / temperature):
                raise PolicyError(
                    f"{self._client.base_url} returns log-probabilities without the temperature {temperature:g} that "
                    "it samples at: start it with --logprobs-mode processed_logprobs, or train at temperature 1."
                )
            self._scales = True

    def _read(self, reply: Any) -> Completion:
        """Take ids and log-probabilities from a reply. An answer without them is an error, never an empty text."""
        url = f"{self._client.base_url}/v1/completions"
        try:
            choice = reply["choices"][0]
            token_ids, finish_reason = choice["token_ids"], choice["finish_reason"]
            logprobs = (choice["logprobs"] or {}).get("token_logprobs")
        except (KeyError, IndexError, TypeError) as error:
            raise PolicyError(
                f"{url} returned no completion with token ids: use a server that knows return_token_ids "
                "(vLLM 0.10.2 or later)."
            ) from error
        if finish_reason not in ("stop", "length"):
            raise OutageError(
                f"{url} gave up on a completion: its finish_reason is {finish_reason!r}."
            )
        if not token_ids:
            raise PolicyError(
                f"{url} returned a completion without token ids, finish_reason {finish_reason!r}."
            )
        return make_completion(self.tokenizer, token_ids, logprobs, finish_reason == "stop", url)


def request_body(model: str, prompt_ids: list[int], sampling: Sampling) -> dict[str, Any]:
    """What ``/v1/completions`` is asked."""
    body = {
        "model": model,
        "prompt": prompt_ids,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "logprobs": 0,
        "return_token_ids": True,
    }
    return body if sampling.seed is None else {**body, "seed": sampling.seed}


def _spread(reply: Any) -> float:
    """How far the two likeliest next tokens are apart, nats."""
    likeliest = sorted(reply["choices"][0]["logprobs"]["top_logprobs"][0].values(), reverse=True)
    return float(likeliest[0] - likeliest[1])
