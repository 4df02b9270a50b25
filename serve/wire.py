"""The API's format: requests as pydantic models, and the objects of answers."""

import secrets
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field
from sqlalchemy.exc import OperationalError
from starlette.responses import JSONResponse

from atommem.errors import (
    AtomMemError,
    ConfigError,
    DataError,
    OutageError,
    PolicyError,
    PromptTooLongError,
)
from atommem.memory.log import Entry
from atommem.process import StepTimeoutError
from atommem.serve.conversations import BusyError
from atommem.serve.schema import ConversationInfo, Event, KeyReusedError, NotFoundError
from atommem.text_safety import clean

_RETRY_AFTER = {429: "1", 503: "5"}  # seconds, by status
_STATUS: list[tuple[type[Exception], int, str]] = [
    (NotFoundError, 404, "not_found"),
    (BusyError, 429, "too_busy"),
    (KeyReusedError, 422, "idempotency_key_reused"),
    (PromptTooLongError, 400, "context_length_exceeded"),
    (DataError, 400, "invalid_request"),
    (ConfigError, 400, "invalid_request"),
    (OutageError, 503, "policy_unreachable"),
    (StepTimeoutError, 503, "policy_too_slow"),
    (OperationalError, 503, "database_unreachable"),
    (PolicyError, 502, "policy_refused"),
]
"""Status and code by type of error; the first match counts."""
SERVE_ERRORS = (
    AtomMemError,
    StepTimeoutError,
    OperationalError,
)  # errors with a message for the client
CLEAN = AfterValidator(clean)  # after bounds of the length, whose errors would count "items"
Text = Annotated[str, CLEAN]
NonBlank = Annotated[Text, Field(pattern=r"\S")]
Name = Annotated[str, Field(max_length=1000), CLEAN]
ConversationId = Annotated[str, Field(max_length=64), CLEAN]
Number = Annotated[int, Field(ge=0, le=2**31 - 1)]
_Value = Annotated[str, Field(max_length=4096), CLEAN]
Metadata = Annotated[dict[ConversationId, _Value], Field(max_length=16)]


class TextPart(BaseModel):
    """A part of a message. Images, files and URLs are refused."""

    type: Literal["text", "input_text", "output_text"] = "input_text"
    text: Text


class Message(BaseModel):
    """A message or a text to read; each part is read in steps of its own."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"] = "user"
    content: Text | list[TextPart]
    name: Name = ""  # source name of its text; by default its id

    @property
    def texts(self) -> list[str]:
        if isinstance(self.content, str):
            return [self.content]
        return [part.text for part in self.content]

    @property
    def parts(self) -> list[str]:
        """Its texts as read: without blank ones, and after the role unless that is user."""
        texts = [text for text in self.texts if text.strip()]
        if texts and self.role != "user":
            texts[0] = f"{self.role}: {texts[0]}"
        return texts

    def body(self) -> dict[str, Any]:
        if not self.parts:
            raise DataError("an item is blank: there is nothing to read.")
        item_id = f"msg_{secrets.token_hex(16)}"
        return {"id": item_id, "role": self.role, "parts": self.parts, "name": self.name}


Items = Annotated[list[Message], Field(min_length=1, max_length=20)]


def _as_items(value: Any) -> Any:
    return [{"content": value}] if isinstance(value, str) else value


def _as_id(value: Any) -> Any:
    return value.get("id") or value if isinstance(value, dict) else value


class AskCreate(BaseModel):
    """Fields of both bodies that ask: the last message asks, those before it are read."""

    model: Name | None = None
    conversation: Annotated[ConversationId | None, BeforeValidator(_as_id)] = None
    stream: bool = False
    messages: Annotated[list[Message], Field(min_length=1, max_length=2000)]


class ResponseCreate(AskCreate):
    """Body of ``POST /v1/responses``."""

    messages: Annotated[Items, BeforeValidator(_as_items), Field(alias="input")]


class ChatCreate(AskCreate):
    """Body of ``POST /v1/chat/completions``; a conversation reads only new messages."""


def public_error(error: Exception) -> tuple[int, str, str]:
    """Return status, code and message for the client.

    Messages of failing servers behind this one are left out: they may name internal machines.
    """
    for kind, status, code in _STATUS:
        if isinstance(error, kind):
            message = str(error) if status < 500 else f"{code.replace('_', ' ')}. Try again later."
            return status, code, message
    return 500, "server_error", "the server failed."


def error_response(status: int, code: str, message: str, param: str | None = None) -> JSONResponse:
    kind = "invalid_request_error" if status < 500 else "server_error"
    headers = {"Retry-After": _RETRY_AFTER[status]} if status in _RETRY_AFTER else {}
    body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return JSONResponse(body, status, headers)


def conversation_object(info: ConversationInfo) -> dict[str, Any]:
    return {
        "id": info.id,
        "object": "conversation",
        "created_at": info.created_at,
        "metadata": info.metadata,
    }


def item_object(event: Event, unread: Container[int] = ()) -> dict[str, Any]:
    """Return a text, question or answer as OpenAI's message item."""
    body = event.body
    response = event.response or f"resp_{event.version}"
    if event.kind == "answer":
        return answer_message(response, body["text"], body.get("note", ""))
    if event.kind == "ask":
        return _item(f"msg_q{response.removeprefix('resp_')}", "user", [body["question"]])
    status = "in_progress" if event.version in unread else "completed"
    name = {"name": body["name"]} if body["name"] else {}
    item = _item(body["id"], body["role"], body["parts"], status)
    return {**item, "created_at": event.created_at, **name}


def _item(
    item_id: str, role: str, texts: Sequence[str], status: str = "completed"
) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text} for text in texts]
    return {"id": item_id, "type": "message", "role": role, "status": status, "content": content}


def answer_message(response: str, text: str | None, note: str = "") -> dict[str, Any]:
    """Return the message of an answer, with a ``note`` if there is one (see `Answer`)."""
    return {
        "id": f"msg_a{response.removeprefix('resp_')}",
        "type": "message",
        "role": "assistant",
        "status": "incomplete" if text is None else "completed",
        "content": [{"type": "output_text", "text": text or "", "annotations": []}],
        **({"note": note} if note else {}),
    }


def page(data: Sequence[Mapping[str, Any]], limit: int | None = None) -> dict[str, Any]:
    """Return OpenAI's list of the first `limit` objects, with the ids to continue from."""
    shown = list(data[:limit])
    ids = [item.get("id") for item in shown] or [None]
    return {
        "object": "list",
        "data": shown,
        "has_more": len(data) > len(shown),
        "first_id": ids[0],
        "last_id": ids[-1],
    }


def entry_object(entry: Entry) -> dict[str, Any]:
    return {name: value for name, value in asdict(entry).items() if value is not None}
