"""AtomMem's own routes: the memory, its log and past, forks, and edits by its owner."""

import base64
from functools import partial
from typing import Annotated, Any

import msgspec
from anyio import fail_after, to_process
from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool

from atommem.documents import extract
from atommem.episode import Step
from atommem.errors import DataError
from atommem.serve.items import listed
from atommem.serve.openai_routes import Embedded, Info, PageLimit, ThisCall
from atommem.serve.wire import (
    CLEAN,
    ConversationId,
    Name,
    NonBlank,
    Number,
    Text,
    conversation_object,
    entry_object,
    page,
)

msgspec.json.Decoder(Step)  # in one thread, as in atommem.memory.log

router = APIRouter(prefix="/v1/conversations/{conversation}")
files = APIRouter(prefix="/v1")
_SECONDS = 60  # bounds the extraction of a text: a file may be made to take forever
At = Annotated[Number | None, Query(description="Number of operations; default: all.")]


@router.get("/memory")
def retrieve_memory(info: Info, call: ThisCall, at: At = None) -> dict[str, Any]:
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
        "entries": [entry_object(entry) for entry in contents.entries.values()],
    }


@router.get("/recall")
async def recall(
    conversation: ConversationId,
    query: Annotated[str, Query(min_length=1, max_length=4000), CLEAN],
    call: ThisCall,
    k: Annotated[int | None, Query(ge=1, le=10_000)] = None,
    source: Name = "",
    items: bool = False,
) -> dict[str, Any]:
    """Return the entries that the policy would be shown for a query, without calling a model.

    `k` replaces the policy's number; of texts whose name begins with `source`, if given. With
    `items`, the texts that they come from are returned, too.
    """
    async with call.use(conversation) as held:
        found = await held.recall(query, k, source)
    shown = page([entry_object(entry, score=score) for entry, score in found])
    if items:
        pieces = [entry.source.piece or "" for entry, _ in found if entry.source]
        sources = {piece.rpartition(", ")[0] for piece in pieces}
        texts = partial(call.log.items, conversation, ("item",), sources=sources)
        shown["items"] = [listed(event) for event in await run_in_threadpool(texts)]
    return shown


@router.get("/operations")
def list_operations(
    info: Info, call: ThisCall, after: Number = 0, limit: Annotated[int, Query(ge=1, le=1000)] = 100
) -> dict[str, Any]:
    """List the operation log from number `after`."""
    return page(call.log.operations(info.id, after, limit + 1), limit)


@router.get("/steps")
def list_steps(
    info: Info, call: ThisCall, after: Number = 0, limit: PageLimit = 20
) -> dict[str, Any]:
    """List the steps after version `after`, with observation, whole prompt, completion, tokens."""
    events = call.log.events(info.id, ("step",), after=after, limit=limit + 1)
    found = []
    for event in events:
        step = msgspec.convert(event.body, Step)
        prompt = call.server.model.agent.prompts.text(step.observation, step.view)
        made = {"version": event.version, "checkpoint": event.checkpoint}
        found.append({**event.body, "prompt": prompt, **made})
    return page(found, limit)


@router.post("/fork")
def fork(info: Info, call: ThisCall, at: At = None) -> dict[str, Any]:
    """Copy the conversation as it was after `at` operations."""
    return conversation_object(call.log.fork(info.id, info.owner, at, call.key))


@router.post("/entries/{entry}")
async def update_entry(
    conversation: ConversationId, entry: Number, text: Annotated[NonBlank, Embedded], call: ThisCall
) -> dict[str, Any]:
    """Replace the text of an entry, as an operation of the actor ``user``."""
    async with call.use(conversation) as held:
        return page(await held.edit(entry, text, call.key))


@router.delete("/entries/{entry}")
async def delete_entry(
    conversation: ConversationId, entry: Number, call: ThisCall
) -> dict[str, Any]:
    """Delete an entry; the log keeps its text until the conversation is deleted."""
    async with call.use(conversation) as held:
        return page(await held.edit(entry, None))


@router.delete("/sources/{name:path}")
async def delete_source(conversation: ConversationId, name: Text, call: ThisCall) -> dict[str, Any]:
    """Delete the texts with this name (or id), with what was written while they were read."""
    async with call.use(conversation) as held:
        return page(await held.forget(name))


@router.delete("/items/{item}")
async def delete_item(info: Info, item: str, call: ThisCall) -> dict[str, Any]:
    """Delete a text, with what was written while it was read."""
    async with call.use(info.id) as held:
        await held.forget(item=item)
    return conversation_object(info)


@files.post("/extract")
async def extract_text(
    name: Annotated[Name, Embedded], data: Annotated[str, Embedded]
) -> dict[str, Any]:
    """Return the text of a file, whose content is `data` in base64, and what it leaves out."""
    try:
        content = base64.b64decode(data, validate=True)
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
