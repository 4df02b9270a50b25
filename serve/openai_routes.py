"""OpenAI's routes: conversations and their items, responses, chat completions, models."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import JSONResponse

from atommem.episode import Step
from atommem.errors import DataError
from atommem.serve.conversation import Answered, OnStep, OnTaken
from atommem.serve.conversation_log import ConversationLog
from atommem.serve.conversations import Conversations
from atommem.serve.log_rows import About, Event, NotFoundError, RequestKey
from atommem.serve.streaming import ChatEvents, ResponseEvents, streamed, while_there
from atommem.serve.wire import (
    Ask,
    Chat,
    ConversationId,
    ConversationUpdate,
    Message,
    Name,
    NewConversation,
    NewItems,
    conversation_object,
    item_object,
    new_item,
    page,
    response_object,
    step_summary,
    usage,
)

router = APIRouter(prefix="/v1")
_LISTED = ("item", "ask", "answer")


async def owner_of(request: Request) -> str:
    """Whose request it is: the owner of its key, and nothing that the client says."""
    owner: str = request.state.owner
    return owner


async def conversations_of(request: Request) -> Conversations:
    """The server's conversations."""
    found: Conversations = request.app.state.conversations
    return found


Owner = Annotated[str, Depends(owner_of)]
Served = Annotated[Conversations, Depends(conversations_of)]


async def request_key(
    request: Request,
    owner: Owner,
    key: Annotated[
        str | None, Header(alias="Idempotency-Key", min_length=1, max_length=255)
    ] = None,
) -> RequestKey | None:
    """What tells a repeated request: its ``Idempotency-Key``, where it has one."""
    if key is None:
        return None
    sent = (
        request.method.encode(),
        request.scope["raw_path"],
        request.scope["query_string"],
        await request.body(),
    )
    return RequestKey(_sha256(owner.encode(), key.encode()), _sha256(*sent))


def about_of(conversation: ConversationId, owner: Owner, served: Served) -> About:
    """A conversation of the request's owner."""
    return served.log.about(conversation, owner)


Mine = Annotated[About, Depends(about_of)]
Once = Annotated[RequestKey | None, Depends(request_key)]


