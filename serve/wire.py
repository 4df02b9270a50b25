"""The API's format: requests as pydantic models, and the objects of answers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError
from sqlalchemy.exc import OperationalError
from starlette.responses import JSONResponse

from atommem import errors
from atommem.memory.log import Entry
from atommem.process import StepTimeoutError
from atommem.saved_memory import SCOPE
from atommem.serve.conversations import BusyError
from atommem.serve.items import MAX_DEPTH, Item, parse_items, refusal, texts_of, unread_parts
from atommem.serve.schema import ConversationInfo, KeyReusedError, NotFoundError
from atommem.text_safety import clean, clean_json

_RETRY_AFTER = {429: "1", 503: "5"}  # seconds, by status
_STATUS: list[tuple[type[Exception], int, str]] = [
    (NotFoundError, 404, "not_found"),
    (BusyError, 429, "too_busy"),
    (KeyReusedError, 422, "idempotency_key_reused"),
    (errors.PromptTooLongError, 400, "context_length_exceeded"),
    (errors.DataError, 400, "invalid_request"),
    (errors.ConfigError, 400, "invalid_request"),
    (errors.OutageError, 503, "policy_unreachable"),
    (StepTimeoutError, 503, "policy_too_slow"),
    (OperationalError, 503, "database_unreachable"),
    (errors.PolicyError, 502, "policy_refused"),
]
"""Status and code by type of error; the first match counts."""

SERVE_ERRORS = (errors.AtomMemError, StepTimeoutError, OperationalError)
"""Errors with a message for the client."""


def _not_blank(text: str) -> str:
    if not text.strip():
        raise refusal("", "it is blank")
    return text


CLEAN = AfterValidator(clean)  # after bounds of the length, whose errors would count "items"
Text = Annotated[str, CLEAN]
NonBlank = Annotated[Text, AfterValidator(_not_blank)]
Name = Annotated[str, Field(max_length=1000), CLEAN]
ConversationId = Annotated[str, Field(max_length=64), CLEAN]
Number = Annotated[int, Field(ge=0, le=2**31 - 1)]
Value = Annotated[str, Field(max_length=4096), CLEAN]
Metadata = Annotated[dict[ConversationId, Value], Field(max_length=16)]


def _written(items: list[Item]) -> list[Item]:
    """Refuse texts of the user that are blank: there is nothing to read or keep."""
    for number, item in enumerate(items):
        is_text = item["type"] == "message" and item["role"] == "user"
        if is_text and not (texts_of(item) or unread_parts(item)):
            raise refusal(f"[{number}]", "the item is blank. Leave it out")
    return items


Input = Annotated[list[Any], BeforeValidator(parse_items)]
Items = Annotated[Input, Field(max_length=20), AfterValidator(_written)]  # as OpenAI's at most 20
_Messages = Annotated[Input, Field(min_length=1, max_length=2000)]


class ConversationCreate(BaseModel, extra="forbid"):
    """Body of ``POST /v1/conversations``."""

    metadata: Metadata | None = None
    items: Items | None = None


class ConversationUpdate(BaseModel, extra="forbid"):
    """Body of ``POST /v1/conversations/ID``."""

    metadata: Metadata


class ItemsCreate(BaseModel, extra="forbid"):
    """Body of ``POST /v1/conversations/ID/items``; texts with the names `replace` are deleted."""

    items: Items
    replace: list[Name] = []


class EntryCreate(BaseModel, extra="forbid"):
    """Body of ``POST /v1/conversations/ID/entries``; `replace` as of items."""

    text: NonBlank
    name: Name = ""
    replace: list[Name] = []


class EntryUpdate(BaseModel, extra="forbid"):
    """Body of ``POST /v1/conversations/ID/entries/ENTRY``; the log keeps the `reason`."""

    text: NonBlank
    reason: Name = ""


class FileExtract(BaseModel, extra="forbid"):
    """Body of ``POST /v1/extract``; `data` is the file's content in base64."""

    name: Name
    data: str


def _as_id(value: Any) -> Any:
    return value.get("id") or value if isinstance(value, dict) else value


