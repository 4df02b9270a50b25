"""The API's format: requests as pydantic models, answers as objects of `openai.types`."""

from __future__ import annotations

import secrets
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from openai.types.conversations import Message as ItemMessage
from openai.types.responses import (
    Response,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseReasoningItem,
)
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field
from starlette.responses import JSONResponse

from atommem.episode import Step
from atommem.errors import (
    AtomMemError,
    ConfigError,
    DataError,
    OutageError,
    PolicyError,
    PromptTooLongError,
)
from atommem.memory.log import Entry, Operation, Outcome
from atommem.rollout import StepTimeoutError
from atommem.serve.conversation import Answer, BusyError
from atommem.serve.conversation_log import (
    ConflictError,
    ConversationInfo,
    Event,
    KeyReusedError,
    NotFoundError,
)
from atommem.text_safety import clean

RETRY_AFTER = {429: "1", 503: "5"}
"""Seconds, by status."""
_STATUS: list[tuple[type[Exception], int, str]] = [
    (NotFoundError, 404, "not_found"),
    (BusyError, 429, "too_busy"),
    (ConflictError, 409, "conflict"),
    (KeyReusedError, 422, "idempotency_key_reused"),
    (PromptTooLongError, 400, "context_length_exceeded"),
    (DataError, 400, "invalid_request"),
    (ConfigError, 400, "invalid_request"),
    (OutageError, 503, "policy_unreachable"),
    (StepTimeoutError, 503, "policy_too_slow"),
    (PolicyError, 502, "policy_refused"),
]
"""Status and code by type of error; the first match counts."""
SERVE_ERRORS = (AtomMemError, StepTimeoutError)
"""Errors with a message for the client."""
Text = Annotated[str, AfterValidator(clean)]
NonBlank = Annotated[str, Field(pattern=r"\S"), AfterValidator(clean)]
Name = Annotated[str, Field(max_length=200), AfterValidator(clean)]
ConversationId = Annotated[str, Field(max_length=64), AfterValidator(clean)]
Number = Annotated[int, Field(ge=0, le=2**31 - 1)]
_Key = Annotated[str, Field(max_length=64), AfterValidator(clean)]
_Value = Annotated[str, Field(max_length=4096), AfterValidator(clean)]
Metadata = Annotated[dict[_Key, _Value], Field(max_length=16)]


class TextPart(BaseModel):
    """A part of a message. Images, files and URLs are refused."""

    type: Literal["text", "input_text", "output_text"] = "input_text"
    text: Text


class Message(BaseModel):
    """A message or a text to read; each part is read in steps of its own."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"] = "user"
    content: Text | list[TextPart]
    name: Name = ""
    """Source name of its text; by default its id."""

    @property
    def texts(self) -> list[str]:
        """Its texts as sent."""
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
        """Return the body of the event of a new item."""
        if not self.parts:
            raise DataError("an item is blank: there is nothing to read.")
        item_id = f"msg_{secrets.token_hex(16)}"
        return {"id": item_id, "role": self.role, "parts": self.parts, "name": self.name}


Items = Annotated[list[Message], Field(min_length=1, max_length=20)]


def _as_items(value: Any) -> Any:
    return [{"content": value}] if isinstance(value, str) else value


def _as_id(value: Any) -> Any:
    return value.get("id") if isinstance(value, dict) else value


class AskCreate(BaseModel):
    """Fields of both bodies that ask."""

    model: Name | None = None
    conversation: Annotated[ConversationId | None, BeforeValidator(_as_id)] = None
    stream: bool = False


class ResponseCreate(AskCreate):
    """Body of ``POST /v1/responses``: the last message asks, those before it are read."""

    messages: Annotated[Items, BeforeValidator(_as_items), Field(alias="input")]


class ChatCreate(AskCreate):
    """Body of ``POST /v1/chat/completions``; a conversation reads only new messages."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=2000)]


class IncompleteDetails(BaseModel):
    """Why a response is incomplete: ``no_answer`` or ``interrupted``."""

    reason: str


class MemoryResponse(Response):
    """OpenAI's response, with the entries shown when it was answered."""

    created_at: int  # clients in typed languages refuse 1.0
    incomplete_details: IncompleteDetails | None = None  # type: ignore[assignment]
    memory: list[dict[str, Any]] | None = None


