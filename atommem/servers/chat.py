"""OpenAI's ``/v1/chat/completions``, as hosted and local servers speak it: what the chat policy and the judge ask."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from atommem.servers.client import RefusedError, ServerClient
from atommem.text_safety import clean

_UNKNOWN = ("unsupported_parameter", "unsupported_value", "unknown_parameter")
_OPTIONAL = ("temperature", "top_p", "top_k", "seed")
_CUT = ("length", "max_tokens")
_BROKEN = ("abort", "error")


@dataclass(frozen=True, slots=True)
class ChatReply:
    """What a server replied.

    Attributes:
        text: The message's content; empty where there is none.
        reasoning: What a server with a reasoning parser returns beside it.
        finish_reason: ``content_filter`` also where the model or its provider refused; ``error`` where the reply is no
            chat completion, or one that the server gave up.
        prompt_tokens, completion_tokens: As the server counted them; None where it does not say.
    """

    text: str
    reasoning: str = ""
    finish_reason: Literal["stop", "length", "content_filter", "error"] = "stop"
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class ChatClient:
    """Asks one server. Settings that it says it does not know are left out from then on, and said once.

    Args:
        client: Of the server; closed by who made it.
    """

    def __init__(self, client: ServerClient) -> None:
        self.client = client
        self._renamed: dict[str, str] = {}
        self._dropped: set[str] = set()

    async def ask(
        self,
        model: str,
        messages: Sequence[Mapping[str, str]],
        *,
        max_tokens: int,
        temperature: float,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int | None = None,
    ) -> ChatReply:
        """One reply to `messages` (each a ``role`` and its ``content``).

        Raises:
            RefusedError: The server refused the request.
            OutageError: The server is out of reach, or keeps failing.
        """
        body: dict[str, Any] = {
            "model": model,
            "messages": list(messages),
            "max_tokens": max_tokens,
        }
        # Only what differs from every server's default: hosted ones refuse fields that they do not know.
        body |= {"temperature": temperature} | ({} if top_p == 1.0 else {"top_p": top_p})
        body |= ({} if top_k == 0 else {"top_k": top_k}) | ({} if seed is None else {"seed": seed})
        while True:
            sent = {
                self._renamed.get(name, name): value
                for name, value in body.items()
                if name not in self._dropped
            }
            try:
                return _read(await self.client.post("/v1/chat/completions", sent))
            except RefusedError as error:
                if not self._adapt(error, sent):
                    raise

    def _adapt(self, error: RefusedError, sent: Mapping[str, Any]) -> bool:
        """Whether the request may be sent again without what the server says that it does not take."""
        if error.code not in _UNKNOWN or error.param not in sent:
            return False
        if error.param == "max_tokens":
            self._renamed["max_tokens"] = "max_completion_tokens"  # OpenAI's reasoning models
            return True
        if error.param not in _OPTIONAL:
            return False
        self._dropped.add(error.param)
        warnings.warn(
            f"{self.client.base_url} takes no {error.param} and samples in its own way: {error}",
            stacklevel=2,
        )
        return True


def _read(reply: Any) -> ChatReply:
    try:
        choice, usage = reply["choices"][0], reply.get("usage") or {}
        message = choice["message"]
        content, reason = message.get("content"), choice.get("finish_reason")
        if isinstance(content, list):
            content = "".join(str(part.get("text") or "") for part in content)
        reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
        tokens = (usage.get("prompt_tokens"), usage.get("completion_tokens"))
        refused = bool(message.get("refusal"))
    except (LookupError, TypeError, AttributeError):
        return ChatReply(clean(str(reply)[:500]), finish_reason="error")
    text, reasoning = clean(str(content or "")), clean(str(reasoning))
    if refused or reason == "content_filter":
        return ChatReply("", reasoning, "content_filter", *tokens)
    if reason in _BROKEN:
        return ChatReply(text, reasoning, "error", *tokens)
    return ChatReply(text, reasoning, "length" if reason in _CUT else "stop", *tokens)