def _sha256(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


@router.get("/models")
def models(served: Served) -> dict[str, Any]:
    """The one model."""
    return {"object": "list", "data": [_model(served)]}


@router.get("/models/{model:path}")
def model(model: str, served: Served) -> dict[str, Any]:
    """It, by its name."""
    _check_model(served, model)
    return _model(served)


@router.post("/conversations")
async def create_conversation(
    request: Request, body: NewConversation, owner: Owner, served: Served, once: Once
) -> dict[str, Any]:
    """Create a conversation: an empty memory. Items, if any, are read before this returns."""
    new = _new_items(body.items or ())
    about = await served.in_thread(served.log.create, owner, body.metadata or {}, once)
    if new:
        await while_there(request, _read(served, about.id, owner, new, once and once.part("items")))
    return conversation_object(about)


@router.get("/conversations/{conversation}")
def retrieve_conversation(about: Mine) -> dict[str, Any]:
    """What it is."""
    return conversation_object(about)


@router.post("/conversations/{conversation}")
async def update_conversation(
    conversation: ConversationId, body: ConversationUpdate, owner: Owner, served: Served
) -> dict[str, Any]:
    """Replace its metadata; a new goal holds for items that come from now on."""
    about = await served.in_thread(served.log.update, conversation, owner, body.metadata)
    await served.forget(conversation, owner)
    return conversation_object(about)


@router.delete("/conversations/{conversation}")
async def delete_conversation(
    conversation: ConversationId, owner: Owner, served: Served
) -> dict[str, Any]:
    """Erase it for good: log, texts, vectors, traces."""
    await served.in_thread(served.log.erase, conversation, owner)
    await served.forget(conversation, owner)
    return {"id": conversation, "object": "conversation.deleted", "deleted": True}


@router.post("/conversations/{conversation}/items")
async def create_items(
    request: Request,
    conversation: ConversationId,
    body: NewItems,
    owner: Owner,
    served: Served,
    once: Once,
) -> dict[str, Any]:
    """Give texts to be read. This returns when they have been read, one turn a chunk.

    Should it not return, the items that had been taken are there (list them), and reading goes on with the next call:
    the same one with the same ``Idempotency-Key`` does not give them again.
    """
    done = await while_there(
        request, _read(served, conversation, owner, _new_items(body.items), once)
    )
    return page([item_object(event) for event in done])


@router.get("/conversations/{conversation}/items")
def list_items(
    about: Mine,
    served: Served,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Annotated[str, Query(pattern="^(asc|desc)$")] = "desc",
    after: Annotated[str, Query(max_length=64)] = "",
) -> dict[str, Any]:
    """Texts, questions and answers, newest first unless ``order`` is asc."""
    items = _items(served, about)
    items = items if order == "asc" else items[::-1]
    return page(items[_place(items, after) + 1 :] if after else items, limit)


@router.get("/conversations/{conversation}/items/{item}")
def retrieve_item(about: Mine, item: str, served: Served) -> dict[str, Any]:
    """One of them."""
    items = _items(served, about)
    return items[_place(items, item)]


@router.post("/responses", response_model=None)
async def create_response(
    request: Request, body: Ask, owner: Owner, served: Served, once: Once
) -> Any:
    """Ask a conversation; without one, the input before the question is read into a memory for this call."""
    name, conversation = served.policy.name, body.conversation_id
    response, asking = _asking(served, owner, body, conversation, once)
    if body.stream:
        return await streamed(request, asking, ResponseEvents(response, name, conversation))
    summaries: list[str] = []

    async def noted(step: Step) -> None:
        summaries.append(step_summary(step))

    answered = await while_there(request, asking(noted, None))
    whole = response_object(
        response, name, conversation=conversation, answered=answered, summaries=summaries
    )
    return JSONResponse(whole)


@router.get("/responses/{response}")
def retrieve_response(response: Name, owner: Owner, served: Served) -> dict[str, Any]:
    """An answer of a conversation. A question that was taken and is not being answered here is ``incomplete``."""
    conversation, ask, answer = served.log.response(response, owner)
    if answer is None:
        status = "in_progress" if response in served.answering else "incomplete"
    else:
        status = "incomplete" if answer.body["text"] is None else "completed"
    shown = response_object(
        response,
        served.policy.name,
        created_at=ask.created_at,
        conversation=conversation,
        status=status,
    )
    if answer is not None:
        shown["output"] = [item_object(answer)]
    elif status == "incomplete":
        shown["incomplete_details"] = {"reason": "interrupted"}
    return shown


@router.post("/chat/completions", response_model=None)
async def chat(request: Request, body: Chat, owner: Owner, served: Served, once: Once) -> Any:
    """The last user message asks, what stands before it is read; with ``conversation``, into that memory."""
    response, asking = _asking(served, owner, body, body.conversation, once)
    head = {
        "id": response.replace("resp_", "chatcmpl-"),
        "created": int(time.time()),
        "model": served.policy.name,
    }
    if body.stream:
        return await streamed(request, asking, ChatEvents(head))
    answered = await while_there(request, asking(None, None))
    message = {"role": "assistant", "content": answered.text or "", "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    tokens = usage(answered, "prompt_tokens", "completion_tokens")
    return JSONResponse({**head, "object": "chat.completion", "choices": [choice], "usage": tokens})


def _asking(
    served: Conversations,
    owner: str,
    body: Ask | Chat,
    conversation: str | None,
    once: RequestKey | None,
) -> tuple[str, Callable[[OnStep | None, OnTaken | None], Coroutine[Any, Any, Answered]]]:
    """The id of a response, and what asks for it, the texts before the question read.

    Raises:
        NotFoundError: It is asked of another model.
        DataError: There is no question.
    """
    _check_model(served, body.model)
    *before, last = body.messages
    question = "\n".join(last.parts)
    if last.role != "user" or not question:
        raise DataError("the last message is no user's, or blank: it is what asks.")
    response = f"resp_{secrets.token_hex(16) if once is None else once.key[:32]}"

    async def ask(on_step: OnStep | None, on_taken: OnTaken | None) -> Answered:
        request = None if conversation is None else once  # nothing is kept of a call without one
        held = served.passing(question) if conversation is None else served.use(conversation, owner)
        served.answering.add(response)
        try:
            async with held as memory:
                new: Sequence[Message] = before
                if isinstance(body, Chat) and conversation is not None:
                    new = await served.in_thread(_not_read, served.log, conversation, before)
                items = [new_item(message) for message in new if message.parts]
                if items:
                    await memory.add(items, request and request.part("items"))
                return await memory.ask(question, response, on_step, on_taken, request)
        finally:
            served.answering.discard(response)

    return response, ask


def _items(served: Conversations, about: About) -> list[dict[str, Any]]:
    unread, items = served.log.items(about.id, _LISTED)
    return [item_object(event, unread) for event in items]


def _place(items: Sequence[Mapping[str, Any]], item: str) -> int:
    for place, found in enumerate(items):
        if found["id"] == item:
            return place
    raise NotFoundError(f"there is no item {item!r} in this conversation.")


def _new_items(messages: Sequence[Message]) -> list[dict[str, Any]]:
    new = [new_item(message) for message in messages]
    if not all(item["parts"] for item in new):
        raise DataError("an item is blank: there is nothing to read.")
    return new


async def _read(
    served: Conversations,
    conversation: str,
    owner: str,
    new: Sequence[dict[str, Any]],
    once: RequestKey | None,
) -> list[Event]:
    async with served.use(conversation, owner) as memory:
        done = await memory.add(new, once)
        await memory.read()
        return done


def _not_read(
    log: ConversationLog, conversation: str, messages: Sequence[Message]
) -> Sequence[Message]:
    """The messages that follow on what the conversation holds: a chat's client sends all of them again."""
    _, held = log.items(conversation, _LISTED)
    known = [
        (shown["role"], [part["text"] for part in shown["content"]])
        for shown in map(item_object, held)
    ]
    place = 0
    for number, message in enumerate(messages):
        raw = (
            [message.content]
            if isinstance(message.content, str)
            else [part.text for part in message.content]
        )
        forms = ((message.role, raw), (message.role, message.parts))
        found = next((at for at in range(place, len(known)) if known[at] in forms), None)
        if found is None:
            return messages[number:]
        place = found + 1
    return ()


def _check_model(served: Conversations, name: str | None) -> None:
    if name not in (None, served.policy.name):
        raise NotFoundError(f"there is no model {name!r}: this server has {served.policy.name!r}.")


def _model(served: Conversations) -> dict[str, Any]:
    policy = served.policy
    return {
        "id": policy.name,
        "object": "model",
        "created": 0,
        "owned_by": "atommem",
        "checkpoint": policy.checkpoint,
        "embedder": policy.agent.embedder.id,
        "trained_for": None if policy.trained_for is None else asdict(policy.trained_for),
    }
