"""Routes of OpenAI's API: conversations and their items, responses, chat completions, models."""

import secrets
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool

from atommem.errors import DataError
from atommem.serve import wire
from atommem.serve.conversation import Conversation
from atommem.serve.conversation_log import ConversationLog
from atommem.serve.conversations import Conversations
from atommem.serve.items import Item, item_of, listed, new_items, texts_of, unread_parts
from atommem.serve.schema import LISTED, ConversationInfo, Event, NotFoundError, RequestKey, sha256
from atommem.serve.served_model import ask_once
from atommem.serve.streaming import AskEvents, ChatForm, ResponseForm, respond, until_disconnect

router = APIRouter(prefix="/v1")
Json = dict[str, Any]  # an object of a response


class Call:
    """A request as its route sees it: server, owner, and its identity if it writes."""

    def __init__(self, request: Request, key: RequestKey | None) -> None:
        self.request, self.key = request, key
        self.owner: str = request.state.owner
        self.server: Conversations = request.app.state.conversations
        self.log = self.server.log

    def use(self, conversation: str) -> AbstractAsyncContextManager[Conversation]:
        return self.server.use(conversation, self.owner)

    async def resolved(self, items: Sequence[Item]) -> list[Item]:
        """Replace references by the items of this owner that they name."""
        found = []
        for item in items:
            if item["type"] != "item_reference":
                found.append(item)
            elif not item["id"].startswith("rs_"):  # the steps of an answer, which are in the log
                event = await run_in_threadpool(self.log.item, self.owner, item["id"])
                found.append(item_of(event))
        return found

    async def read(
        self, name: str, new: Sequence[Item], key: RequestKey | None, replaced: Sequence[str] = ()
    ) -> tuple[list[Event], Json]:
        """Read items; return their events, and what that wrote (`Conversation.read_all`)."""
        async with self.server.settled(self.key), self.use(name) as memory:
            return await memory.add(new, key, replaced), await memory.read_all()


_HARMLESS_QUERY = {"include", "include[]", "api-version"}  # of OpenAI's and Azure's clients
_SEVERAL = {"metadata", "include", "include[]"}  # that may be given several times
_RETRIES = "X-Stainless-Retry-Count"  # of OpenAI's clients
_Key = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=255)]


async def get_call(
    request: Request, key: _Key = None, retries: Annotated[str, Header(alias=_RETRIES)] = "0"
) -> Call:
    call = Call(request, None)
    if request.query_params:
        routes = request.app.openapi()["paths"]
        route = routes[request.scope["route"].path_format][request.method.lower()]
        known = {each["name"] for each in route.get("parameters", ())} | _HARMLESS_QUERY
        if unknown := sorted(request.query_params.keys() - known):
            wrong = {"type": "extra_forbidden", "loc": ("query", unknown[0])}
            raise RequestValidationError([wrong])
        counts = Counter(name for name, _ in request.query_params.multi_items())
        for name in [name for name in counts if counts[name] > 1 and name not in _SEVERAL]:
            raise DataError(f"{name}: given {counts[name]} times. Give it once.")
    if request.method == "POST":
        scope, owner = request.scope, call.owner.encode()
        parts = scope["raw_path"], scope["query_string"], await request.body()
        if key is not None:
            digest = sha256(request.method.encode(), *parts)
            call.key = RequestKey(sha256(owner, key.encode()), digest)
        else:
            find = partial(call.log.request_key, (b"POST", owner, *parts), retries != "0")
            call.key = await run_in_threadpool(find)
    return call


ThisCall = Annotated[Call, Depends(get_call)]


def get_info(conversation: wire.ConversationId, call: ThisCall) -> ConversationInfo:
    """Return the conversation of the path, if the owner has it."""
    return call.log.info(conversation, call.owner)


Info = Annotated[ConversationInfo, Depends(get_info)]
PageLimit = Annotated[int, Query(ge=1, le=100)]


_Name = Annotated[wire.Value | None, Query(min_length=1)]
_Metadata = Annotated[str, wire.CLEAN]


def get_scope(
    user: _Name = None,
    agent: _Name = None,
    session: _Name = None,
    metadata: Annotated[list[_Metadata] | None, Query(description="KEY=VALUE")] = None,
) -> dict[str, str]:
    """Return the metadata that conversations must have."""
    scope = wire.scope_of(user, agent, session)
    for text in metadata or ():
        name, is_pair, value = text.partition("=")
        if not (name and is_pair) or {*name} & {*'"\\'}:
            raise DataError(f"metadata={text}: not KEY=VALUE, without quotes in KEY. Rename it.")
        if scope.setdefault(name, value) != value:
            raise DataError(f"metadata={text}: {name} is {scope[name]!r}, too. Give one of them.")
    return scope


Scope = Annotated[dict[str, str], Depends(get_scope)]


def get_needed_scope(scope: Scope) -> dict[str, str]:
    """Return the scope; refuse a request without one."""
    if not scope:
        raise DataError("a scope is missing. Give user, agent, session or metadata=KEY=VALUE.")
    return scope


