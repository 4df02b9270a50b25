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
from atommem.memory.log import Entry, Operation
from atommem.memory.memory import WorkingMemory
from atommem.memory.store import TextVectors
from atommem.rollout import Session
from atommem.serve.conversation_log import SNAPSHOT_INTERVAL
from atommem.serve.events import (
    BusyError,
    ConflictError,
    ConversationInfo,
    Event,
    LogState,
    RequestKey,
    source_name,
    update_unread,
)
from atommem.serve.resources import Resources
from atommem.session_state import SessionState
from atommem.trace import step_record

OnStep = Callable[[Step], Awaitable[None]]
OnAccepted = Callable[[], Awaitable[None]]
MAX_CONFLICTS = 50
"""Commits that may lose to other gateways before a request is refused."""
_Result = TypeVar("_Result")


class CheckpointError(AtomMemError):
    """The conversation was written with another checkpoint or embedder."""


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
    """

    def __init__(self, resources: Resources, conversation: str, owner: str) -> None:
        self.id = conversation
        self.owner = owner
        self.lock = asyncio.Lock()
        self.users = 0
        self._resources = resources
        self._session: Session | None = None
        self._state: LogState | None = None
        self._item_observations: tuple[int, Sequence[Observation]] | None = None

    @property
    def session(self) -> Session:
        """The session as it stands in the log."""
        assert self._session is not None, "open the conversation first"
        return self._session

    @property
    def is_open(self) -> bool:
        """Whether the session is in memory."""
        return self._session is not None

    @property
    def state(self) -> LogState:
        """Where the log stands."""
        assert self._state is not None, "open the conversation first"
        return self._state

    async def open(self, *, full: bool = False, any_checkpoint: bool = False) -> None:
        """Load the session from the log unless it is loaded.

        Args:
            full: Load all operations, also those before the newest snapshot.
            any_checkpoint: Open it also with another checkpoint or embedder.

        Raises:
            NotFoundError: The owner has no such conversation.
            CheckpointError: See `any_checkpoint`.
        """
        if self._session is not None and not full:
            return
        resources, model = self._resources, self._resources.model
        embedder = model.agent.embedder.id
        with resources.metrics.stages.labels("open").time():
            state = await resources.in_thread(
                lambda: resources.log.load(self.id, self.owner, embedder, full=full)
            )
            same_embedder = state.embedder in (None, embedder)
            if not any_checkpoint and not (
                same_embedder and state.checkpoint in (None, model.checkpoint)
            ):
                raise CheckpointError(
                    f"conversation {self.id} was written by checkpoint {state.checkpoint} with "
                    f"embedder {state.embedder!r}; this server has {model.checkpoint} with "
                    f"{embedder!r}. Switch it with POST /v1/conversations/{self.id}/checkpoint, or "
                    "serve the former checkpoint."
                )
            start = state.snapshot or Session(model.agent, self.id).memory.start
            start = replace(start, embedder=state.embedder or embedder)
            session_state = SessionState(
                self.id, state.turns, state.sampled, start, tuple(state.operations), state.vectors
            )
            self._session = await Session.restore(
                model.agent, session_state, reembed=any_checkpoint
            )
            self._state = state

    def drop(self) -> None:
        """Forget the session; `open` loads it again."""
        self._session = self._state = None

    async def add(
        self, items: Sequence[dict[str, Any]], request: RequestKey | None = None
    ) -> list[Event]:
        """Commit items; `read` reads them."""
        goal = (await self._info()).metadata.get("goal", "")
        questions = [line for line in goal.splitlines() if line.strip()]
        new = []
        for item in items:
            chunks = await asyncio.to_thread(
                self._resources.model.reading, item["parts"], questions
            )
            new.append(Event("item", {**item, "questions": questions}, chunks=len(chunks)))
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
                await self._commit([_step_event(step, item)], step.operations)
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
        """Ask a question after reading what is unread.

        Args:
            question: The question.
            response: Id of the answer.
            on_step: Called after each committed step of reading and answering.
            on_accepted: Called when the question is committed.
            request: If it asked before, continue or return its committed answer.

        Raises:
            ...: Like `read`. The question then stays in the log without an answer.
        """
        ask = Event("ask", {"question": question}, response=response)
        if on_accepted is not None or self.state.unread:
            ask = await self.note(ask, request)
        if on_accepted is not None:
            await on_accepted()
        await self.read(on_step)

        async def answer() -> Answer:
            nonlocal ask
            if not ask.version and (before := await self._written_before(request)):
                ask = before[0]
            if ask.version and request is not None:
                committed = await self._committed_answer(ask)
                if committed is not None:
                    return committed
            steps: list[Step] = []
            entries: tuple[Entry, ...] = ()

            async def turn(observation: Observation) -> Step:
                nonlocal entries
                memory = self.session.memory
                shown = (item.entry_id for item in memory.view().retrieved)
                entries = tuple(memory.contents.entries[entry_id] for entry_id in shown)
                return await self._turn(observation)

            async def keep(step: Step, ended: bool, text: str | None) -> None:
                nonlocal ask
                # An unacknowledged question is committed with its first step: one fsync less.
                new, key = ([], None) if ask.version else ([ask], request)
                version = ask.version or self.state.version + 1
                new.append(_step_event(step, version))
                if ended:
                    body = {"text": text, "entries": [entry.id for entry in entries]}
                    new.append(Event("answer", body, parent=version, response=response))
                done = await self._commit(new, step.operations, request=key)
                ask = ask if ask.version else done[0]
                steps.append(step)
                if on_step is not None:
                    await on_step(step)

            environments = self._resources.model.agent.environments
            text, _ = await answer_question(environments, question, turn, keep)
            return Answer(text, entries, tuple(steps))

        try:
            return await self._retry(answer)
        except BaseException:
            if not ask.version:
                await self.note(ask, request)
            raise

    async def _committed_answer(self, ask: Event) -> Answer | None:
        """Return the answer in the log, with its entries as they are now."""
        log = self._resources.log
        found = await self._resources.in_thread(
            lambda: log.events(self.id, ("answer",), after=ask.version)
        )
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

    async def delete(self, items: Sequence[Event], source: str) -> list[dict[str, Any]]:
        """Delete items, with what was written while they were read; return the operations.

        Args:
            items: What to delete, read or not.
            source: Their source name, or part of a text; other items may have it, too.
        """
        log, deleted = self._resources.log, {item.version for item in items}
        steps = await self._resources.in_thread(lambda: log.events(self.id, ("step",)))
        read = [step.step or 0 for step in steps if step.parent in deleted]
        events = [
            Event("deleted", {"item": item.body["id"]}, parent=item.version) for item in items
        ]
        return await self._edit(
            events or [Event("edit", {"forget": source})],
            lambda memory, step: memory.forget(source, step, read=read if items else None),
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
            written = await work(self.session.memory, max(0, self.session.turns - 1))
            return (await self._commit(new, written, request=request))[0]

        version = (await self._retry(edit)).version
        log = self._resources.log
        return await self._resources.in_thread(lambda: log.operations(self.id, 0, version=version))

    async def recall(self, query: str) -> list[tuple[Entry, float]]:
        """Return the entries that the policy would be shown for a query, with scores."""
        return await self.session.memory.search(query)

    async def switch_checkpoint(self) -> bool:
        """Continue with the server's checkpoint and embedder; return whether they differed."""
        state, model = self.state, self._resources.model
        now = {"checkpoint": model.checkpoint, "embedder": model.agent.embedder.id}
        before = {"checkpoint": state.checkpoint, "embedder": state.embedder}
        if state.checkpoint is None or before == now:
            return False
        cached = self.session.memory.vectors()
        await self._commit([Event("checkpoint", before)], cached=cached, snapshot=True)
        self._item_observations = None
        return True

    async def note(self, event: Event, request: RequestKey | None = None) -> Event:
        """Commit an event without operations."""
        return (await self._append([event], request))[0]

    async def _stop(self, item: int, reason: str) -> None:
        await self.note(Event("stopped", {"reason": reason}, parent=item))

    async def _observations(self, item: int) -> Sequence[Observation]:
        """Return the observations in which an item is read."""
        if self._item_observations is None or self._item_observations[0] != item:
            event = await self._item(item)
            body, name = event.body, source_name(event)
            reading = self._resources.model.reading
            observations = await asyncio.to_thread(reading, body["parts"], body["questions"])
            self._item_observations = (
                item,
                [replace(shown, origin=f"{name}, {shown.origin}") for shown in observations],
            )
        return self._item_observations[1]

    async def _info(self) -> ConversationInfo:
        # Another gateway may have changed the metadata since this one loaded it.
        return await self._resources.in_thread(self._resources.log.info, self.id, self.owner)

    async def _item(self, version: int) -> Event:
        log = self._resources.log
        (item,) = await self._resources.in_thread(
            lambda: log.events(self.id, ("item",), after=version - 1, limit=1)
        )
        return item

    async def _turn(self, observation: Observation) -> Step:
        """Run a turn; it is not committed yet."""
        resources, metrics = self._resources, self._resources.metrics
        with metrics.stages.labels("queue").time():
            await resources.turns.acquire()
        try:
            with metrics.stages.labels("turn").time():
                deadline = asyncio.get_running_loop().time() + resources.turn_seconds
                step = await self.session.turn(observation, affinity=self.id, deadline=deadline)
        finally:
            resources.turns.release()
        metrics.tokens.labels("prompt").inc(step.prompt_tokens)
        metrics.tokens.labels("completion").inc(step.completion_tokens)
        return step

    async def _commit(
        self,
        new: Sequence[Event],
        written: Sequence[Operation] = (),
        *,
        cached: TextVectors | None = None,
        snapshot: bool = False,
        request: RequestKey | None = None,
    ) -> list[Event]:
        resources, state, memory = self._resources, self.state, self.session.memory
        made: dict[str, Any] = {
            "created_at": int(time.time()),
            "checkpoint": resources.model.checkpoint,
            "embedder": resources.model.agent.embedder.id,
        }
        done = [
            replace(event, version=version, **made)
            for version, event in enumerate(new, state.version + 1)
        ]
        if cached is None and any(operation.after for operation in written):
            held = memory.contents.entries
            changed = {item.entry_id for item in written if item.after and item.entry_id in held}
            cached = memory.vectors([entry_id for entry_id in changed if entry_id is not None])
        seq = state.seq + len(written)
        snapshot = snapshot or seq // SNAPSHOT_INTERVAL > state.seq // SNAPSHOT_INTERVAL
        with resources.metrics.stages.labels("commit").time():
            await asyncio.wrap_future(
                resources.log.commit(
                    self.id,
                    state.seq,
                    done,
                    written,
                    cached=cached,
                    snapshot=memory.snapshot() if snapshot else None,
                    request=request,
                )
            )
        self._advance(done, seq)
        return done

    def _advance(self, done: Sequence[Event], seq: int) -> None:
        state, last = self.state, done[-1]
        state.version, state.seq = last.version, seq
        state.checkpoint, state.embedder = last.checkpoint, last.embedder
        for event in done:
            update_unread(state.unread, event.version, event.kind, event.parent, event.chunks)

    async def _reload(self) -> None:
        self.drop()
        await self.open()

    async def _retry(self, work: Callable[[], Awaitable[_Result]]) -> _Result:
        """Run work that commits, again after each conflict with another gateway.

        Raises:
            BusyError: Too many conflicts.
        """
        for _ in range(MAX_CONFLICTS):
            try:
                return await work()
            except ConflictError:
                self._resources.metrics.conflicts.inc()
                await self._reload()
        raise BusyError(f"conversation {self.id} is written by too many others. Try again.")

    async def _append(self, new: Sequence[Event], request: RequestKey | None) -> list[Event]:
        """Commit events, or return those that this request committed before."""

        async def append() -> list[Event]:
            before = await self._written_before(request, len(new))
            return before or await self._commit(new, request=request)

        return await self._retry(append)

    async def _written_before(self, request: RequestKey | None, count: int = 1) -> list[Event]:
        """Return the events that this request committed before."""
        if request is None:
            return []
        resources = self._resources
        found = await resources.in_thread(resources.log.find_request, request)
        if found is None:
            return []
        return await resources.in_thread(
            lambda: resources.log.events(self.id, after=found.version - 1, limit=count)
        )


def _step_event(step: Step, parent: int) -> Event:
    body = step_record(replace(step, operations=()), tokens=True)
    return Event("step", body, step=step.index, parent=parent, tokens=step.completion_tokens)


class EphemeralConversation(Conversation):
    """A conversation for one call, without a log."""

    def __init__(self, resources: Resources, metadata: dict[str, str]) -> None:
        super().__init__(resources, f"call_{secrets.token_hex(16)}", "")
        self._session = Session(resources.model.agent, self.id)
        self._state = LogState(ConversationInfo(self.id, "", 0, metadata))
        self._items: dict[int, Event] = {}

    def drop(self) -> None:
        """Keep the session: there is no log to load it from."""

    async def _info(self) -> ConversationInfo:
        return self.state.info

    async def _item(self, version: int) -> Event:
        return self._items[version]

    async def _commit(
        self, new: Sequence[Event], written: Sequence[Operation] = (), **_: Any
    ) -> list[Event]:
        done = [
            replace(event, version=version)
            for version, event in enumerate(new, self.state.version + 1)
        ]
        self._items |= {event.version: event for event in done if event.kind == "item"}
        self._advance(done, self.state.seq + len(written))
        return done
