"""What goes over the wire: the requests that are taken, and OpenAI's objects that answer them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field
from starlette.responses import JSONResponse

from atommem.episode import Step
from atommem.memory.log import Entry, Outcome
from atommem.serve.conversation import Answered
from atommem.serve.log_rows import About, Event
from atommem.untrusted import clean

RETRY_AFTER = {429: "1", 503: "5"}
"""Seconds after which to try again, by status."""
_ENTRY = tuple(item.name for item in fields(Entry))
Text = Annotated[str, AfterValidator(clean)]
Words = Annotated[str, Field(pattern=r"\S"), AfterValidator(clean)]
"""A `Text` that is not blank."""
Name = Annotated[str, Field(max_length=200), AfterValidator(clean)]
ConversationId = Annotated[str, Field(max_length=64), AfterValidator(clean)]
Number = Annotated[int, Field(ge=0, le=2**31 - 1)]
Metadata = Annotated[
    dict[
        Annotated[str, Field(max_length=64), AfterValidator(clean)],
        Annotated[str, Field(max_length=4096), AfterValidator(clean)],
    ],
    Field(max_length=16),
]


class TextPart(BaseModel):
    """A part of a message. Text only: pictures, files and URLs are refused."""

    type: Literal["text", "input_text", "output_text"] = "input_text"
    text: Text


class Message(BaseModel):
    """A message, or a text to be read. Parts are pieces: a step reads no two of them together."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"] = "user"
    content: Text | list[TextPart]
    name: Name = ""
    """What sources call it; its id by default."""

    @property
    def parts(self) -> list[str]:
        """Its texts, the speaker's role in front of what no user said."""
        texts = (
            [self.content]
            if isinstance(self.content, str)
            else [part.text for part in self.content]
        )
        said = [text for text in texts if text.strip()]
        return said if self.role == "user" or not said else [f"{self.role}: {said[0]}", *said[1:]]


Items = Annotated[list[Message], Field(min_length=1, max_length=20)]


class NewConversation(BaseModel):
    """``POST /v1/conversations``. ``goal`` in the metadata, a question a line, is shown while reading."""

    metadata: Metadata | None = None
    items: Items | None = None


class ConversationUpdate(BaseModel):
    """``POST /v1/conversations/{id}``."""

    metadata: Metadata


class NewItems(BaseModel):
    """``POST /v1/conversations/{id}/items``."""

    items: Items


class ConversationRef(BaseModel):
    """A conversation, as an object."""

    id: ConversationId


class Ask(BaseModel):
    """What asks: the last user message of ``input``; what stands before it is read."""

    model: Name | None = None
    input: Text | Items
    conversation: ConversationId | ConversationRef | None = None
    stream: bool = False

    @property
    def conversation_id(self) -> str | None:
        """The conversation's id, however it was given."""
        return (
            self.conversation.id
            if isinstance(self.conversation, ConversationRef)
            else self.conversation
        )

    @property
    def messages(self) -> list[Message]:
        """The input as messages."""
        return [Message(content=self.input)] if isinstance(self.input, str) else self.input


class Chat(BaseModel):
    """``POST /v1/chat/completions``. With a conversation, what it has read already is not read again."""

    model: Name | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=2000)]
    conversation: ConversationId | None = None
    stream: bool = False


def error_response(status: int, code: str, message: str, param: str | None = None) -> JSONResponse:
    """An error as OpenAI's clients read it."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    retry = {"Retry-After": RETRY_AFTER[status]} if status in RETRY_AFTER else {}
    body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return JSONResponse(body, status, retry)


def new_item(message: Message) -> dict[str, Any]:
    """The body of an item's event."""
    return {
        "id": f"msg_{secrets.token_hex(16)}",
        "role": message.role,
        "parts": message.parts,
        "name": message.name,
    }


def conversation_object(about: About) -> dict[str, Any]:
    """OpenAI's ``conversation``."""
    return {
        "id": about.id,
        "object": "conversation",
        "created_at": about.created_at,
        "metadata": about.metadata,
    }


def item_object(event: Event, unread: Container[int] = ()) -> dict[str, Any]:
    """OpenAI's ``message`` item: of a text, a question or an answer."""
    body = event.body
    if event.kind == "item":
        status = "in_progress" if event.version in unread else "completed"
        named = {"name": body["name"]} if body["name"] else {}
        return {
            **_message(body["id"], body["role"], body["parts"], status),
            "created_at": event.created_at,
            **named,
        }
    response = event.response or f"resp_{event.version}"
    if event.kind == "ask":
        return _message(f"msg_q{response.removeprefix('resp_')}", "user", [body["question"]])
    return answer_item(response, body["text"])


