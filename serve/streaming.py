"""Answers and server-sent events of responses and chats; work ends when its client disconnects."""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from atommem.answering import Answer
from atommem.episode import Step
from atommem.memory.log import Operation, Outcome
from atommem.serve.items import answer_item
from atommem.serve.schema import LISTED, Event, answer_id
from atommem.serve.served_model import Written
from atommem.serve.wire import SERVE_ERRORS, entry_object, public_error

AskEvents = AsyncGenerator[Event | Step | Answer, None]  # as of `Conversation.ask`
_Result = TypeVar("_Result")
_PING_SECONDS = 15.0


class ClientDisconnectedError(Exception):
    """The client has disconnected; nobody receives the answer."""


async def until_disconnect(request: Request, work: Awaitable[_Result]) -> _Result:
    """Await `work`; cancel it, and raise ClientDisconnectedError, when the client disconnects."""
    task = asyncio.ensure_future(work)

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        task.cancel()

    watching = asyncio.create_task(watch())
    try:
        return await task
    except asyncio.CancelledError:
        if watching.done():
            raise ClientDisconnectedError from None
        raise
    finally:
        watching.cancel()


class ResponseForm:
    """Form of ``/v1/responses``: steps as parts of one reasoning summary, then the answer.

    `begin` (of a committed question), `step`, `end`, `fail` are for a stream; then `whole` is it.
    """

    def __init__(
        self,
        response: str,
        model: str,
        conversation: str | None,
        echo: Mapping[str, Any],
        created_at: int | None = None,
    ) -> None:
        self._id = response
        listed = conversation is not None and conversation.startswith(LISTED)
        self._head: dict[str, Any] = {
            **dict.fromkeys(("error", "incomplete_details", "instructions")),
            **dict.fromkeys(("previous_response_id", "temperature", "top_p", "usage")),
            "id": response,
            "object": "response",
            "created_at": int(time.time()) if created_at is None else created_at,
            "model": model,
            "conversation": {"id": conversation} if listed else None,
            "output": [],
            "parallel_tool_calls": False,
            "tool_choice": "none",
            "tools": [],
            **echo,
        }
        self._numbers = itertools.count()
        self._summaries: list[dict[str, Any]] = []
        self._written = Written()

    def response(self, status: str, **values: Any) -> dict[str, Any]:
        """Return the response, without output unless that is one of `values`."""
        return {**self._head, "status": status, **values}

    def incomplete(self, reason: str, **values: Any) -> dict[str, Any]:
        """Return a response that is ``interrupted`` or has ``no_answer``."""
        return self.response("incomplete", incomplete_details={"reason": reason}, **values)

    def whole(self, answer: Answer) -> dict[str, Any]:
        prompt, completion = _token_counts(answer)
        values = {
            "output": [self._reasoning("completed"), self.message(answer.text, answer.note)],
            **self._written.report(),
            "memory": [entry_object(each, cut=each.id in answer.cut) for each in answer.entries],
            "usage": {
                "input_tokens": prompt,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": completion,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": prompt + completion,
            },
        }
        if answer.text is None:
            return self.incomplete("no_answer", **values)
        return self.response("completed", **values)

    def message(self, text: str | None, note: str) -> dict[str, Any]:
        """Return the message of an answer."""
        item = answer_item(answer_id(self._id), text, note)
        return {**item, "status": "incomplete" if text is None else "completed"}

    def begin(self, response_id: str) -> str:
        # A repeated request has the id that another gateway gave it.
        self._id = self._head["id"] = response_id
        self._reasoning_id = f"rs_{response_id.removeprefix('resp_')}"
        response, item = self.response("in_progress"), self._reasoning("in_progress")
        return (
            self._event("created", response=response)
            + self._event("in_progress", response=response)
            + self._event("output_item.added", output_index=0, item=item)
        )

    def step(self, step: Step) -> str:
        self._written.add(step)
        text = step_summary(step)
        number, part = len(self._summaries), {"type": "summary_text", "text": text}
        place = {"item_id": self._reasoning_id, "output_index": 0, "summary_index": number}
        self._summaries.append(part)
        return (
            self._event("reasoning_summary_part.added", **place, part={**part, "text": ""})
            + self._event("reasoning_summary_text.delta", **place, delta=text)
            + self._event("reasoning_summary_text.done", **place, text=text)
            + self._event("reasoning_summary_part.done", **place, part=part)
        )

    def end(self, answer: Answer) -> str:
        response = self.whole(answer)
        reasoning, message = response["output"]
        (part,) = message["content"]
        text = part["text"]
        place = {"item_id": message["id"], "output_index": 1, "content_index": 0}
        added = {**message, "content": []}
        return (
            self._event("output_item.done", output_index=0, item=reasoning)
            + self._event("output_item.added", output_index=1, item=added)
            + self._event("content_part.added", **place, part={**part, "text": ""})
            + self._event("output_text.delta", **place, delta=text, logprobs=[])
            + self._event("output_text.done", **place, text=text, logprobs=[])
            + self._event("content_part.done", **place, part=part)
            + self._event("output_item.done", output_index=1, item=message)
            + self._event(response["status"], response=response)
        )

    def fail(self, message: str) -> str:
        error = {"code": "server_error", "message": message}
        return self._event("failed", response=self.response("failed", error=error))

    def _reasoning(self, status: str) -> dict[str, Any]:
        head = {"id": self._reasoning_id, "type": "reasoning", "status": status}
        return {**head, "summary": [*self._summaries]}

    def _event(self, name: str, **values: Any) -> str:
        kind = f"response.{name}"
        event = {"type": kind, "sequence_number": next(self._numbers), **values}
        return f"event: {kind}\n{_data(event)}"