@dataclass
class ResponseBuilder:
    """Make the objects of one response.

    Attributes:
        response: Its id.
        model: Name of the model.
        conversation: Id of the conversation, if there is one.
        created_at: Seconds since 1970.
    """

    response: str
    model: str
    conversation: str | None
    created_at: int = field(default_factory=lambda: int(time.time()))

    def unanswered(self, status: str, **values: Any) -> MemoryResponse:
        """Return the response without output; `values` are further fields."""
        unset = ["error", "incomplete_details", "instructions", "previous_response_id"]
        unset += ["temperature", "top_p", "usage"]
        conversation = None if self.conversation is None else {"id": self.conversation}
        found: dict[str, Any] = {
            **dict.fromkeys(unset),
            "id": self.response,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "model": self.model,
            "conversation": conversation,
            "metadata": {},
            "output": [],
            "parallel_tool_calls": False,
            "tool_choice": "none",
            "tools": [],
        }
        return MemoryResponse.model_validate(found | values)

    def answered(self, answer: Answer, summaries: Sequence[str]) -> MemoryResponse:
        """Return the response of an answer; `summaries` describe its steps."""
        prompt, completion = token_counts(answer)
        usage = {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": completion,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + completion,
        }
        found = self.unanswered(
            "completed",
            usage=usage,
            memory=[entry_object(entry) for entry in answer.entries],
        )
        found.output = [self.reasoning(summaries), answer_message(self.response, answer.text)]
        return found if answer.text is not None else self.incomplete(found, "no_answer")

    @staticmethod
    def incomplete(response: MemoryResponse, reason: str) -> MemoryResponse:
        """Return `response` as incomplete."""
        response.status, response.incomplete_details = (
            "incomplete",
            IncompleteDetails(reason=reason),
        )
        return response

    def reasoning(
        self, summaries: Sequence[str], status: str = "completed"
    ) -> ResponseReasoningItem:
        """Return the reasoning item that describes the steps."""
        found = {
            "id": f"rs_{self.response.removeprefix('resp_')}",
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": text} for text in summaries],
            "status": status,
        }
        return ResponseReasoningItem.model_validate(found)


def to_json(value: BaseModel) -> dict[str, Any]:
    """Return an object of `openai.types` as JSON values, without fields that were not set."""
    return value.model_dump(mode="json", exclude_unset=True, serialize_as_any=True)


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
    """Return an error in OpenAI's format."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    headers = {"Retry-After": RETRY_AFTER[status]} if status in RETRY_AFTER else {}
    body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return JSONResponse(body, status, headers)


def conversation_object(info: ConversationInfo) -> dict[str, Any]:
    """Return a conversation in OpenAI's format."""
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
        return to_json(answer_message(response, body["text"]))
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
    found = {"id": item_id, "type": "message", "role": role, "status": status, "content": content}
    return to_json(ItemMessage.model_validate(found))


def answer_message(response: str, text: str | None) -> ResponseOutputMessage:
    """Return the message of an answer."""
    return ResponseOutputMessage(
        id=f"msg_a{response.removeprefix('resp_')}",
        type="message",
        role="assistant",
        status="incomplete" if text is None else "completed",
        content=[ResponseOutputText(type="output_text", text=text or "", annotations=[])],
    )


def token_counts(answer: Answer) -> tuple[int, int]:
    """Return prompt and completion tokens of all steps."""
    return (
        sum(step.prompt_tokens for step in answer.steps),
        sum(step.completion_tokens for step in answer.steps),
    )


def listing(data: Sequence[Mapping[str, Any]], limit: int | None = None) -> dict[str, Any]:
    """Return a list of the first `limit` objects, and whether there are more."""
    shown = list(data[:limit])
    return {"object": "list", "data": shown, "has_more": len(data) > len(shown)}


def page(data: Sequence[Mapping[str, Any]], limit: int | None = None) -> dict[str, Any]:
    """Return OpenAI's list: `listing` with the ids to continue from."""
    found = listing(data, limit)
    ids = [item["id"] for item in found["data"]]
    return {**found, "first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None}


def entry_object(entry: Entry) -> dict[str, Any]:
    """Return an entry with its statistics and source."""
    return {name: value for name, value in asdict(entry).items() if value is not None}


def step_summary(step: Step) -> str:
    """Return what a step did, as text of the reasoning summary."""
    done = [_describe(item) for item in step.operations if item.kind != "retrieve"]
    text = f"step {step.index}, {step.observation.label}: {'; '.join(done) or 'nothing written'}"
    if step.operations:
        text += f"; shown next: {len(step.operations[-1].scores)} entries"
    return text


def _describe(operation: Operation) -> str:
    entry = "" if operation.entry_id is None else f" entry {operation.entry_id}"
    outcome = "" if operation.outcome is Outcome.APPLIED else f" ({operation.outcome})"
    text = "" if operation.after is None else f": {operation.after}"
    return f"{operation.kind}{entry}{outcome}{text}"
