"""What no OpenAI server has: the memory itself, its log, its past, and its owner's hand in it."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import PlainTextResponse
from pydantic import AfterValidator, BaseModel, Field

from atommem.errors import DataError
from atommem.serve.log_rows import Event, called
from atommem.serve.openai_routes import Mine, Once, Owner, Served
from atommem.serve.transfer import exported, imported
from atommem.serve.wire import (
    ConversationId,
    Name,
    Number,
    Text,
    Words,
    conversation_object,
    entry_object,
    listing,
    page,
)
from atommem.text_safety import clean

router = APIRouter(prefix="/v1/conversations/{conversation}")
others = APIRouter(prefix="/v1")
At = Annotated[Number | None, Query(description="After so many operations; unset is now.")]
Limit = Annotated[int, Query(ge=1, le=1000)]


class NewText(BaseModel):
    """``POST .../entries/{entry}``."""

    text: Words


class Feedback(BaseModel):
    """``POST .../feedback``: how good an answer was, in [0, 1], the right one, and whether it may be trained on."""

    response: Name
    reward: Annotated[float, Field(ge=0, le=1)]
    answer: Annotated[Text, Field(max_length=4000)] = ""
    text: Annotated[Text, Field(max_length=4000)] = ""
    consent: bool = False


@others.get("/conversations")
def list_conversations(
    owner: Owner,
    served: Served,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    after: ConversationId = "",
) -> dict[str, Any]:
    """What the owner of a key has, the newest first; ``after`` is the last id of the page before."""
    found = served.log.all(owner, behind=after, limit=limit + 1)
    return page([conversation_object(about) for about in found], limit)


@router.get("/memory")
def memory(about: Mine, served: Served, at: At = None) -> dict[str, Any]:
    """What the memory holds, or held: entries with their sources and statistics, scratchpad, query, what is shown."""
    length = _checked(served.log.length(about.id), at)
    contents = served.log.memory_at(about.id, at)
    return {
        "object": "memory",
        "conversation": about.id,
        "at": contents.position,
        "operations": length,
        "scratchpad": contents.scratchpad,
        "query": contents.query,
        "shown": [{"entry": entry, "score": score} for entry, score in contents.shown],
        "entries": [entry_object(entry) for entry in contents.entries.values()],
    }


@router.get("/recall")
async def recall(
    conversation: ConversationId,
    owner: Owner,
    served: Served,
    query: Annotated[str, Query(min_length=1, max_length=4000), AfterValidator(clean)],
) -> dict[str, Any]:
    """The entries that fit a query best, as the policy would be shown them. No model is asked, nothing changes."""
    async with served.use(conversation, owner) as held:
        found = await held.recall(query)
    return {
        "object": "list",
        "data": [{**entry_object(entry), "score": score} for entry, score in found],
    }


@router.get("/operations")
def operations(
    about: Mine, served: Served, after: Number = 0, limit: Limit = 100
) -> dict[str, Any]:
    """The operation log from number ``after`` on."""
    return listing(served.log.operations(about.id, after, limit + 1), limit)


@router.get("/steps")
def steps(
    about: Mine,
    served: Served,
    after: Number = 0,
    before: Annotated[
        Number, Query(description="A version: then the steps before it, newest first.")
    ] = 0,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> dict[str, Any]:
    """The steps: what was shown of text and memory, what the policy wrote, token by token."""
    newest = before > 0
    at = before if newest else after
    events = served.log.events(about.id, ("step",), after=at, limit=limit + 1, newest=newest)
    found = [
        {**event.body, "version": event.version, "checkpoint": event.checkpoint} for event in events
    ]
    return listing(found, limit)


@router.post("/fork")
def fork(about: Mine, served: Served, request: Once, at: At = None) -> dict[str, Any]:
    """A second conversation that is this one as it was after ``at`` operations, and goes its own way from there."""
    _checked(served.log.length(about.id), at)
    return conversation_object(served.log.fork(about.id, about.owner, at, request))


@router.post("/entries/{entry}")
async def edit_entry(
    conversation: ConversationId,
    entry: Number,
    body: NewText,
    owner: Owner,
    served: Served,
    request: Once,
) -> dict[str, Any]:
    """Replace the text of an entry: an operation of the actor ``user``."""
    async with served.use(conversation, owner) as held:
        return listing(await held.edit(entry, body.text, request))


@router.delete("/entries/{entry}")
async def delete_entry(
    conversation: ConversationId, entry: Number, owner: Owner, served: Served
) -> dict[str, Any]:
    """Delete an entry; the log keeps what it said until the conversation is deleted."""
    async with served.use(conversation, owner) as held:
        return listing(await held.edit(entry, None))


@router.delete("/sources/{name:path}")
async def delete_source(
    conversation: ConversationId, name: Text, owner: Owner, served: Served
) -> dict[str, Any]:
    """Take out what came from texts of this name (or the item of this id), and read no more of them."""
    async with served.use(conversation, owner, whole=True) as held:
        return listing(await held.forget(name))


@router.delete("/items/{item}")
async def delete_item(about: Mine, item: str, served: Served) -> dict[str, Any]:
    """Delete a text: what was written while it was read goes too, and it is listed no more."""
    text = await served.in_thread(served.log.item, about.id, item)
    of = text.version
    async with served.use(about.id, about.owner, whole=True) as held:
        found = await served.in_thread(lambda: served.log.events(about.id, ("step",), after=of))
        # Another text may have its name: only the steps that read this one.
        read = [event.step for event in found if event.of == of and event.step is not None]
        await held.change(
            Event("deleted", {"item": item}, of=of),
            lambda memory, step: memory.forget(called(text), step, read=read),
        )
        return conversation_object(held.log.about)


@router.post("/checkpoint")
async def move(conversation: ConversationId, owner: Owner, served: Served) -> dict[str, Any]:
    """Go on under this server's checkpoint and embedder: recorded, and all entries embedded anew where need be."""
    async with served.use(conversation, owner, moved=True) as held:
        await held.move()
        return {**conversation_object(held.log.about), "checkpoint": served.policy.checkpoint}


