"""Routes of OpenAI's API: conversations and their items, responses, chat completions, models."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Header, Query, Request

from atommem.errors import DataError
from atommem.serve.conversation import Answer, OnAccepted, OnStep
from atommem.serve.conversation_log import ConversationInfo, Event, NotFoundError, RequestKey
from atommem.serve.conversations import Conversations
from atommem.serve.streaming import Ask, ChatForm, ResponseForm, respond, until_disconnect
from atommem.serve.wire import (
    AskCreate,
    ChatCreate,
    ConversationId,
    Items,
    Message,
    Metadata,
    Name,
    ResponseBuilder,
    ResponseCreate,
    answer_message,
    conversation_object,
    item_object,
    page,
    to_json,
)

router = APIRouter(prefix="/v1")
_LISTED = ("item", "ask", "answer")


async def get_owner(request: Request) -> str:
    """Return the owner of the request's key."""
    owner: str = request.state.owner
    return owner


async def get_conversations(request: Request) -> Conversations:
    """Return the server's conversations."""
    found: Conversations = request.app.state.conversations
    return found


Owner = Annotated[str, Depends(get_owner)]
Server = Annotated[Conversations, Depends(get_conversations)]
_KeyHeader = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=255)]


async def get_request_key(
    request: Request, owner: Owner, key: _KeyHeader = None
) -> RequestKey | None:
    """Return the identity of a request with an ``Idempotency-Key``."""
    if key is None:
        return None
    method, scope = request.method.encode(), request.scope
    body = await request.body()
    digest = _sha256(method, scope["raw_path"], scope["query_string"], body)
    return RequestKey(_sha256(owner.encode(), key.encode()), digest)


def get_info(conversation: ConversationId, owner: Owner, server: Server) -> ConversationInfo:
    """Return the conversation of the path, if the owner has it."""
    return server.log.info(conversation, owner)


Info = Annotated[ConversationInfo, Depends(get_info)]
Idempotency = Annotated[RequestKey | None, Depends(get_request_key)]
Embedded = Body(embed=True)


