"""A chat server in memory: an httpx transport that answers ``/v1/chat/completions``."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import httpx

Reply = str | int | Exception | Mapping[str, Any] | httpx.Response
"""A text; an HTTP status; an exception to raise; a choice of a reply; or a response as it is."""


def refusal(status: int, message: str = "no", **more: str) -> httpx.Response:
    """How OpenAI words it; `more` are ``code`` and ``param``."""
    return httpx.Response(status, json={"error": {"message": message, **more}})


def choice(content: Any, finish_reason: str = "stop", **more: Any) -> dict[str, Any]:
    """One choice of a reply; `more` are fields of its message, such as ``refusal``."""
    message = {"role": "assistant", "content": content, **more}
    return {"message": message, "finish_reason": finish_reason}


class FakeChat:
    """Sends the scripted replies and repeats the last, or calls a function of a request's body."""

    def __init__(
        self, *replies: Reply, answer: Callable[[dict[str, Any]], Reply] | None = None
    ) -> None:
        self.replies = list(replies)
        self.bodies: list[dict[str, Any]] = []
        self._answer = answer
        self.transport = httpx.MockTransport(self._handle)

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "only"}]})
        assert request.url.path == "/v1/chat/completions"
        body = json.loads(request.content)
        self.bodies.append(body)
        if self._answer is not None:
            reply = self._answer(body)
        else:
            reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, int):
            return refusal(reply)
        if isinstance(reply, httpx.Response):
            return reply
        found = choice(reply) if isinstance(reply, str) else reply
        usage = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
        # JSON in ASCII, as of servers that may send half a surrogate pair.
        return httpx.Response(200, content=json.dumps({"choices": [found], "usage": usage}))