NeededScope = Annotated[dict[str, str], Depends(get_needed_scope)]


@router.get("/models")
def list_models(call: ThisCall) -> Json:
    """List the one model."""
    model = call.server.model
    found = {
        "id": model.name,
        "object": "model",
        "created": 0,
        "owned_by": "atommem",
        "checkpoint": model.checkpoint,
        "embedder": model.agent.embedder.id,
        "templates": model.runtime.run.memory.templates,
    }
    return {"object": "list", "data": [found]}


@router.get("/models/{model:path}")
def retrieve_model(model: str, call: ThisCall) -> Json:
    """Return the model."""
    _check_model(call.server, model)
    return dict(list_models(call)["data"][0])


@router.post("/conversations")
async def create_conversation(call: ThisCall, body: wire.ConversationCreate | None = None) -> Json:
    """Create a conversation, and read its items before returning.

    ``goal`` in the metadata, a question a line, is shown while reading. The rest is as of items.
    """
    body = body or wire.ConversationCreate()
    new = await call.resolved(body.items or [])
    info = await run_in_threadpool(call.log.create, call.owner, body.metadata or {}, call.key)
    made = wire.conversation_object(info)
    if new:
        reading = call.read(info.id, new, call.key and call.key.derive("items"))
        made |= (await until_disconnect(call.request, reading))[1]
    return made


@router.get("/conversations")
def list_conversations(
    call: ThisCall, scope: Scope, limit: PageLimit = 20, after: wire.ConversationId = ""
) -> Json:
    """List the owner's conversations, newest first; with a scope those with this metadata."""
    found = call.log.conversations(call.owner, after=after, limit=limit + 1, where=scope)
    return wire.page([wire.conversation_object(info) for info in found], limit)


@router.delete("/conversations")
async def delete_conversations(call: ThisCall, scope: NeededScope) -> Json:
    """Erase all conversations of a scope with their logs."""
    infos = partial(call.log.conversations, call.owner, where=scope, prefix="")
    erased = [info.id for info in await run_in_threadpool(infos)]
    if not erased:
        raise NotFoundError("there is no conversation with this metadata.")
    for conversation in erased:
        await call.server.erase(conversation, call.owner)
    return {"object": "conversations.deleted", "deleted": True, "ids": erased}


@router.get("/conversations/{conversation}")
def retrieve_conversation(info: Info) -> Json:
    """Return a conversation."""
    return wire.conversation_object(info)


@router.post("/conversations/{conversation}")
def update_conversation(info: Info, call: ThisCall, body: wire.ConversationUpdate) -> Json:
    """Replace the metadata, with goal and scope in it; a new goal applies to later items."""
    return wire.conversation_object(call.log.update(info.id, info.owner, body.metadata))


@router.delete("/conversations/{conversation}")
async def delete_conversation(conversation: wire.ConversationId, call: ThisCall) -> Json:
    """Erase a conversation with its log."""
    await call.server.erase(conversation, call.owner)
    return {"id": conversation, "object": "conversation.deleted", "deleted": True}


@router.post("/conversations/{conversation}/items")
async def create_items(
    conversation: wire.ConversationId, body: wire.ItemsCreate, call: ThisCall
) -> Json:
    """Commit texts, and read them, one turn a chunk, before returning.

    Texts with the names `replace` are deleted in the same commit.
    If this fails or is cut off, committed items stay listed and the next call continues to read
    them; the same call does not add them again. ``written`` counts the entries that were created,
    updated and deleted, ``cut`` is the share of what the policy wrote that limits of the memory
    cut; a ``note`` says if a goal was missing.
    """
    new = await call.resolved(body.items)
    reading = call.read(conversation, new, call.key, body.replace)
    done, written = await until_disconnect(call.request, reading)
    return {**wire.page([listed(event) for event in done]), **written}


@router.get("/conversations/{conversation}/items")
def list_items(
    info: Info,
    call: ThisCall,
    limit: PageLimit = 20,
    order: Literal["asc", "desc"] = "desc",
    after: wire.ConversationId = "",
    name: wire.Name = "",
) -> Json:
    """List texts, questions and answers, newest first; with `name`, texts whose name begins so."""
    newest = order == "desc"
    found = call.log.items(info.id, newest=newest, after=after, limit=limit + 1, name=name)
    return wire.page(_listed(call, info, found), limit)


@router.get("/conversations/{conversation}/items/{item}")
def retrieve_item(item: str, info: Info, call: ThisCall) -> Json:
    """Return a text, a question or an answer."""
    for found in _listed(call, info, call.log.items(info.id, ids=[item])):
        return found
    raise NotFoundError(f"there is no item {item!r} in this conversation.")


def _listed(call: Call, info: ConversationInfo, found: Sequence[Event]) -> list[dict[str, Any]]:
    unread = call.log.unread(info.id, [event.version for event in found])
    return [listed(event, *unread) for event in found]