def _sha256(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


@router.get("/models")
def list_models(server: Server) -> dict[str, Any]:
    """List the one model."""
    return {"object": "list", "data": [_model(server)]}


@router.get("/models/{model:path}")
def retrieve_model(model: str, server: Server) -> dict[str, Any]:
    """Return the model."""
    _check_model(server, model)
    return _model(server)


@router.post("/conversations")
async def create_conversation(
    request: Request,
    owner: Owner,
    server: Server,
    key: Idempotency,
    metadata: Annotated[Metadata | None, Embedded] = None,
    items: Annotated[Items | None, Embedded] = None,
) -> dict[str, Any]:
    """Create a conversation, and read its items before returning.

    ``goal`` in the metadata, one question a line, is shown while reading.
    """
    new = [item.body() for item in items or ()]
    info = await server.in_thread(server.log.create, owner, metadata or {}, key)
    if new:
        reading = _read(server, info.id, owner, new, key and key.derive("items"))
        await until_disconnect(request, reading)
    return conversation_object(info)


@router.get("/conversations/{conversation}")
def retrieve_conversation(info: Info) -> dict[str, Any]:
    """Return a conversation."""
    return conversation_object(info)


@router.post("/conversations/{conversation}")
def update_conversation(
    info: Info, server: Server, metadata: Annotated[Metadata, Embedded]
) -> dict[str, Any]:
    """Replace the metadata; a new goal applies to later items."""
    return conversation_object(server.log.update(info.id, info.owner, metadata))


@router.delete("/conversations/{conversation}")
async def delete_conversation(
    conversation: ConversationId, owner: Owner, server: Server
) -> dict[str, Any]:
    """Erase a conversation with its log."""
    await server.erase(conversation, owner)
    return {"id": conversation, "object": "conversation.deleted", "deleted": True}


@router.post("/conversations/{conversation}/items")
async def create_items(
    request: Request,
    conversation: ConversationId,
    items: Annotated[Items, Embedded],
    owner: Owner,
    server: Server,
    key: Idempotency,
) -> dict[str, Any]:
    """Commit texts, and read them, one turn a chunk, before returning.

    If this fails or is cut off, committed items stay listed and the next call continues to read
    them; the same call with the same ``Idempotency-Key`` does not add them again.
    """
    new = [item.body() for item in items]
    done = await until_disconnect(request, _read(server, conversation, owner, new, key))
    return page([item_object(event) for event in done])


@router.get("/conversations/{conversation}/items")
def list_items(
    info: Info,
    server: Server,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Annotated[str, Query(pattern="^(asc|desc)$")] = "desc",
    after: Annotated[str, Query(max_length=64)] = "",
) -> dict[str, Any]:
    """List texts, questions and answers, newest first by default."""
    items = _items(server, info)
    items = items if order == "asc" else items[::-1]
    return page(items[_index(items, after) + 1 :] if after else items, limit)


@router.get("/conversations/{conversation}/items/{item}")
def retrieve_item(info: Info, item: str, server: Server) -> dict[str, Any]:
    """Return an item."""
    items = _items(server, info)
    return items[_index(items, item)]


@router.post("/responses", response_model=None)
async def create_response(
    request: Request, body: ResponseCreate, owner: Owner, server: Server, key: Idempotency
) -> Any:
    """Answer a question; without a conversation, from a memory that lives for this call."""
    response, ask = _prepare_ask(server, owner, body, key)
    form = ResponseForm(ResponseBuilder(response, server.model.name, body.conversation))
    return await respond(request, ask, form, body.stream)


@router.get("/responses/{response}")
def retrieve_response(response: Name, owner: Owner, server: Server) -> dict[str, Any]:
    """Return a response; ``incomplete`` if nobody answers it and it has no answer."""
    conversation, ask, answer = server.log.response(response, owner)
    builder = ResponseBuilder(response, server.model.name, conversation, ask.created_at)
    if answer is None and response in server.answering:
        return to_json(builder.unanswered("in_progress"))
    found = builder.unanswered("completed")
    if answer is None:
        return to_json(builder.incomplete(found, "interrupted"))
    found.output = [answer_message(response, answer.body["text"])]
    if answer.body["text"] is None:
        found = builder.incomplete(found, "no_answer")
    return to_json(found)


@router.post("/chat/completions", response_model=None)
async def create_chat_completion(
    request: Request, body: ChatCreate, owner: Owner, server: Server, key: Idempotency
) -> Any:
    """Answer the last message after reading those before it that the conversation does not have."""
    response, ask = _prepare_ask(server, owner, body, key)
    form = ChatForm(response.replace("resp_", "chatcmpl-"), server.model.name)
    return await respond(request, ask, form, body.stream)


def _prepare_ask(
    server: Conversations, owner: str, body: AskCreate, key: RequestKey | None
) -> tuple[str, Ask]:
    """Return the id of a response, and what reads the messages before the question and asks it."""
    assert isinstance(body, ResponseCreate | ChatCreate)
    _check_model(server, body.model)
    *before, last = body.messages
    question, conversation = "\n".join(last.parts), body.conversation
    if last.role != "user" or not question:
        raise DataError("the last message asks: it must be a user's and not blank.")
    response = f"resp_{secrets.token_hex(16) if key is None else key.key[:32]}"

    async def ask(on_step: OnStep | None, on_accepted: OnAccepted | None) -> Answer:
        new: Sequence[Message] = before
        request = key
        if conversation is None:
            held = server.ephemeral(question)
            request = None  # it stores nothing
        else:
            held = server.use(conversation, owner)
        server.answering.add(response)
        try:
            async with held as memory:
                if isinstance(body, ChatCreate) and conversation is not None:
                    events = await server.in_thread(server.log.items, conversation, _LISTED)
                    new = _new_messages(events, before)
                items = [message.body() for message in new if message.parts]
                if items:
                    await memory.add(items, request and request.derive("items"))
                return await memory.ask(question, response, on_step, on_accepted, request)
        finally:
            server.answering.discard(response)

    return response, ask


def _items(server: Conversations, info: ConversationInfo) -> list[dict[str, Any]]:
    unread = server.log.unread(info.id)
    return [item_object(event, unread) for event in server.log.items(info.id, _LISTED)]


def _index(items: Sequence[Mapping[str, Any]], item: str) -> int:
    for index, found in enumerate(items):
        if found["id"] == item:
            return index
    raise NotFoundError(f"there is no item {item!r} in this conversation.")


async def _read(
    server: Conversations,
    conversation: str,
    owner: str,
    new: Sequence[dict[str, Any]],
    key: RequestKey | None,
) -> list[Event]:
    async with server.use(conversation, owner) as memory:
        done = await memory.add(new, key)
        await memory.read()
        return done


def _new_messages(events: Sequence[Event], messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages after those in the conversation: chat clients send the whole history."""
    known = [
        (item["role"], [part["text"] for part in item["content"]])
        for item in map(item_object, events)
    ]
    start = 0
    for number, message in enumerate(messages):
        forms = (message.role, message.texts), (message.role, message.parts)
        found = next((at for at in range(start, len(known)) if known[at] in forms), None)
        if found is None:
            return messages[number:]
        start = found + 1
    return ()


def _check_model(server: Conversations, name: str | None) -> None:
    if name not in (None, server.model.name):
        raise NotFoundError(f"there is no model {name!r}. This server has {server.model.name!r}.")


def _model(server: Conversations) -> dict[str, Any]:
    model = server.model
    return {
        "id": model.name,
        "object": "model",
        "created": 0,
        "owned_by": "atommem",
        "checkpoint": model.checkpoint,
        "embedder": model.agent.embedder.id,
        "trained_for": None if model.trained_for is None else asdict(model.trained_for),
    }
