"""A conversation as JSON lines: to be kept elsewhere, moved, or looked at."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from atommem.errors import DataError, TraceError
from atommem.memory.log import Operation, replay
from atommem.serve.conversation_log import ConversationLog
from atommem.serve.log_rows import About, Event, RequestKey
from atommem.serve.wire import Metadata
from atommem.untrusted import read_json

FORMAT = 1
_DEEPEST = 100
"""More than what a call's arguments may be nested, which stand in an event."""
_Number = Annotated[int, Field(ge=0, le=2**30, strict=True)]
"""Half of what a column holds: what the conversation goes on with has room."""
_Label = Annotated[str, Field(max_length=64)]
_OPERATION = TypeAdapter(Operation)


class _Item(BaseModel, extra="forbid"):
    id: _Label
    role: Literal["user", "assistant", "system", "developer"]
    parts: Annotated[list[str], Field(min_length=1)]
    name: Annotated[str, Field(max_length=200)]
    questions: list[str]


class _Ask(BaseModel, extra="forbid"):
    question: str


class _Answer(BaseModel, extra="forbid"):
    text: str | None
    entries: list[_Number]


_BODIES: dict[str, type[BaseModel]] = {"item": _Item, "ask": _Ask, "answer": _Answer}


class _Event(BaseModel):
    kind: Literal[
        "item", "ask", "step", "answer", "stopped", "edit", "deleted", "moved", "fork", "feedback"
    ]
    body: dict[str, Any]
    version: _Number
    created_at: Annotated[int, Field(ge=0, le=2**31 - 1, strict=True)]
    checkpoint: _Label
    step: _Number | None = None
    of: _Number | None = None
    chunks: _Number | None = None
    tokens: _Number | None = None


class _Place(BaseModel):
    seq: _Number
    version: _Number
    step: _Number
    kind: Annotated[str, Field(max_length=16)]
    entry_id: _Number | None = None
    handle: _Number | None = None
    actor: Annotated[str, Field(max_length=256)] = ""
    checkpoint: _Label
    embedder: Annotated[str, Field(max_length=256)]
    rest: dict[str, Any] = {}


class _Head(BaseModel):
    type: Literal["conversation"]
    format: Literal[1]
    metadata: Metadata


def exported(log: ConversationLog, conversation: str, owner: str) -> list[dict[str, Any]]:
    """The lines: the conversation, its events, its operations.

    Raises:
        NotFoundError: `owner` has none of this id.
    """
    about = log.about(conversation, owner)
    head = {
        "type": "conversation",
        "format": FORMAT,
        "created_at": about.created_at,
        "metadata": about.metadata,
    }
    events = [{"type": "event", **vars(event)} for event in log.events(conversation)]
    # It may go on meanwhile: operations of later events are not in it.
    operations = [row for row in log.operations(conversation, 0) if row["version"] <= len(events)]
    return [head, *events, *({"type": "operation", **row} for row in operations)]


def imported(
    log: ConversationLog, owner: str, text: str, request: RequestKey | None = None
) -> About:
    """Make the conversation that was exported as `text`, whole or not at all. What it had not read stays unread.

    Raises:
        DataError: It is no export, or its log contradicts itself.
    """
    try:
        head, *lines = [read_json(line, _DEEPEST) for line in text.split("\n") if line.strip()]
        metadata = _Head.model_validate(head).metadata
        events = [_event(line) for line in lines if line["type"] == "event"]
        rows = [line for line in lines if line["type"] == "operation"]
        places = [_Place.model_validate(row) for row in rows]
        operations = [_operation(row, place) for row, place in zip(rows, places, strict=True)]
        replay(operations)
        _check(events, places)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError, TraceError) as error:
        told = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise DataError(
            f"this is no exported conversation, or damaged: {type(error).__name__} {told}."
        ) from error
    made = [(place.version, place.checkpoint, place.embedder) for place in places]
    return log.restore(owner, metadata, events, operations, made, request)


def _event(line: dict[str, Any]) -> Event:
    event = _Event.model_validate(line)
    if event.kind in _BODIES:
        _BODIES[event.kind].model_validate(event.body)
    return Event(**event.model_dump())


def _operation(row: dict[str, Any], place: _Place) -> Operation:
    values = {item.name: row[item.name] for item in fields(Operation) if item.name in row}
    operation = _OPERATION.validate_python({**place.rest, **values})
    json.dumps([operation.score, operation.scores], allow_nan=False)  # a text may have been "nan"
    return operation


def _check(events: list[Event], places: list[_Place]) -> None:
    if [event.version for event in events] != list(range(1, len(events) + 1)):
        raise ValueError("versions are missing")
    taken = [event.step for event in events if event.step is not None]
    if len(set(taken)) != len(taken):
        raise ValueError("a step is there twice")
    if [place.seq for place in places] != list(range(len(places))):
        raise ValueError("operations are missing")
    if any(not 1 <= place.version <= len(events) for place in places):
        raise ValueError("an operation is of no event")
