"""Client of OpenAI's ``/v1/chat/completions``, for the chat policy and the judge."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from atommem.servers.client import RefusedError, ServerClient
from atommem.text_safety import clean

_UNSUPPORTED = ("unsupported_parameter", "unsupported_value", "unknown_parameter")
_DEFAULTS = {"top_p": 1.0, "top_k": 0, "seed": None}
_FINISHED: Any = {"length": "length", "max_tokens": "length", "abort": "error", "error": "error"}


@dataclass(frozen=True, slots=True)
class ChatReply:
    """A server's reply, with its token counts if it has them.

    `reasoning` is separated by a server with a reasoning parser. ``content_filter`` also covers
    refusals by the model; ``error`` means an aborted reply or one that is not a chat completion.
    """

    text: str
    reasoning: str = ""
    finish_reason: Literal["stop", "length", "content_filter", "error"] = "stop"
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class ChatClient:
    """Ask one server for chat completions; the creator of `client` closes it.

    Parameters that the server reports as unsupported are dropped from then on, with one warning;
    where it refuses the system role, the system message is put before the user's from then on.
    """

    def __init__(self, client: ServerClient) -> None:
        self.client = client
        self._dropped: set[str] = set()
        self.folds_system = False

    async def ask(
        self, model: str, messages: Sequence[Mapping[str, str]], **settings: Any
    ) -> ChatReply:
        """Return one reply to `messages`; raises as `ServerClient.request` does.

        `settings` are ``max_tokens``, ``temperature``, ``top_p``, ``top_k`` and ``seed``. Hosted
        servers reject unknown fields, so what equals a default is not sent.
        """
        settings = {key: value for key, value in settings.items() if value != _DEFAULTS.get(key)}
        while True:
            sent = fold_system(messages) if self.folds_system else list(messages)
            body: dict[str, Any] = {"model": model, "messages": sent}
            body |= {name: value for name, value in settings.items() if name not in self._dropped}
            if "max_tokens" in self._dropped:  # OpenAI's reasoning models
                body["max_completion_tokens"] = settings["max_tokens"]
            try:
                return _read(await self.client.post("/v1/chat/completions", body))
            except RefusedError as error:
                if sent != fold_system(sent) and error.without_system_role:
                    self.folds_system = True
                    problem = "refuses the system role, so its text is put before the user's"
                elif error.code in _UNSUPPORTED and error.param in {*settings} - self._dropped:
                    self._dropped.add(error.param)
                    problem = f"does not support {error.param}; its default applies"
                else:
                    raise
                if error.param != "max_tokens":  # which has another name
                    warnings.warn(f"{self.client.base_url} {problem}: {error}", stacklevel=2)


def fold_system(messages: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """Return the messages with the system message's text before that of the first user's."""
    if len(messages) < 2 or messages[0]["role"] != "system":
        return list(messages)
    system, user, *others = messages
    return [{**user, "content": f"{system['content']}\n\n{user['content']}"}, *others]


def _read(reply: Any) -> ChatReply:
    try:
        choice, usage = reply["choices"][0], reply.get("usage") or {}
        message = choice["message"]
        content, reason = message.get("content"), choice.get("finish_reason")
        if isinstance(content, list):
            content = "".join(str(part.get("text") or "") for part in content)
        reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
        tokens = (usage.get("prompt_tokens"), usage.get("completion_tokens"))
        refused = bool(message.get("refusal")) or reason == "content_filter"
    except (LookupError, TypeError, AttributeError):
        return ChatReply(clean(str(reply)[:500]), finish_reason="error")
    text, reasoning = clean(str(content or "")), clean(str(reasoning))
    if refused:
        return ChatReply("", reasoning, "content_filter", *tokens)
    return ChatReply(text, reasoning, _FINISHED.get(reason, "stop"), *tokens)
