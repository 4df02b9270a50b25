"""What fits a query, without asking a model and without a trace of it in the log."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import AfterValidator

from atommem.actions import READ, Action
from atommem.memory.entries import Entry
from atommem.serve.conversation import Conversation
from atommem.serve.openai_routes import Owner, Served
from atommem.serve.wire import ConversationId, entry_object
from atommem.untrusted import clean

router = APIRouter(prefix="/v1/conversations/{conversation}")


async def recalled(memory: Conversation, query: str) -> list[tuple[Entry, float]]:
    """The entries that the policy would be shown for this query, best first, with their scores."""
    twin = memory.session.memory.fork()
    await twin.apply([Action(READ, query)], memory.session.turns)
    held = twin.contents.entries
    return [(held[item.entry_id], item.score) for item in twin.view().retrieved]


@router.get("/recall")
async def recall(
    conversation: ConversationId,
    owner: Owner,
    served: Served,
    query: Annotated[str, Query(min_length=1, max_length=4000), AfterValidator(clean)],
) -> dict[str, Any]:
    """The entries that fit a query best, as the policy would be shown them. No model is asked, nothing changes."""
    async with served.use(conversation, owner) as memory:
        found = await recalled(memory, query)
    return {"object": "list", "data": [{**entry_object(entry), "score": score} for entry, score in found]}
