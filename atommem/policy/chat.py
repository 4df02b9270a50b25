"""A policy behind any OpenAI-compatible ``/v1/chat/completions``: messages in, text out, no token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

from atommem.errors import OutageError, PolicyError
from atommem.policy.contract import Completion, Sampling
from atommem.policy.served import ServedPolicy
from atommem.servers.chat import ChatClient
from atommem.servers.client import ClientOptions, RefusedError
from atommem.tokens import ApproximateTokenizer

if TYPE_CHECKING:
    from atommem.tokens import Tokenizer


class ChatPolicy(ServedPolicy):
    """Samples from a hosted or local model that takes messages. It can be evaluated and used, not trained.

    What the model's server puts apart as its reasoning is not part of the completion, as it is not of the prompt.

    Args:
        base_url: The server, with or without the closing ``/v1``.
        model: The model's name there; None asks ``/v1/models``, which must list exactly one.
        tokenizer: Measures chunks and memory; None counts roughly (`atommem.tokens`). Nothing of it is sent.
        options: Of the `ServerClient`.

    Raises:
        ConfigError: `base_url` is no http(s) URL, or its key (ATOMMEM_POLICY_API_KEY) may not be sent there.
    """

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__(
            base_url, model, ApproximateTokenizer() if tokenizer is None else tokenizer, options
        )
        self._chat = ChatClient(self._client)

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        """Not to be had of a chat server.

        Raises:
            PolicyError: Always.
        """
        raise PolicyError(
            f"{self._client.base_url} takes messages, no token ids: use a ServerPolicy on a server that has "
            "/v1/completions with return_token_ids (vLLM), or a method that asks with messages."
        )

    async def complete_chat(
        self, messages: Sequence[Mapping[str, str]], sampling: Sampling
    ) -> Completion:
        """Sample one completion of `messages` (each a ``role`` and its ``content``).

        Returns:
            Its text, without token ids and log-probabilities, and the server's token counts. A refusal (of the model,
            or of a content filter) is an empty completion with finish reason ``content_filter``.

        Raises:
            OutageError: The server is out of reach, keeps failing, or gave up on the request.
            PromptTooLongError: The prompt does not fit the model's context.
            UnknownModelError: The server does not know the model's name.
            PolicyError: The server refused the key, or the request for another reason than what it says.
        """
        model = await self.model_name()
        try:
            reply = await self._chat.ask(
                model,
                messages,
                max_tokens=sampling.max_tokens,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                seed=sampling.seed,
            )
        except RefusedError as error:
            if error.filtered and not error.too_long:
                return Completion([], [], "", "content_filter")
            raise self._refused(error, model, "a prompt") from error
        if reply.finish_reason == "error":
            raise OutageError(
                f"{self._client.base_url} returned no chat completion: {reply.text[:200]!r}."
            )
        return Completion(
            [], [], reply.text, reply.finish_reason, reply.prompt_tokens, reply.completion_tokens
        )
