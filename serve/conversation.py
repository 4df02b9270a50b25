"""One conversation in use: a session whose every turn is committed to the log before it counts."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from atommem.api import answer_question
from atommem.episode import Observation, Step
from atommem.errors import AtomMemError, PromptTooLongError
from atommem.memory.log import Entry, Operation, to_json
from atommem.memory.memory import WorkingMemory
from atommem.rollout import Session
from atommem.serve.conversation_log import (
    ConflictError,
    ConversationInfo,
    Event,
    LogState,
    NotFoundError,
    RequestKey,
)
from atommem.serve.gateway import Gateway
from atommem.session_state import SessionState
from atommem.trace import step_record

OnStep = Callable[[Step], Awaitable[None]]
OnAccepted = Callable[[], Awaitable[None]]
MAX_CONFLICTS = 50
"""Commits that may lose to other gateways before a request is refused."""
_Result = TypeVar("_Result")


class BusyError(AtomMemError):
    """Too many requests are waiting, or writing to one conversation."""


@dataclass(frozen=True)
class Answer:
    """A committed answer.

    Attributes:
        text: None if the policy gave none.
        entries: Those shown at the step that answered.
        steps: Those of answering.
    """

    text: str | None
    entries: tuple[Entry, ...]
    steps: tuple[Step, ...]


class Conversation:
    """A conversation in use, by one task at a time (`Conversations.use`).

    Every method commits its work before it returns. A step that raises or is cancelled leaves
    nothing in the log; the session is then loaded again. Work that loses to another gateway's
    commit is repeated on top of it.

    Attributes:
        session: As it stands in the log, once opened.
        state: Where the log stands.
    """

    session: Session
    state: LogState

    def __init__(self, gateway: Gateway, conversation: str, owner: str) -> None:
        self.id, self.owner = conversation, owner
        self.lock = asyncio.Lock()
        self.users = 0
        self.is_open = False
        self._gateway, self._log, self._in_thread = gateway, gateway.log, gateway.in_thread
        self._item_observations: tuple[int, Sequence[Observation]] = (0, ())

    async def open(self) -> None:
        """Load the session from the log unless it is loaded.

        Entries of another embedder are embedded again.

        Raises:
            NotFoundError: The owner has no such conversation.
        """
        if self.is_open:
            return
        agent, embedder = self._gateway.model.agent, self._gateway.model.agent.embedder.id
        with self._gateway.metrics.stages.labels("open").time():
            state = await self._in_thread(self._log.load, self.id, self.owner, embedder)
            start = Session(agent, self.id).memory.start
            start = replace(start, embedder=state.embedder or embedder)
            saved = SessionState(
                self.id, state.steps, state.sampled, start, state.operations, state.vectors
            )
            self.session = await Session.restore(agent, saved, reembed=True)
            self.state = replace(state, operations=(), vectors=None)
            self.is_open = True

    def drop(self) -> None:
        """Forget the session; `open` loads it again."""
        self.is_open = False

    async def add(
        self, items: Sequence[dict[str, Any]], request: RequestKey | None = None
    ) -> list[Event]:
        """Commit items; `read` reads them."""
        goal = (await self._info()).metadata.get("goal", "")
        questions = [line for line in goal.splitlines() if line.strip()]
        new = []
        for item in items:
            body = {**item, "questions": questions}
            new.append(Event("item", body, chunks=len(await self._reading(body))))
        return await self._append(new, request)

    async def read(self, on_step: OnStep | None = None) -> None:
        """Read the unread items, one turn a chunk.

        Raises:
            PromptTooLongError: A chunk exceeds the context; the rest of its item is skipped.
            OutageError: Committed steps stay; the next call continues.
        """
        while self.state.unread:
            item, (read, _) = next(iter(self.state.unread.items()))
            observations = await self._observations(item)
            # The number of chunks may differ from the log's under another checkpoint.
            self.state.unread[item] = read, len(observations)
            if read >= len(observations):
                await self._stop(item, "read under another checkpoint")
                continue
            try:
                step = await self._turn(observations[read])
                await self._commit([_step_event(step, item)])
            except ConflictError:
                await self._reload()
                continue
            except PromptTooLongError as error:
                await self._reload()
                await self._stop(item, str(error))
                raise
            if on_step is not None:
                await on_step(step)

    async def ask(
        self,
        question: str,
        response: str,
        on_step: OnStep | None = None,
        on_accepted: OnAccepted | None = None,
        request: RequestKey | None = None,
    ) -> Answer:
        """Ask a question after reading what is unread; raises like `read`.

        An error leaves the question in the log without an answer.

        Args:
            response: Id of the answer.
            on_step: Called after each committed step of reading and answering.
            on_accepted: Called when the question is committed.
            request: If it asked before, continue or return its committed answer.
        """
        ask = Event("ask", {"question": question}, response=response)
        if on_accepted is not None or self.state.unread:
            (ask,) = await self._append([ask], request)
        if on_accepted is not None:
            await on_accepted()
        await self.read(on_step)

        async def answer() -> Answer:
            nonlocal ask
            if before := await self._written_before(request):
                (ask,) = before
                committed = await self._committed_answer(ask)
                if committed is not None:
                    return committed
            steps: list[Step] = []
            entries: list[Entry] = []

            async def take_step(observation: Observation) -> Step:
                memory = self.session.memory
                shown = memory.view().retrieved
                entries[:] = [memory.contents.entries[item.entry_id] for item in shown]
                return await self._turn(observation)

            async def keep(step: Step, ended: bool, text: str | None) -> None:
                nonlocal ask
                # A question that nobody waits for is committed with its first step: one fsync less.
                new = [] if ask.version else [ask]
                version = ask.version or self.state.version + 1
                events = [*new, _step_event(step, version)]
                if ended:
                    body = {"text": text, "entries": [entry.id for entry in entries]}
                    events.append(Event("answer", body, parent=version, response=response))
                done = await self._commit(events, request if new else None)
                ask = done[0] if new else ask
                steps.append(step)
                if on_step is not None:
                    await on_step(step)

            factory = self._gateway.model.agent.factory
            text, _ = await answer_question(factory, question, take_step, keep)
            return Answer(text, tuple(entries), tuple(steps))

        try:
            return await self._retry(answer)
        except BaseException:
            if not ask.version:
                await self._append([ask], request)
            raise

    async def _committed_answer(self, ask: Event) -> Answer | None:
        """Return the answer in the log, with its entries as they are now."""
        found = await self._in_thread(self._log.events, self.id, ("answer",))
        body = next((event.body for event in found if event.parent == ask.version), None)
        if body is None:
            return None
        held = self.session.memory.contents.entries
        entries = tuple(held[entry_id] for entry_id in body["entries"] if entry_id in held)
        return Answer(body["text"], entries, ())

    async def edit(
        self, entry: int, text: str | None, request: RequestKey | None = None
    ) -> list[dict[str, Any]]:
        """Replace the text of an entry, or delete it (None); return the operations."""
        return await self._edit(
            [Event("edit")], lambda memory, step: memory.edit(entry, text, step), request
        )

    async def forget(self, source: str) -> list[dict[str, Any]]:
        """Delete the items of a source, with what was written while they were read."""
        items = await self._in_thread(self._log.items, self.id)
        return await self._forget([item for item in items if item.has_source(source)], source)

    async def delete_item(self, item_id: str) -> None:
        """Delete an item, with what was written while it was read."""
        items = await self._in_thread(self._log.items, self.id)
        found = [item for item in items if item.body["id"] == item_id]
        if not found:
            raise NotFoundError(f"there is no item {item_id!r} in this conversation.")
        await self._forget(found, found[0].source)

    async def _forget(self, items: Sequence[Event], source: str) -> list[dict[str, Any]]:
        deleted = {item.version for item in items}
        steps = await self._in_thread(self._log.events, self.id, ("step",))
        read = [step.step or 0 for step in steps if step.parent in deleted]
        events = [
            Event("deleted", {"item": item.body["id"]}, parent=item.version) for item in items
        ]
        return await self._edit(
            events or [Event("edit", {"forget": source})],
            lambda memory, step: memory.forget(source, step, steps_shown=read if items else None),
        )

    async def _edit(
        self,
        new: Sequence[Event],
        work: Callable[[WorkingMemory, int], Awaitable[Sequence[Operation]]],
        request: RequestKey | None = None,
    ) -> list[dict[str, Any]]:
        """Commit events with the operations of `work(memory, step)`; return them."""

        async def edit() -> Event:
            if before := await self._written_before(request):
                return before[0]
            written = await work(self.session.memory, max(0, self.session.steps - 1))
            first, *others = new
            first = replace(first, operations=[to_json(operation) for operation in written])
            return (await self._commit([first, *others], request))[0]

        version = (await self._retry(edit)).version
        operations = await self._in_thread(self._log.operations, self.id)
        return [operation for operation in operations if operation["version"] == version]

    async def _stop(self, item: int, reason: str) -> None:
        await self._append([Event("stopped", {"reason": reason}, parent=item)])

    async def _observations(self, item: int) -> Sequence[Observation]:
        """Return the observations in which an item is read."""
        if self._item_observations[0] != item:
            event = await self._item(item)
            observations = [
                replace(shown, origin=f"{event.source}, {shown.origin}")
                for shown in await self._reading(event.body)
            ]
            self._item_observations = item, observations
        return self._item_observations[1]

    async def _reading(self, item: Any) -> Sequence[Observation]:
        parts = item["parts"]
        text = parts[0] if len(parts) == 1 else parts
        reading = self._gateway.model.agent.factory.reading
        return await asyncio.to_thread(reading, text, item["questions"])

    async def _info(self) -> ConversationInfo:
        # Another gateway may have changed the metadata since this one loaded it.
        return await self._in_thread(self._log.info, self.id, self.owner)

    async def _item(self, version: int) -> Event:
        (item,) = await self._in_thread(
            lambda: self._log.events(self.id, ("item",), after=version - 1, limit=1)
        )
        return item

    async def _turn(self, observation: Observation) -> Step:
        """Run a turn; it is not committed yet."""
        gateway, metrics = self._gateway, self._gateway.metrics
        with metrics.stages.labels("queue").time():
            await gateway.turns.acquire()
        try:
            with metrics.stages.labels("turn").time():
                deadline = asyncio.get_running_loop().time() + gateway.turn_seconds
                step = await self.session.step(observation, affinity=self.id, deadline=deadline)
        finally:
            gateway.turns.release()
        metrics.tokens.labels("prompt").inc(step.prompt_tokens)
        metrics.tokens.labels("completion").inc(step.completion_tokens)
        return step

    async def _commit(self, new: Sequence[Event], request: RequestKey | None = None) -> list[Event]:
        model, state, memory = self._gateway.model, self.state, self.session.memory
        embedder = model.agent.embedder.id
        done = self._numbered(
            new, created_at=int(time.time()), checkpoint=model.checkpoint, embedder=embedder
        )
        written = [item for event in new for item in event.operations if item.get("after")]
        cached = None
        if state.embedder not in (None, embedder):
            cached = memory.vectors()
        elif written:
            changed = {item.get("entry_id") for item in written}
            cached = memory.vectors(memory.contents.entries.keys() & changed)
        with self._gateway.metrics.stages.labels("commit").time():
            await asyncio.wrap_future(self._log.commit(self.id, done, cached, request))
        for event in done:
            state.advance(event)
        return done

    def _numbered(self, new: Sequence[Event], **values: Any) -> list[Event]:
        return [
            replace(event, version=version, **values)
            for version, event in enumerate(new, self.state.version + 1)
        ]

    async def _reload(self) -> None:
        self.drop()
        await self.open()

    async def _retry(self, work: Callable[[], Awaitable[_Result]]) -> _Result:
        """Run work that commits, again after each conflict with another gateway."""
        for _ in range(MAX_CONFLICTS):
            try:
                return await work()
            except ConflictError:
                self._gateway.metrics.conflicts.inc()
                await self._reload()
        raise BusyError(f"conversation {self.id} is written by too many others. Try again.")

    async def _append(self, new: Sequence[Event], request: RequestKey | None = None) -> list[Event]:
        """Commit events, or return those that this request committed before."""

        async def append() -> list[Event]:
            before = await self._written_before(request, len(new))
            return before or await self._commit(new, request)

        return await self._retry(append)

    async def _written_before(self, request: RequestKey | None, count: int = 1) -> list[Event]:
        """Return the events that this request committed before."""
        if request is None:
            return []
        found = await self._in_thread(self._log.find_request, request)
        if found is None:
            return []
        return await self._in_thread(
            lambda: self._log.events(self.id, after=found.version - 1, limit=count)
        )


def _step_event(step: Step, parent: int) -> Event:
    return Event(
        "step",
        step_record(replace(step, operations=()), tokens=True),
        step=step.index,
        parent=parent,
        tokens=step.completion_tokens,
        operations=[to_json(operation) for operation in step.operations],
    )


class EphemeralConversation(Conversation):
    """A conversation for one call, without a log."""

    def __init__(self, gateway: Gateway, metadata: dict[str, str]) -> None:
        super().__init__(gateway, f"call_{secrets.token_hex(16)}", "")
        self.session = Session(gateway.model.agent, self.id)
        self.state = LogState(ConversationInfo(self.id, "", 0, metadata))
        self._items: dict[int, Event] = {}

    async def _reload(self) -> None:
        """Keep the session, because it has no log to load it from."""

    async def _info(self) -> ConversationInfo:
        return self.state.info

    async def _item(self, version: int) -> Event:
        return self._items[version]

    async def _commit(self, new: Sequence[Event], request: RequestKey | None = None) -> list[Event]:
        done = self._numbered(new)
        for event in done:
            self._items[event.version] = event
            self.state.advance(event)
        return done