_HARMLESS = frozenset(
    """
    temperature top_p seed presence_penalty frequency_penalty max_tokens max_completion_tokens
    max_output_tokens max_tool_calls instructions parallel_tool_calls reasoning
    reasoning_effort verbosity truncation include service_tier store user safety_identifier
    prompt_cache_key prompt_cache_retention prompt_cache_options stream_options context_management
    """.split()  # noqa: SIM905
)
"""Parameters of OpenAI's API that are accepted and echoed: the policy samples as it was set up."""
_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "background": (False,),
    "tools": ([],),
    "functions": ([],),
    "n": (1,),
    "tool_choice": ("auto", "none"),
    "function_call": ("auto", "none"),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "modalities": (["text"],),
    "logit_bias": ({},),
    "stop": ([], ""),
    **dict.fromkeys(("prompt", "audio", "prediction", "web_search_options", "moderation"), ()),
    **dict.fromkeys(("text", "response_format"), ()),  # of the type text
}
"""Parameters that change what an answer is, with the values that are supported."""


class AskCreate(BaseModel, extra="allow"):
    """Fields of both bodies that ask: the last message asks, those before it are read."""

    model: Name | None = None
    conversation: Annotated[ConversationId | None, BeforeValidator(_as_id)] = None
    metadata: Metadata | None = None
    stream: bool | None = False
    messages: _Messages

    @model_validator(mode="after")
    def _check_parameters(self) -> Self:
        extra = self.model_extra or {}
        for name, value in extra.items():
            extra[name] = clean_json(value, MAX_DEPTH)
            if name in ("text", "response_format") and isinstance(value, dict):
                kind = value.get("format", value)
                fits = not kind or (isinstance(kind, dict) and kind.get("type", "text") == "text")
            else:
                fits = name in _HARMLESS or value in _SUPPORTED.get(name, ())
            if value is not None and not fits:
                code, fix = "unknown_parameter", "not a parameter"
                if name in _SUPPORTED:
                    code = "unsupported_parameter"
                    fix = f"{json.dumps(value)[:80]} is not supported"
                raise PydanticCustomError(code, "{fix}. Leave it out.", {"name": name, "fix": fix})
        return self

    @property
    def echo(self) -> dict[str, Any]:
        """The parameters that a response repeats."""
        given = {**(self.model_extra or {}), "stream_options": None}
        given = {name: value for name, value in given.items() if value is not None}
        return {**given, "metadata": self.metadata or {}}


class ResponseCreate(AskCreate):
    """Body of ``POST /v1/responses``."""

    messages: Annotated[_Messages, Field(alias="input")]
    previous_response_id: Name | None = None
    store: bool | None = True

    @property
    def echo(self) -> dict[str, Any]:
        own = {"previous_response_id": self.previous_response_id, "store": self.store}
        return {**super().echo, **own}


def _speakers(value: Any) -> Any:
    """Turn the `name` of chat messages, who speaks, into a field of its own: a text has a name."""
    for message in value if isinstance(value, list) else ():
        if isinstance(message, dict) and message.get("role") in ("user", "assistant"):
            message |= {"speaker": message.pop("name", None)}
    return value


class ChatCreate(AskCreate):
    """Body of ``POST /v1/chat/completions``; a conversation reads only new messages."""

    messages: Annotated[_Messages, BeforeValidator(_speakers)]
    stream_options: dict[str, Any] | None = None


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


def scope_of(*values: str | None) -> dict[str, str]:
    """Return the metadata of `SCOPE` that conversations with these values have."""
    return {name: value for name, value in zip(SCOPE, values, strict=True) if value}


def conversation_object(info: ConversationInfo) -> dict[str, Any]:
    shown = {name: value for name, value in vars(info).items() if name != "owner"}
    return {**shown, "object": "conversation"}


def page(data: Sequence[Mapping[str, Any]], limit: int | None = None) -> dict[str, Any]:
    """Return OpenAI's list of the first `limit` objects, with the ids to continue from."""
    shown = list(data[:limit])
    ids = [item.get("id") for item in shown] or [None]
    more = {"has_more": len(data) > len(shown), "first_id": ids[0], "last_id": ids[-1]}
    return {"object": "list", "data": shown, **more}


def entry_object(entry: Entry, **more: Any) -> dict[str, Any]:
    return {name: value for name, value in asdict(entry).items() if value is not None} | more