@router.post("/feedback")
async def feedback(
    conversation: ConversationId, body: Feedback, owner: Owner, served: Served, request: Once
) -> dict[str, Any]:
    """Say how good an answer was: the reward of what led to it, where it is trained on."""
    found, _, _ = await served.in_thread(served.log.response, body.response, owner)
    if found != conversation:
        raise DataError(f"response {body.response!r} is of another conversation.")
    async with served.use(conversation, owner) as held:
        event = await held.note(Event("feedback", body.model_dump()), request)
    return {"object": "feedback", "version": event.version, **body.model_dump()}


@router.get("/export", response_class=PlainTextResponse)
def export(conversation: ConversationId, owner: Owner, served: Served) -> PlainTextResponse:
    """All of it as JSON lines: what it is, its events, its operations."""
    text = "".join(json.dumps(line) + "\n" for line in exported(served.log, conversation, owner))
    return PlainTextResponse(text, media_type="application/x-ndjson")


_LINES = {
    "requestBody": {
        "content": {"application/x-ndjson": {"schema": {"type": "string"}}},
        "required": True,
    }
}


@others.post("/imports", openapi_extra=_LINES)
async def import_conversation(
    sent: Request, owner: Owner, served: Served, request: Once
) -> dict[str, Any]:
    """A conversation from what was exported: under a new id, and the importing key's owner."""
    text = (await sent.body()).decode("utf-8", "replace")
    return conversation_object(
        await served.in_thread(lambda: imported(served.log, owner, text, request))
    )


def _checked(length: int, at: int | None) -> int:
    if at is not None and at > length:
        raise DataError(f"at is {at}: this conversation has {length} operations.")
    return length
