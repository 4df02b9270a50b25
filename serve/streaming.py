"""Answers and server-sent events of responses and chats; work ends when its client disconnects."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar, get_args

from fastapi import Request
from openai.types import responses as events
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import ResponseError, ResponseOutputText
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response, StreamingResponse

from atommem.episode import Step
from atommem.serve.conversation import Answer, OnAccepted, OnStep
from atommem.serve.wire import (
    SERVE_ERRORS,
    ResponseBuilder,
    answer_message,
    public_error,
    step_summary,
    to_json,
    token_counts,
)

Ask = Callable[[OnStep | None, OnAccepted | None], Coroutine[Any, Any, Answer]]
_Result = TypeVar("_Result")


class ClientDisconnectedError(Exception):
    """The client has disconnected; nobody receives the answer."""


async def until_disconnect(request: Request, work: Coroutine[Any, Any, _Result]) -> _Result:
    """Await `work`; cancel it when the client disconnects.

    Raises:
        ClientDisconnectedError: The client has disconnected.
    """
    task = asyncio.ensure_future(work)
    disconnect = asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait((task, disconnect), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return await task
        raise ClientDisconnectedError
    finally:
        disconnect.cancel()
        await _cancel(task)


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _cancel(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait until it has released what it holds."""
    task.cancel()
    await asyncio.wait((task,))  # unlike `await task`, does not raise its cancellation here
    if not task.cancelled():
        task.exception()  # retrieved, so that asyncio does not report it


class ResponseForm:
    """Form of ``/v1/responses``: steps as parts of one reasoning summary, then the answer."""

    def __init__(self, builder: ResponseBuilder) -> None:
        self._builder = builder
        self._sequence_number = -1
        self._steps = 0

    def whole(self, answer: Answer, summaries: list[str]) -> dict[str, Any]:
        """Return the answer without a stream."""
        return to_json(self._builder.answered(answer, summaries))

    def accepted(self) -> list[str]:
        """Return the events after the question is committed."""
        item = self._builder.reasoning((), "in_progress")
        response = self._builder.unanswered("in_progress")
        return [
            self._event(events.ResponseCreatedEvent, response=response),
            self._event(events.ResponseInProgressEvent, response=response),
            self._event(events.ResponseOutputItemAddedEvent, output_index=0, item=item),
        ]

    def step(self, summary: str) -> list[str]:
        """Return the events after a step is committed."""
        item = self._builder.reasoning((), "in_progress").id
        place = {"item_id": item, "output_index": 0, "summary_index": self._steps}
        self._steps += 1
        part = {"type": "summary_text", "text": summary}
        return [
            self._event(
                events.ResponseReasoningSummaryPartAddedEvent, **place, part={**part, "text": ""}
            ),
            self._event(events.ResponseReasoningSummaryTextDeltaEvent, **place, delta=summary),
            self._event(events.ResponseReasoningSummaryTextDoneEvent, **place, text=summary),
            self._event(events.ResponseReasoningSummaryPartDoneEvent, **place, part=part),
        ]

    def answered(self, answer: Answer, summaries: list[str]) -> list[str]:
        """Return the events after the answer is committed."""
        reasoning = self._builder.reasoning(summaries)
        message = answer_message(self._builder.response, answer.text)
        text = answer.text or ""
        place = {"item_id": message.id, "output_index": 1, "content_index": 0}
        empty = ResponseOutputText(type="output_text", text="", annotations=[])
        (part,) = message.content
        added = message.model_copy(update={"content": []})
        last = (
            events.ResponseIncompleteEvent if answer.text is None else events.ResponseCompletedEvent
        )
        response = self._builder.answered(answer, summaries)
        return [
            self._event(events.ResponseOutputItemDoneEvent, output_index=0, item=reasoning),
            self._event(events.ResponseOutputItemAddedEvent, output_index=1, item=added),
            self._event(events.ResponseContentPartAddedEvent, **place, part=empty),
            self._event(events.ResponseTextDeltaEvent, **place, delta=text, logprobs=[]),
            self._event(events.ResponseTextDoneEvent, **place, text=text, logprobs=[]),
            self._event(events.ResponseContentPartDoneEvent, **place, part=part),
            self._event(events.ResponseOutputItemDoneEvent, output_index=1, item=message),
            self._event(last, response=response),
        ]

    def failed(self, error: Exception) -> list[str]:
        """Return the events after an error; the question stays without an answer."""
        failure = ResponseError(code="server_error", message=public_error(error)[2])
        response = self._builder.unanswered("failed", error=failure)
        return [self._event(events.ResponseFailedEvent, response=response)]

    def _event(self, kind: type[BaseModel], **values: Any) -> str:
        self._sequence_number += 1
        (name,) = get_args(kind.model_fields["type"].annotation)
        event = kind(type=name, sequence_number=self._sequence_number, **values)
        return f"event: {name}\n{_data(event)}"


