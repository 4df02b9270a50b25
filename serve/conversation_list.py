"""``GET /v1/conversations``: what the owner of a key has; OpenAI's servers list none."""

from __future__ import annotations

from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Query

from atommem.serve.conversation_log import ConversationLog
from atommem.serve.log_rows import About
from atommem.serve.openai_routes import Owner, Served
from atommem.serve.schema import conversations
from atommem.serve.wire import ConversationId, conversation_object, page

router = APIRouter(prefix="/v1")


@router.get("/conversations")
async def list_conversations(
    owner: Owner,
    served: Served,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    after: ConversationId = "",
) -> dict[str, Any]:
    """The newest first; ``after`` is the last id of the page before."""
    found = await served.in_thread(listed, served.log, owner, limit + 1, after)
    return page([conversation_object(about) for about in found[:limit]], len(found) > limit)


def listed(log: ConversationLog, owner: str, limit: int, after: str = "") -> list[About]:
    """An owner's conversations, newest first, from behind `after` on."""
    table = conversations.c
    query = sa.select(conversations).where(table.owner == owner)
    if after:
        last = log.about(after, owner)
        query = query.where(sa.tuple_(table.created_at, table.id) < sa.tuple_(last.created_at, last.id))
    with log.engine.begin() as connection:
        rows = connection.execute(query.order_by(table.created_at.desc(), table.id.desc()).limit(limit)).mappings()
        return [About(**row) for row in rows]
