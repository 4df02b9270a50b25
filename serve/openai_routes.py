"""Routes of OpenAI's API: conversations and their items, responses, chat completions, models."""

import hashlib
import secrets
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Header, Query, Request
from starlette.concurrency import run_in_threadpool

from atommem.errors import DataError
from atommem.serve import wire
from atommem.serve.conversations import Conversation, Conversations, ask_once
from atommem.serve.schema import ConversationInfo, Event, NotFoundError, RequestKey
from atommem.serve.streaming import AskEvents, ChatForm, ResponseForm, respond, until_disconnect

router = APIRouter(prefix="/v1")
_LISTED = ("item", "ask", "answer")


class Call:
    """A request as its route sees it: server, owner, and identity of a repeated request."""

    def __init__(self, request: Request, key: RequestKey | None) -> None:
        self.request, self.key = request, key
        self.owner: str = request.state.owner
        self.server: Conversations = request.app.state.conversations
        self.log = self.server.log

    def use(self, conversation: str) -> AbstractAsyncContextManager[Conversation]:
        return self.server.use(conversation, self.owner)

    async def read(
        self,
        conversation: str,
        new: Sequence[dict[str, Any]],
        key: RequestKey | None,
        replaced: Sequence[str] = (),
    ) -> list[Event]:
        async with self.use(conversation) as memory:
            done = await memory.add(new, key, replaced)
            async for _ in memory.read():
                pass
            return done


_Key = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=255)]


async def get_call(request: Request, key: _Key = None) -> Call:
    if key is None:
        return Call(request, None)
    scope, body = request.scope, await request.body()
    digest = _sha256(request.method.encode(), scope["raw_path"], scope["query_string"], body)
    return Call(request, RequestKey(_sha256(request.state.owner.encode(), key.encode()), digest))


ThisCall = Annotated[Call, Depends(get_call)]


def get_info(conversation: wire.ConversationId, call: ThisCall) -> ConversationInfo:
    """Return the conversation of the path, if the owner has it."""
    return call.log.info(conversation, call.owner)


Info = Annotated[ConversationInfo, Depends(get_info)]
Embedded = Body(embed=True)
PageLimit = Annotated[int, Query(ge=1, le=100)]