class ChatForm:
    """Form of ``/v1/chat/completions``: steps as ``reasoning_content``, then the answer."""

    def __init__(self, chat: str, model: str) -> None:
        self._head = {"id": chat, "created": int(time.time()), "model": model}

    def whole(self, answer: Answer, summaries: list[str]) -> dict[str, Any]:
        """Return the answer without a stream."""
        prompt, completion = token_counts(answer)
        message = {"role": "assistant", "content": answer.text or "", "refusal": None}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }
        values = {"object": "chat.completion", "choices": [choice], "usage": usage}
        return to_json(ChatCompletion.model_validate(self._head | values))

    def accepted(self) -> list[str]:
        """Return the events after the question is committed."""
        return [self._chunk({"role": "assistant", "content": ""})]

    def step(self, summary: str) -> list[str]:
        """Return the events after a step is committed."""
        return [self._chunk({"reasoning_content": summary + "\n"})]

    def answered(self, answer: Answer, summaries: list[str]) -> list[str]:
        """Return the events after the answer is committed."""
        text = self._chunk({"content": answer.text or ""})
        return [text, self._chunk({}, "stop"), "data: [DONE]\n\n"]

    def failed(self, error: Exception) -> list[str]:
        """Return the events after an error; the question stays without an answer."""
        body = {"error": {"message": public_error(error)[2], "type": "server_error"}}
        return [f"data: {json.dumps(body)}\n\n"]

    def _chunk(self, delta: dict[str, Any], reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        values = {**self._head, "object": "chat.completion.chunk", "choices": [choice]}
        return _data(ChatCompletionChunk.model_validate(values))


def _data(event: BaseModel) -> str:
    return f"data: {event.model_dump_json(exclude_unset=True, serialize_as_any=True)}\n\n"


async def respond(
    request: Request, ask: Ask, form: ResponseForm | ChatForm, streams: bool
) -> Response:
    """Ask, and return the answer or its stream.

    A stream waits until the question is committed, so that earlier errors get a status of their
    own.

    Raises:
        ClientDisconnectedError: The client has disconnected.
    """
    queue: asyncio.Queue[list[str] | None] = asyncio.Queue()
    summaries: list[str] = []
    accepted = asyncio.Event()

    async def on_accepted() -> None:
        queue.put_nowait(form.accepted())
        accepted.set()

    async def on_step(step: Step) -> None:
        summaries.append(step_summary(step))
        queue.put_nowait(form.step(summaries[-1]))

    if not streams:
        answer = await until_disconnect(request, ask(on_step, None))
        return JSONResponse(form.whole(answer, summaries))

    async def work() -> None:
        try:
            queue.put_nowait(form.answered(await ask(on_step, on_accepted), summaries))
        except SERVE_ERRORS as error:
            if not accepted.is_set():
                raise
            queue.put_nowait(form.failed(error))
        finally:
            queue.put_nowait(None)

    task = asyncio.ensure_future(work())

    async def body(batch: list[str] | None) -> AsyncIterator[str]:
        # Not sse-starlette: it cuts streams on SIGTERM, where this server completes them.
        try:
            while batch is not None:
                yield "".join(batch)
                batch = await queue.get()
        finally:
            await _cancel(task)

    try:
        first = await until_disconnect(request, queue.get())
        if first is None:
            await task  # raises
    except BaseException:
        await _cancel(task)
        raise
    headers = {"Cache-Control": "no-store"}
    return StreamingResponse(body(first), media_type="text/event-stream", headers=headers)