class ChatForm:
    """Form of ``/v1/chat/completions``, like `ResponseForm`: steps as ``reasoning_content``."""

    def __init__(self, model: str, include_usage: bool = False) -> None:
        self._include_usage, self._written = include_usage, Written()
        self._head: dict[str, Any] = {"created": int(time.time()), "model": model}

    def whole(self, answer: Answer) -> dict[str, Any]:
        message = {"role": "assistant", "content": answer.text or "", "refusal": None}
        message |= _note(answer)
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
        form = {"object": "chat.completion", "choices": [choice], "usage": self._usage(answer)}
        return {**self._head, **form, **self._written.report()}

    def _usage(self, answer: Answer) -> dict[str, int]:
        prompt, completion = _token_counts(answer)
        counts = {"prompt_tokens": prompt, "completion_tokens": completion}
        return {**counts, "total_tokens": prompt + completion}

    def begin(self, response_id: str) -> str:
        self._head["id"] = response_id.replace("resp_", "chatcmpl-")
        return self._chunk({"role": "assistant", "content": ""})

    def step(self, step: Step) -> str:
        self._written.add(step)
        return self._chunk({"reasoning_content": step_summary(step) + "\n"})

    def end(self, answer: Answer) -> str:
        text = self._chunk({"content": answer.text or "", **_note(answer)})
        text += self._chunk({}, "stop")
        if self._include_usage:
            text += self._data([], self._usage(answer))
        return f"{text}data: [DONE]\n\n"

    def fail(self, message: str) -> str:
        return _data({"error": {"message": message, "type": "server_error"}})

    def _chunk(self, delta: dict[str, Any], reason: str | None = None) -> str:
        return self._data([{"index": 0, "delta": delta, "finish_reason": reason}])

    def _data(self, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> str:
        last = {"usage": usage} if self._include_usage else {}
        form = {**self._head, "object": "chat.completion.chunk", "choices": choices}
        return _data({**form, **last})


async def respond(
    request: Request, events: AskEvents, form: ResponseForm | ChatForm, streams: bool
) -> Response:
    """Ask, and return the answer or its stream.

    A stream waits until the question is committed: earlier errors have a status of their own.
    """

    def streamed(event: Event | Step | Answer) -> str:
        if isinstance(event, Step):
            return form.step(event)
        return form.end(event) if isinstance(event, Answer) else form.begin(str(event.response))

    async def whole() -> dict[str, Any]:
        async for event in events:
            if not isinstance(event, Answer):
                streamed(event)
        assert isinstance(event, Answer)
        return form.whole(event)

    async def work(queue: asyncio.Queue[str | None]) -> None:
        try:
            async with aclosing(events):
                async for event in events:
                    queue.put_nowait(streamed(event))
        except SERVE_ERRORS as error:
            queue.put_nowait(form.fail(public_error(error)[2]))
        finally:
            queue.put_nowait(None)

    async def body(text: str | None) -> AsyncIterator[str]:
        # Not sse-starlette: it cuts streams on SIGTERM, where this server completes them.
        queue: asyncio.Queue[str | None] = asyncio.Queue()
        task = asyncio.create_task(work(queue))  # goes on while the client does not read
        try:
            while text is not None:
                yield text
                try:
                    text = await asyncio.wait_for(queue.get(), _PING_SECONDS)
                except TimeoutError:
                    text = ": ping\n\n"  # proxies cut silent streams
            await task  # raises
        finally:
            task.cancel()
            await asyncio.wait((task,))  # cancelled itself, this leaves the task to its end
            if not task.cancelled():
                task.exception()  # retrieved, so that asyncio does not report it

    if not streams:
        return JSONResponse(await until_disconnect(request, whole()))
    first = streamed(await until_disconnect(request, anext(events)))
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(body(first), media_type="text/event-stream", headers=headers)


def _note(answer: Answer) -> dict[str, str]:
    return {"note": answer.note} if answer.note else {}


def step_summary(step: Step) -> str:
    done = "; ".join(_describe(item) for item in step.operations if item.kind != "retrieve")
    text = f"step {step.index + 1}, {step.observation.label}: {done or 'no change'}"
    shown = len(step.operations[-1].scores) if step.operations else 0
    return f"{text}; found {shown} {'entry' if shown == 1 else 'entries'}" if shown else text


def _describe(operation: Operation) -> str:
    entry = "" if operation.entry_id is None else f" entry {operation.entry_id}"
    outcome = "" if operation.outcome is Outcome.APPLIED else f" ({operation.outcome})"
    cut = " (cut at its limit)" if operation.reason == "cut" else ""
    text = "" if operation.after is None else f": {operation.after}"
    return f"{operation.kind}{entry}{outcome}{cut}{text}"


def _token_counts(answer: Answer) -> tuple[int, int]:
    counts = [(step.prompt_tokens, step.completion_tokens) for step in answer.steps]
    return sum(prompt for prompt, _ in counts), sum(completion for _, completion in counts)


def _data(event: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(event)}\n\n"