def _sha256(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


@router.get("/models")
def list_models(call: ThisCall) -> dict[str, Any]:
    """List the one model."""
    model = call.server.model
    found = {
        "id": model.name,
        "object": "model",
        "created": 0,
        "owned_by": "atommem",
        "checkpoint": model.checkpoint,
        "embedder": model.agent.embedder.id,
    }
    return {"object": "list", "data": [found]}


@router.get("/models/{model:path}")
def retrieve_model(model: str, call: ThisCall) -> dict[str, Any]:
    """Return the model."""
    _check_model(call.server, model)
    return dict(list_models(call)["data"][0])


@router.post("/conversations")
async def create_conversation(
    call: ThisCall,
    metadata: Annotated[wire.Metadata | None, Embedded] = None,
    items: Annotated[wire.Items | None, Embedded] = None,
) -> dict[str, Any]:
    """Create a conversation, and read its items before returning.

    ``goal`` in the metadata, one question a line, is shown while reading.
    """
    new = [item.body() for item in items or ()]
    info = await run_in_threadpool(call.log.create, call.owner, metadata or {}, call.key)
    if new:
        reading = call.read(info.id, new, call.key and call.key.derive("items"))
        await until_disconnect(call.request, reading)
    return wire.conversation_object(info)


@router.get("/conversations")
def list_conversations(
    call: ThisCall, limit: PageLimit = 20, after: wire.ConversationId = ""
) -> dict[str, Any]:
    """List the owner's conversations, newest first."""
    found = call.log.conversations(call.owner, after=after, limit=limit + 1)
    return wire.page([wire.conversation_object(info) for info in found], limit)


@router.get("/conversations/{conversation}")
def retrieve_conversation(info: Info) -> dict[str, Any]:
    """Return a conversation."""
    return wire.conversation_object(info)


@router.post("/conversations/{conversation}")
def update_conversation(
    info: Info, call: ThisCall, metadata: Annotated[wire.Metadata, Embedded]
) -> dict[str, Any]:
    """Replace the metadata; a new goal applies to later items."""
    return wire.conversation_object(call.log.update(info.id, info.owner, metadata))


@router.delete("/conversations/{conversation}")
async def delete_conversation(conversation: wire.ConversationId, call: ThisCall) -> dict[str, Any]:
    """Erase a conversation with its log."""
    await call.server.erase(conversation, call.owner)
    return {"id": conversation, "object": "conversation.deleted", "deleted": True}


@router.post("/conversations/{conversation}/items")
async def create_items(
    conversation: wire.ConversationId,
    items: Annotated[wire.Items, Embedded],
    call: ThisCall,
    replace: Annotated[list[wire.Name] | None, Embedded] = None,
) -> dict[str, Any]:
    """Commit texts, and read them, one turn a chunk, before returning.

    Texts with the names `replace` are deleted in the same commit.
    If this fails or is cut off, committed items stay listed and the next call continues to read
    them; the same call with the same ``Idempotency-Key`` does not add them again.
    """
    reading = call.read(conversation, [item.body() for item in items], call.key, replace or ())
    done = await until_disconnect(call.request, reading)
    return wire.page([wire.item_object(event) for event in done])


@router.get("/conversations/{conversation}/items")
def list_items(
    info: Info,
    call: ThisCall,
    limit: PageLimit = 20,
    order: Annotated[str, Query(pattern="^(asc|desc)$")] = "desc",
    after: wire.ConversationId = "",
    name: wire.Name = "",
) -> dict[str, Any]:
    """List texts, questions and answers, newest first by default.

    With `name`, only texts whose name begins with it.
    """
    items = _items(info, call, name)
    if order == "desc":
        items.reverse()
    return wire.page(items[_index(items, after) + 1 :] if after else items, limit)


@router.get("/conversations/{conversation}/items/{item}")
def retrieve_item(item: str, info: Info, call: ThisCall) -> dict[str, Any]:
    """Return a text, a question or an answer."""
    items = _items(info, call)
    return items[_index(items, item)]


def _items(info: ConversationInfo, call: Call, name: str = "") -> list[dict[str, Any]]:
    unread = call.log.unread(info.id)
    return [wire.item_object(event, unread) for event in call.log.items(info.id, _LISTED, name)]


def _index(items: Sequence[dict[str, Any]], name: str) -> int:
    ids = [item["id"] for item in items]
    if name not in ids:
        raise NotFoundError(f"there is no item {name!r} in this conversation.")
    return ids.index(name)


@router.post("/responses", response_model=None)
async def create_response(body: wire.ResponseCreate, call: ThisCall) -> Any:
    """Answer a question; without a conversation, from a memory that lives for this call."""
    response = _response_id(call)
    form = ResponseForm(response, call.server.model.name, body.conversation)
    return await respond(call.request, _ask(call, response, body), form, body.stream)


@router.get("/responses/{response}")
def retrieve_response(response: wire.Name, call: ThisCall) -> dict[str, Any]:
    """Return a response; ``incomplete`` if nobody answers it and it has no answer."""
    conversation, ask, answer = call.log.response(response, call.owner)
    form = ResponseForm(response, call.server.model.name, conversation, ask.created_at)
    if answer is None:
        answering = response in call.server.answering
        return form.response("in_progress") if answering else form.incomplete("interrupted")
    text = answer.body["text"]
    output = [wire.answer_message(response, text, answer.body.get("note", ""))]
    if text is None:
        return form.incomplete("no_answer", output=output)
    return form.response("completed", output=output)


@router.post("/chat/completions", response_model=None)
async def create_chat_completion(body: wire.ChatCreate, call: ThisCall) -> Any:
    """Answer the last message after reading those before it that the conversation does not have."""
    response = _response_id(call)
    form = ChatForm(response.replace("resp_", "chatcmpl-"), call.server.model.name)
    return await respond(call.request, _ask(call, response, body), form, body.stream)


def _response_id(call: Call) -> str:
    return f"resp_{call.key.key[:32] if call.key else secrets.token_hex(16)}"


async def _ask(call: Call, response: str, body: wire.AskCreate) -> AskEvents:
    server, key = call.server, call.key
    if body.model is not None:
        _check_model(server, body.model)
    *new, last = body.messages
    question, conversation = "\n".join(last.parts), body.conversation
    if last.role != "user" or not question:
        raise DataError("the last message asks: it must be a user's and not blank.")
    if conversation is None:
        async with server.admit():
            items = [message.body() for message in new if message.parts]
            async for event in ask_once(server.model, items, question, response):
                yield event
        return
    server.answering.add(response)
    try:
        async with call.use(conversation) as memory:
            if isinstance(body, wire.ChatCreate):
                events = await run_in_threadpool(server.log.items, conversation, _LISTED)
                new = _new_messages(events, new)
            items = [message.body() for message in new if message.parts]
            if items:
                await memory.add(items, key and key.derive("items"))
            async for event in memory.ask(question, response, key, streams=body.stream):
                yield event
    finally:
        server.answering.discard(response)


def _check_model(server: Conversations, name: str) -> None:
    if name != server.model.name:
        raise NotFoundError(f"there is no model {name!r}. This server has {server.model.name!r}.")


def _new_messages(events: Sequence[Event], messages: list[wire.Message]) -> list[wire.Message]:
    """Return the messages after those in the conversation: chat clients send the whole history."""
    known = [
        (item["role"], [part["text"] for part in item["content"]])
        for item in map(wire.item_object, events)
    ]
    start = 0
    for number, message in enumerate(messages):
        # As an answer, as a text, and as a question.
        forms = message.texts, message.parts, ["\n".join(message.parts)]
        same = [(message.role, form) for form in forms]
        found = next((at for at in range(start, len(known)) if known[at] in same), None)
        if found is None:
            return messages[number:]
        start = found + 1
    return []