@router.post("/responses", response_model=None)
async def create_response(body: wire.ResponseCreate, call: ThisCall) -> Any:
    """Answer a question.

    Without a conversation the response has an unlisted one of its own, which those that name it as
    ``previous_response_id`` continue; with ``store`` false its memory lives for this call.
    """
    response = await response_id(call.log, call.key)
    conversation, previous = body.conversation, None
    if body.previous_response_id:
        if conversation:
            raise DataError("conversation and previous_response_id: give one of them.")
        if body.store is False:
            raise DataError("store=false: what continues a response is stored. Leave it out.")
        find = partial(call.log.response, body.previous_response_id, call.owner)
        conversation, previous, _ = await run_in_threadpool(find)
    form = ResponseForm(response, call.server.model.name, conversation, body.echo)
    events = _ask(call, response, body, conversation, previous)
    return await respond(call.request, events, form, bool(body.stream))


@router.get("/responses/{response}")
def retrieve_response(response: wire.Name, call: ThisCall, stream: bool = False) -> Json:
    """Return a response; ``incomplete`` if nobody answers it and it has no answer."""
    if stream:
        raise DataError("stream=true: a stored response is returned whole. Leave it out.")
    conversation, ask, answer = call.log.response(response, call.owner)
    model, echo = call.server.model.name, ask.body["echo"]
    form = ResponseForm(response, model, conversation, echo, ask.created_at)
    if answer is None:
        answering = response in call.server.answering
        return form.response("in_progress") if answering else form.incomplete("interrupted")
    text = answer.body["text"]
    output = [form.message(text, answer.body.get("note", ""))]
    if text is None:
        return form.incomplete("no_answer", output=output)
    return form.response("completed", output=output)


@router.delete("/responses/{response}")
async def delete_response(response: wire.Name, call: ThisCall) -> Json:
    """Delete question and answer; without a conversation also what only they had read."""
    found = await run_in_threadpool(call.log.response, response, call.owner)
    conversation, *items = found
    async with call.use(conversation) as held:
        for item in items:
            if item is not None:
                await held.forget(item=str(item.item))
        others = await run_in_threadpool(call.log.items, conversation, ("ask",))
    if not conversation.startswith(LISTED) and not any(ask.response for ask in others):
        await call.server.erase(conversation, call.owner)
    return {"id": response, "object": "response", "deleted": True}


@router.post("/chat/completions", response_model=None)
async def create_chat_completion(body: wire.ChatCreate, call: ThisCall) -> Any:
    """Answer the last message after reading those before it that the conversation does not have."""
    response = await response_id(call.log, call.key)
    usage = bool(body.stream_options and body.stream_options.get("include_usage"))
    form = ChatForm(call.server.model.name, usage)
    events = _ask(call, response, body, body.conversation)
    return await respond(call.request, events, form, bool(body.stream))


async def response_id(log: ConversationLog, key: RequestKey | None) -> str:
    """Return the id of the response that a repeated request has, or a new one."""
    if key is not None and not key.renews:
        for ask in await run_in_threadpool(log.written_by, key):
            return str(ask.response)
    if key is None or key.derived:
        return f"resp_{secrets.token_hex(16)}"
    return f"resp_{key.key[:32]}"


async def _ask(
    call: Call,
    response: str,
    body: wire.AskCreate,
    conversation: str | None,
    previous: Event | None = None,
) -> AskEvents:
    server, key = call.server, call.key
    if body.model is not None:
        _check_model(server, body.model)
    *new, last = await call.resolved(body.messages)
    if last.get("role") != "user" or not texts_of(last):
        raise DataError("the last message asks: it must be a user's and not blank.")
    if skipped := unread_parts(last):
        raise DataError(f"the last message has a part of type {skipped[0]!r}. Only text can ask.")
    stores = isinstance(body, wire.ResponseCreate) and body.store is not False
    if stores and not conversation:
        unlisted = key and key.derive("conversation"), "resp_"
        create = partial(call.log.create, call.owner, body.metadata or {}, *unlisted)
        conversation = (await run_in_threadpool(create)).id
    if not conversation:
        async with server.admit():
            async for event in ask_once(server.model, new, last, response):
                yield event
        return
    server.answering.add(response)
    try:
        async with server.settled(key), AsyncExitStack() as stack:
            memory = await stack.enter_async_context(call.use(conversation))
            if previous is not None and not conversation.startswith(LISTED):
                known = previous, response, key and key.derive("branch")
                branch = partial(call.log.branch, conversation, call.owner, *known)
                if (name := await run_in_threadpool(branch)) != conversation:
                    memory = await stack.enter_async_context(call.use(name))
            if isinstance(body, wire.ChatCreate):
                events = await run_in_threadpool(server.log.items, memory.id)
                new = await run_in_threadpool(new_items, [*map(item_of, events)], new)
            await memory.add(new, key and key.derive("items"), history=True)
            async for event in memory.ask(last, response, key, bool(body.stream), body.echo):
                yield event
    finally:
        server.answering.discard(response)


def _check_model(server: Conversations, name: str) -> None:
    if name != server.model.name:
        raise NotFoundError(f"there is no model {name!r}. This server has {server.model.name!r}.")
