"""What no OpenAI server has: the memory itself, its log, its past, and its owner's hand in it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from atommem.errors import DataError
from atommem.serve.openai_routes import Owner, Served
from atommem.serve.wire import ConversationId, Number, entry_object

router = APIRouter(prefix="/v1/conversations/{conversation}")
At = Annotated[Number | None, Query(description="After so many operations; unset is now.")]
Limit = Annotated[int, Query(ge=1, le=1000)]


@router.get("/memory")
async def memory(conversation: ConversationId, owner: Owner, served: Served, at: At = None) -> dict[str, Any]:
    """What the memory holds, or held: entries with their sources and statistics, scratchpad, query, what is shown."""

    def found() -> dict[str, Any]:
        served.log.about(conversation, owner)
        length = served.log.length(conversation)
        if at is not None and at > length:
            raise DataError(f"at is {at}: this conversation has {length} operations.")
        contents = served.log.memory_at(conversation, at)
        return {
            "object": "memory",
            "conversation": conversation,
            "at": contents.position,
            "operations": length,
            "scratchpad": contents.scratchpad,
            "query": contents.query,
            "shown": [{"entry": entry, "score": score} for entry, score in contents.shown],
            "entries": [entry_object(entry) for entry in contents.entries.values()],
        }

    return await served.in_thread(found)


@router.get("/operations")
async def operations(
    conversation: ConversationId, owner: Owner, served: Served, after: Number = 0, limit: Limit = 100
) -> dict[str, Any]:
    """The operation log from number ``after`` on."""

    def found() -> dict[str, Any]:
        served.log.about(conversation, owner)
        rows = served.log.operations(conversation, after, limit + 1)
        return {"object": "list", "data": rows[:limit], "has_more": len(rows) > limit}

    return await served.in_thread(found)


@router.get("/steps")
async def steps(
    conversation: ConversationId,
    owner: Owner,
    served: Served,
    after: Number = 0,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> dict[str, Any]:
    """The steps: what was shown of text and memory, what the policy wrote, token by token."""

    def found() -> dict[str, Any]:
        served.log.about(conversation, owner)
        found = served.log.events(conversation, ("step",), after=after, limit=limit + 1)
        data = [{**event.body, "version": event.version, "checkpoint": event.checkpoint} for event in found[:limit]]
        return {"object": "list", "data": data, "has_more": len(found) > limit}

    return await served.in_thread(found)
