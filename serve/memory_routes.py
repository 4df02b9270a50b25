"""AtomMem's own routes: the memory, its log and past, forks, and edits by its owner."""

import base64
import json
from collections.abc import Iterator
from functools import partial
from typing import Annotated

import msgspec
from anyio import fail_after, to_process
from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from atommem.documents import extract
from atommem.episode import Step
from atommem.errors import DataError
from atommem.serve import wire
from atommem.serve.items import item_of, listed, text_item
from atommem.serve.openai_routes import Info, Json, NeededScope, PageLimit, Scope, ThisCall

msgspec.json.Decoder(Step)  # in one thread, as in atommem.memory.log

router = APIRouter(prefix="/v1/conversations/{conversation}")
general = APIRouter(prefix="/v1")
_SECONDS = 60  # bounds the extraction of a text: a file may be made to take forever
At = Annotated[wire.Number | None, Query(description="Number of operations; default: all.")]


@router.get("/memory")
def retrieve_memory(info: Info, call: ThisCall, at: At = None) -> Json:
    """Return the memory after `at` operations: entries, scratchpad, query, and what is shown."""
    contents, length = call.log.memory_at(info.id, at)
    return {
        "object": "memory",
        "conversation": info.id,
        "at": contents.position,
        "operations": length,
        "scratchpad": contents.scratchpad,
        "query": contents.query,
        "shown": [{"entry": entry, "score": score} for entry, score in contents.shown],
        "entries": [wire.entry_object(entry) for entry in contents.entries.values()],
    }


@router.get("/recall")
async def recall(
    conversation: wire.ConversationId,
    query: Annotated[str, Query(min_length=1, max_length=4000), wire.CLEAN],
    call: ThisCall,
    k: Annotated[int | None, Query(ge=1, le=10_000)] = None,
    source: wire.Name = "",
    items: bool = False,
) -> Json:
    """Return the entries that the policy would be shown for a query, without calling a model.

    `k` replaces the policy's number; of texts whose name begins with `source`, if given. With
    `items`, the texts that they come from are returned, too.
    """
    async with call.use(conversation) as held:
        found = await held.recall(query, k, source)
    shown = wire.page([wire.entry_object(entry, score=score) for entry, score in found])
    if items:
        pieces = [entry.source.piece or "" for entry, _ in found if entry.source]
        sources = {piece.rpartition(", ")[0] for piece in pieces}
        texts = partial(call.log.items, conversation, ("item",), sources=sources)
        shown["items"] = [listed(event) for event in await run_in_threadpool(texts)]
    return shown


@router.get("/operations")
def list_operations(
    info: Info,
    call: ThisCall,
    after: wire.Number = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Json:
    """List the operation log from number `after`."""
    return wire.page(call.log.operations(info.id, after, limit + 1), limit)


@router.get("/steps")
def list_steps(info: Info, call: ThisCall, after: wire.Number = 0, limit: PageLimit = 20) -> Json:
    """List the steps after version `after`, with observation, whole prompt, completion, tokens."""
    events = call.log.events(info.id, ("step",), after=after, limit=limit + 1)
    found = []
    for event in events:
        step = msgspec.convert(event.body, Step)
        prompt = call.server.model.agent.prompts.text(step.observation, step.view)
        made = {"version": event.version, "created_at": event.created_at}
        found.append({**event.body, "prompt": prompt, **made, "checkpoint": event.checkpoint})
    return wire.page(found, limit)


@router.post("/fork")
def fork(info: Info, call: ThisCall, at: At = None) -> Json:
    """Copy the conversation as it was after `at` operations."""
    return wire.conversation_object(call.log.fork(info.id, info.owner, at, call.key))


@router.post("/entries")
async def create_entry(
    conversation: wire.ConversationId, body: wire.EntryCreate, call: ThisCall
) -> Json:
    """Store a text as an entry as it is, without the policy, as the actor ``user``.

    It is listed as an item, too. Limits of entries and the rules of the memory hold.
    """
    async with call.use(conversation) as held:
        text = text_item(body.text, body.name)
        return wire.page(await held.keep(text, call.key, body.replace))


@router.post("/entries/{entry}")
async def update_entry(
    conversation: wire.ConversationId, entry: wire.Number, body: wire.EntryUpdate, call: ThisCall
) -> Json:
    """Replace the text of an entry, as an operation of the actor ``user``."""
    async with call.use(conversation) as held:
        return wire.page(await held.edit(entry, body.text, body.reason, call.key))


@router.delete("/entries/{entry}")
async def delete_entry(
    conversation: wire.ConversationId, entry: wire.Number, call: ThisCall, reason: wire.Name = ""
) -> Json:
    """Delete an entry; the log keeps its text until the conversation is deleted."""
    async with call.use(conversation) as held:
        return wire.page(await held.edit(entry, None, reason))


@router.delete("/sources/{name:path}")
async def delete_source(conversation: wire.ConversationId, name: wire.Text, call: ThisCall) -> Json:
    """Delete the texts with this name (or id), with what was written while they were read."""
    async with call.use(conversation) as held:
        return wire.page(await held.forget(name))


@router.delete("/items/{item}")
async def delete_item(info: Info, item: str, call: ThisCall) -> Json:
    """Delete a text, with what was written while it was read."""
    async with call.use(info.id) as held:
        await held.forget(item=item)
    return wire.conversation_object(info)


@general.get("/recall")
async def recall_scope(
    query: Annotated[str, Query(min_length=1, max_length=4000), wire.CLEAN],
    call: ThisCall,
    scope: NeededScope,
    k: Annotated[int | None, Query(ge=1, le=10_000)] = None,
) -> Json:
    """Return the best entries of all conversations of a scope, each with its conversation."""
    found = await call.server.recall(call.owner, scope, query, k)
    objects = (wire.entry_object(hit, score=score, conversation=name) for name, hit, score in found)
    return wire.page([*objects])


@general.get("/export")
def export(call: ThisCall, scope: Scope) -> StreamingResponse:
    """Return all that is kept of a scope, or without one of this owner: a conversation a line.

    Each is a JSON object with metadata, items, scratchpad, entries and operations.
    """

    def lines() -> Iterator[str]:
        for info in call.log.conversations(call.owner, where=scope, prefix=""):
            items = call.log.items(info.id)
            found = {
                **retrieve_memory(info, call),
                **wire.conversation_object(info),
                "items": [{**item_of(item), "created_at": item.created_at} for item in items],
                "operations": call.log.operations(info.id),
            }
            yield json.dumps(found) + "\n"

    return StreamingResponse(lines(), media_type="application/x-ndjson")


@general.post("/extract")
async def extract_text(body: wire.FileExtract) -> Json:
    """Return the text of a file, whose content is `data` in base64, and what it leaves out."""
    name = body.name
    try:
        content = base64.b64decode(body.data, validate=True)
        with fail_after(_SECONDS):
            text, left_out = await to_process.run_sync(extract, content, name, cancellable=True)
    except ValueError as error:
        raise DataError("data: not base64. Send the content of the file in base64.") from error
    except TimeoutError as error:
        raise DataError(f"{name}: not read in {_SECONDS} seconds. Send its text.") from error
    except ModuleNotFoundError as error:
        problem = "this server reads texts only. Install the extra: pip install -e '.[files]'"
        raise DataError(f"{name}: {problem}.") from error
    return {"text": text, "left_out": left_out}
