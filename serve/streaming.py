"""Answers while they come about: OpenAI's events, and a request's work that ends when its client leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import StreamingResponse

from atommem.episode import Step
from atommem.errors import AtomMemError
from atommem.serve.conversation import Answered, OnStep, OnTaken
from atommem.serve.wire import answer_item, reasoning_item, response_object, step_summary

_Result = TypeVar("_Result")


class GoneError(Exception):
    """The client has left: nobody is told the answer."""


async def while_there(request: Request, work: Coroutine[Any, Any, _Result]) -> _Result:
    """Do `work`, and give it up when the client leaves.

    Raises:
        GoneError: It has.
    """
    task = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait((task, leaving), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return await task
        raise GoneError
    finally:
        leaving.cancel()
        await _ended(task)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _ended(task: asyncio.Future[Any]) -> None:
    """Cancel, and wait until what it holds is free."""
    if not task.done():
        task.cancel()
        await asyncio.wait((task,))  # whose cancellation is not taken for one of whoever waits here
        if not task.cancelled():
            task.exception()  # seen


class ResponseEvents:
    """The events of ``/v1/responses``: every step is a part of one reasoning summary, then comes the answer."""

    def __init__(self, response: str, model: str, conversation: str | None) -> None:
        self._response, self._model, self._conversation = response, model, conversation
        self._number = -1
        self._parts = 0

    def started(self) -> list[tuple[str, Any]]:
        """The question has been taken."""
        item = reasoning_item(self._response, (), "in_progress")
        return [
            self._event("response.created", response=self._object("in_progress")),
            self._event("response.in_progress", response=self._object("in_progress")),
            self._event("response.output_item.added", output_index=0, item=item),
        ]

    def step(self, text: str) -> list[tuple[str, Any]]:
        """A step has been committed."""
        place = {"item_id": self._reasoning, "output_index": 0, "summary_index": self._parts}
        self._parts += 1
        empty, part = {"type": "summary_text", "text": ""}, {"type": "summary_text", "text": text}
        kind = "response.reasoning_summary"
        return [
            self._event(f"{kind}_part.added", **place, part=empty),
            self._event(f"{kind}_text.delta", **place, delta=text),
            self._event(f"{kind}_text.done", **place, text=text),
            self._event(f"{kind}_part.done", **place, part=part),
        ]

    def ended(self, answered: Answered, summaries: list[str]) -> list[tuple[str, Any]]:
        """The answer has been committed."""
        whole = response_object(
            self._response,
            self._model,
            conversation=self._conversation,
            answered=answered,
            summaries=summaries,
        )
        item, text = answer_item(self._response, answered.text), answered.text or ""
        place = {"item_id": item["id"], "output_index": 1, "content_index": 0}
        empty = {"type": "output_text", "text": "", "annotations": []}
        reasoning = reasoning_item(self._response, summaries, "completed")
        return [
            self._event("response.output_item.done", output_index=0, item=reasoning),
            self._event("response.output_item.added", output_index=1, item={**item, "content": []}),
            self._event("response.content_part.added", **place, part=empty),
            self._event("response.output_text.delta", **place, delta=text, logprobs=[]),
            self._event("response.output_text.done", **place, text=text, logprobs=[]),
            self._event("response.content_part.done", **place, part={**empty, "text": text}),
            self._event("response.output_item.done", output_index=1, item=item),
            self._event(
                "response.completed" if answered.text is not None else "response.incomplete",
                response=whole,
            ),
        ]

    def failed(self, error: Exception) -> list[tuple[str, Any]]:
        """It was taken, and could not be answered: it stays in the log without an answer."""
        failed = {
            **self._object("failed"),
            "error": {"code": "server_error", "message": str(error)},
        }
        return [self._event("response.failed", response=failed)]

    @property
    def _reasoning(self) -> str:
        return f"rs_{self._response.removeprefix('resp_')}"

    def _object(self, status: str) -> dict[str, Any]:
        return response_object(
            self._response, self._model, conversation=self._conversation, status=status
        )

    def _event(self, name: str, **fields: Any) -> tuple[str, Any]:
        self._number += 1
        return name, {"type": name, "sequence_number": self._number, **fields}


class ChatEvents:
    """The chunks of ``/v1/chat/completions``: steps as ``reasoning_content``, the answer as ``content``."""

    def __init__(self, head: dict[str, Any]) -> None:
        self._head = {**head, "object": "chat.completion.chunk"}

    def started(self) -> list[tuple[str, Any]]:
        """The question has been taken."""
        return [self._chunk({"role": "assistant", "content": ""})]

    def step(self, text: str) -> list[tuple[str, Any]]:
        """A step has been committed."""
        return [self._chunk({"reasoning_content": text + "\n"})]

    def ended(self, answered: Answered, summaries: list[str]) -> list[tuple[str, Any]]:
        """The answer has been committed."""
        return [
            self._chunk({"content": answered.text or ""}),
            self._chunk({}, "stop"),
            ("", "[DONE]"),
        ]

    def failed(self, error: Exception) -> list[tuple[str, Any]]:
        """It was taken, and could not be answered."""
        return [("", {"error": {"message": str(error), "type": "server_error"}})]

    def _chunk(self, delta: dict[str, Any], reason: str | None = None) -> tuple[str, Any]:
        return "", {
            **self._head,
            "choices": [{"index": 0, "delta": delta, "finish_reason": reason}],
        }


async def streamed(
    request: Request,
    ask: Callable[[OnStep, OnTaken], Awaitable[Answered]],
    form: ResponseEvents | ChatEvents,
) -> StreamingResponse:
    """Steps and the answer of one question as they come, in the events that `form` makes of them.

    It waits until the question is taken; what is refused before is raised, and is the request's status.

    Args:
        request: Whose client may leave.
        ask: Asks; given what to call after every step, and once it has been taken.
        form: Makes events, (name, data), of what happens.

    Raises:
        GoneError: The client has left before.
    """
    queue: asyncio.Queue[list[tuple[str, Any]] | None] = asyncio.Queue()
    summaries: list[str] = []
    taken = False

    async def on_taken() -> None:
        nonlocal taken
        taken = True
        queue.put_nowait(form.started())

    async def on_step(step: Step) -> None:
        summaries.append(step_summary(step))
        queue.put_nowait(form.step(summaries[-1]))

    async def work() -> None:
        try:
            queue.put_nowait(form.ended(await ask(on_step, on_taken), summaries))
        except AtomMemError as error:
            if not taken:
                raise
            queue.put_nowait(form.failed(error))
        finally:
            queue.put_nowait(None)

    task = asyncio.ensure_future(work())

    async def events(batch: list[tuple[str, Any]] | None) -> AsyncIterator[str]:
        # The framing is ours: sse-starlette ends its streams on SIGTERM, where this server lets them come to their end.
        try:
            while batch is not None:
                for name, data in batch:
                    head = f"event: {name}\n" if name else ""
                    yield f"{head}data: {data if isinstance(data, str) else json.dumps(data)}\n\n"
                batch = await queue.get()
        finally:
            await _ended(task)

    try:
        first = await while_there(request, queue.get())
        if first is None:
            await task  # raises what it was refused for
    except BaseException:
        await _ended(task)
        raise
    return StreamingResponse(
        events(first), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
    )