def answer_item(response: str, text: str | None) -> dict[str, Any]:
    """The ``message`` of an answer."""
    status = "completed" if text is not None else "incomplete"
    item = _message(f"msg_a{response.removeprefix('resp_')}", "assistant", [], status)
    return {**item, "content": [{"type": "output_text", "text": text or "", "annotations": []}]}


def _message(
    number: str, role: str, texts: Sequence[str], status: str = "completed"
) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text} for text in texts]
    return {"id": number, "type": "message", "role": role, "status": status, "content": content}


def listing(data: Sequence[Mapping[str, Any]], limit: int | None = None) -> dict[str, Any]:
    """The first of `data`, and whether there are more."""
    shown = list(data[:limit])
    return {"object": "list", "data": shown, "has_more": len(data) > len(shown)}


def page(data: Sequence[Mapping[str, Any]], limit: int | None = None) -> dict[str, Any]:
    """OpenAI's list: `listing`, with the ids to go on from."""
    found = listing(data, limit)
    ids = [item["id"] for item in found["data"]]
    return {**found, "first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None}


def entry_object(entry: Entry) -> dict[str, Any]:
    """An entry with its statistics and source."""
    held = {name: value for name in _ENTRY if (value := getattr(entry, name)) is not None}
    return held if entry.source is None else {**held, "source": asdict(entry.source)}


def step_summary(step: Step) -> str:
    """What a step did, in words: a part of the reasoning summary."""
    done = [_said(item) for item in step.operations if item.kind != "retrieve"]
    shown = f"; shown next: {len(step.operations[-1].scores)} entries" if step.operations else ""
    return f"step {step.index}, {step.observation.label}: {'; '.join(done) or 'nothing written'}{shown}"


def _said(operation: Any) -> str:
    entry = "" if operation.entry_id is None else f" entry {operation.entry_id}"
    fate = "" if operation.outcome is Outcome.APPLIED else f" ({operation.outcome})"
    text = "" if operation.after is None else f": {operation.after}"
    return f"{operation.kind}{entry}{fate}{text}"


def response_object(
    response: str,
    model: str,
    *,
    created_at: int | None = None,
    conversation: str | None = None,
    status: str = "completed",
    answered: Answered | None = None,
    summaries: Sequence[str] = (),
) -> dict[str, Any]:
    """OpenAI's ``response``; ``memory`` is ours: the entries that were shown when it was answered."""
    output: list[dict[str, Any]] = []
    extra: dict[str, Any] = {"usage": None}
    if answered is not None:
        status = "completed" if answered.text is not None else "incomplete"
        output = [
            reasoning_item(response, summaries, "completed"),
            answer_item(response, answered.text),
        ]
        details = {
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        }
        tokens = usage(answered, "input_tokens", "output_tokens") | details
        extra = {"usage": tokens, "memory": [entry_object(entry) for entry in answered.entries]}
    return {
        "id": response,
        "object": "response",
        "created_at": int(time.time()) if created_at is None else created_at,
        "status": status,
        "model": model,
        "conversation": None if conversation is None else {"id": conversation},
        "output": output,
        "error": None,
        "incomplete_details": {"reason": "no_answer"} if status == "incomplete" else None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": False,
        "previous_response_id": None,
        "temperature": None,
        "tool_choice": "none",
        "tools": [],
        "top_p": None,
        **extra,
    }


def usage(answered: Answered, read: str, written: str) -> dict[str, int]:
    """The tokens of all steps, under the names that a route has for them."""
    tokens = {
        read: sum(step.prompt_tokens for step in answered.steps),
        written: sum(step.completion_tokens for step in answered.steps),
    }
    return {**tokens, "total_tokens": sum(tokens.values())}


def reasoning_item(response: str, summaries: Sequence[str], status: str) -> dict[str, Any]:
    """The ``reasoning`` item that tells the steps."""
    parts = [{"type": "summary_text", "text": text} for text in summaries]
    return {
        "id": f"rs_{response.removeprefix('resp_')}",
        "type": "reasoning",
        "summary": parts,
        "status": status,
    }
