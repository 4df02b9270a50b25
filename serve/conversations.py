"""Conversations in use: each a `Session` whose every turn is committed to the log before it counts."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from atommem.episode import Step
from atommem.errors import AtomMemError, PromptTooLongError
from atommem.face.asking import asked
from atommem.memory.entries import Entry
from atommem.memory.operations import Operation
from atommem.memory.threads import offload
from atommem.observation import Observation
from atommem.serve.conversation_log import SNAPSHOT_EVERY, About, ConflictError, ConversationLog, Event, Loaded
from atommem.serve.serve_metrics import Metrics
from atommem.serve.served_policy import ServedPolicy
from atommem.session import Session
from atommem.session_state import SessionState
from atommem.trace import step_record

ATTEMPTS = 50
"""How often a commit that lost to another gateway's is made again on top of it."""
THREADS = 8
_Result = TypeVar("_Result")
OnStep = Callable[[Step], Awaitable[None]]
OnTaken = Callable[[], Awaitable[None]]


class BusyError(AtomMemError):
    """There is more to do than may wait: try again later."""


class MovedError(AtomMemError):
    """The conversation was written under another checkpoint or embedder."""


@dataclass(frozen=True)
class Answered:
    """An answer, as it was committed.

    Attributes:
        id: Of the response.
        text: None where the policy gave none.
        entries: What was shown of the memory at the step that answered.
        steps: All steps of answering.
    """

    id: str
    text: str | None
    entries: tuple[Entry, ...]
    steps: tuple[Step, ...]


class Conversation:
    """One conversation while it is in use. Its methods are for one task at a time (`Conversations.use`).

    Every method commits what it did before it returns. What is raised, or cancelled, in the middle of a step leaves the
    log without that step; the session is then taken up from the log again.
    """

    def __init__(self, shared: Conversations, conversation: str, owner: str) -> None:
        self.id = conversation
        self.owner = owner
        self.lock = asyncio.Lock()
        self.waiting = 0
        self._shared = shared
        self._session: Session | None = None
        self._loaded: Loaded | None = None
        self._shown: tuple[int, Sequence[Observation]] | None = None
        """The item that is being read, as it is shown."""

    @property
    def session(self) -> Session:
        """The session as the log says; only between `open` and the end of its use."""
        assert self._session is not None, "a conversation is opened before it is used"
        return self._session

    @property
    def log(self) -> Loaded:
        """Where the log stands."""
        assert self._loaded is not None, "a conversation is opened before it is used"
        return self._loaded

    @property
    def size(self) -> int:
        """Bytes that it takes while it is open, roughly."""
        if self._session is None:
            return 0
        memory = self._session.memory
        return (
            20_000
            + len(memory.contents.entries) * (4 * self._shared.policy.agent.embedder.dim + 1_000)
            + ((memory.contents.position - memory.start.contents.position) * 500)
        )

    async def open(self, *, whole: bool = False, moved: bool = False) -> None:
        """Take the session up from the log, unless it is there.

        Args:
            whole: With all of the log, not only what came since a snapshot.
            moved: Also where it was written under another checkpoint or embedder.

        Raises:
            NotFoundError: It is gone, or another's.
            MovedError: See `moved`.
        """
        if self._session is not None and not whole:
            return
        shared, agent = self._shared, self._shared.policy.agent
        with shared.metrics.stage("open"):
            loaded = await shared.in_thread(shared.log.load, self.id, self.owner, agent.embedder.id, whole)
            fresh = loaded.checkpoint in (None, shared.policy.checkpoint)
            same = loaded.embedder in (None, agent.embedder.id)
            if not (fresh and same) and not moved:
                raise MovedError(
                    f"conversation {self.id} was written by checkpoint {loaded.checkpoint} with embedder "
                    f"{loaded.embedder!r}; this server has {shared.policy.checkpoint} with {agent.embedder.id!r}. To "
                    f"go on with these: POST /v1/conversations/{self.id}/checkpoint. To go on as before: serve those."
                )
            start = loaded.start or Session(agent, self.id).memory.start
            if not same and loaded.embedder is not None:
                start = replace(start, embedder=loaded.embedder)
            state = SessionState(self.id, loaded.turns, loaded.sampled, start, tuple(loaded.operations), loaded.vectors)
            self._session = await Session.take_up(agent, state, reembed=moved)
            self._loaded = loaded

    def drop(self) -> None:
        """Forget the session: the log has it, or it never was."""
        self._session = self._loaded = None

    async def add(self, items: Sequence[dict[str, Any]]) -> list[Event]:
        """Take items to be read; `read` reads them. They stay, whatever becomes of this process."""
        policy = self._shared.policy
        goal = self.log.about.metadata.get("goal", "")
        questions = [line for line in goal.splitlines() if line.strip()]
        new = []
        for item in items:
            observations = await offload(policy.reading, item["parts"], questions)
            new.append(Event("item", {**item, "questions": questions}, chunks=len(observations)))
        return await self._again(lambda: self._commit(new))

    async def read(self, on_step: OnStep | None = None) -> None:
        """Read what has been taken and not been read, one turn a chunk.

        Raises:
            PromptTooLongError: A chunk does not fit the policy's context; the rest of its item is not read.
            OutageError: What was read before stays read, and reading goes on there.
        """
        while self.log.unread:
            of, done = self.log.unread[0]
            observations = await self._observations(of)
            try:
                step = await self._turn(observations[done], of)
            except ConflictError:
                await self._reload()
                continue
            except PromptTooLongError as error:
                await self._reload()
                await self.note(Event("stopped", {"reason": str(error)}, of=of))
                raise
            if on_step is not None:
                await on_step(step)

    async def ask(
        self, question: str, response: str, on_step: OnStep | None = None, on_taken: OnTaken | None = None
    ) -> Answered:
        """Ask, after what is unread has been read.

        Args:
            question: As asked.
            response: The answer's id.
            on_step: Called after every step, reading and answering, once it is committed.
            on_taken: Called once the question is.

        Raises:
            ...: As of `read`. The question is in the log then, without an answer.
        """
        ask = await self.note(Event("ask", {"question": question}, response=response))
        if on_taken is not None:
            await on_taken()
        await self.read(on_step)
        entries: tuple[Entry, ...] = ()

        async def turn(observation: Observation) -> Step:
            nonlocal entries

            async def once() -> Step:
                nonlocal entries
                held = self.session.memory.contents.entries
                entries = tuple(held[item.entry_id] for item in self.session.memory.view().retrieved)
                return await self._turn(observation, ask.version)

            step = await self._again(once)
            if on_step is not None:
                await on_step(step)
            return step

        text, steps = await asked(self._shared.policy.environments, question, turn)
        body = {"text": text, "entries": [entry.id for entry in entries]}
        await self.note(Event("answer", body, of=ask.version, response=response))
        return Answered(response, text, entries, tuple(steps))

    async def change(
        self, event: Event, work: Callable[[Session], Awaitable[Sequence[Operation]]]
    ) -> Sequence[Operation]:
        """What the owner does to the memory: an event with its operations."""

        async def once() -> Sequence[Operation]:
            written = await work(self.session)
            await self._commit([event], written)
            return written

        return await self._again(once)

    async def note(self, event: Event) -> Event:
        """An event that changes nothing."""
        return (await self._again(lambda: self._commit([event])))[0]

    async def _observations(self, of: int) -> Sequence[Observation]:
        """An item as it is shown."""
        if self._shown is None or self._shown[0] != of:
            shared = self._shared
            item = await self._item(of)
            observations = await offload(shared.policy.reading, item.body["parts"], item.body["questions"])
            name = item.body["name"] or item.body["id"]
            self._shown = of, [replace(shown, origin=f"{name}, {shown.origin}") for shown in observations]
        return self._shown[1]

    async def _item(self, of: int) -> Event:
        (item,) = await self._shared.in_thread(
            lambda: self._shared.log.events(self.id, ("item",), after=of - 1, limit=1)
        )
        return item

    async def _turn(self, observation: Observation, of: int) -> Step:
        """A turn, committed.

        Raises:
            ConflictError: Another gateway was faster: nothing of it counts.
        """
        shared = self._shared
        async with shared.turns.turn():
            with shared.metrics.stage("turn"):
                deadline = asyncio.get_running_loop().time() + shared.turn_seconds
                step = await self.session.turn(observation, affinity=self.id, deadline=deadline)
        shared.metrics.sampled(step.prompt_tokens, step.completion_tokens)
        body = step_record(replace(step, operations=()), tokens=True)
        event = Event("step", body, step=step.index, of=of, tokens=step.completion_tokens)
        await self._commit([event], step.operations)
        return step

    async def _commit(self, new: Sequence[Event], written: Sequence[Operation] = ()) -> list[Event]:
        shared, loaded, memory = self._shared, self.log, self.session.memory
        ids = {item.entry_id: None for item in written if item.entry_id in memory.contents.entries and item.after}
        cached = memory.vectors([entry_id for entry_id in ids if entry_id is not None]) if written else None
        seq = loaded.seq + len(written)
        due = seq // SNAPSHOT_EVERY > loaded.seq // SNAPSHOT_EVERY
        made = {"checkpoint": shared.policy.checkpoint, "embedder": shared.policy.agent.embedder.id}
        with shared.metrics.stage("commit"):
            await shared.in_thread(
                lambda: shared.log.commit(
                    self.id,
                    loaded.version,
                    loaded.seq,
                    new,
                    written,
                    cached=cached,
                    snapshot=memory.snapshot() if due else None,
                    **made,
                )
            )
        done = [replace(event, version=number) for number, event in enumerate(new, loaded.version + 1)]
        self._take(done, seq)
        return done

    def _take(self, done: Sequence[Event], seq: int) -> None:
        """Stand where the log stands after these events."""
        self.log.version, self.log.seq = done[-1].version, seq
        for event in done:
            self._take_unread(event)

    def _take_unread(self, event: Event) -> None:
        unread = self.log.unread
        if event.kind == "item" and event.chunks:
            unread.append((event.version, 0))
        elif event.kind == "stopped":
            unread[:] = [(of, done) for of, done in unread if of != event.of]
        elif event.kind == "fork":
            unread.clear()
        elif event.kind == "step" and unread and unread[0][0] == event.of:
            of, done = unread[0]
            assert self._shown is not None
            unread[:1] = [(of, done + 1)] if done + 1 < len(self._shown[1]) else []

    async def _reload(self) -> None:
        self.drop()
        await self.open()

    async def _again(self, work: Callable[[], Awaitable[_Result]]) -> _Result:
        """Do something that commits, once more on top of what came in between where another writer was faster.

        Raises:
            BusyError: Others are always faster.
        """
        for _ in range(ATTEMPTS):
            try:
                return await work()
            except ConflictError:
                self._shared.metrics.conflicts.inc()
                await self._reload()
        raise BusyError(f"conversation {self.id} is written by others all the time: try again.")


class PassingConversation(Conversation):
    """One that lives for a single call: in this process's memory, in no log."""

    def __init__(self, shared: Conversations, metadata: dict[str, str]) -> None:
        super().__init__(shared, f"call_{secrets.token_hex(16)}", "")
        self._session = Session(shared.policy.agent, self.id)
        self._loaded = Loaded(About(self.id, "", 0, metadata), 0, 0, 0, 0, None, None, None, [], None, [])
        self._items: dict[int, Event] = {}

    def drop(self) -> None:
        """There is no log to take it up from."""

    async def _item(self, of: int) -> Event:
        return self._items[of]

    async def _commit(self, new: Sequence[Event], written: Sequence[Operation] = ()) -> list[Event]:
        done = [replace(event, version=number) for number, event in enumerate(new, self.log.version + 1)]
        self._items |= {event.version: event for event in done if event.kind == "item"}
        self._take(done, self.log.seq + len(written))
        return done


class Turns:
    """Turns that are taken at the same time, and those that wait for one: bounded.

    Args:
        active: Most turns at the same time.
        waiting: Most that wait; further ones are refused.
    """

    def __init__(self, active: int, waiting: int, metrics: Metrics) -> None:
        self._slots = asyncio.Semaphore(active)
        self._most = active + waiting
        self._metrics = metrics
        self.taken = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn.

        Raises:
            BusyError: As many wait as may.
        """
        if self.taken >= self._most:
            raise BusyError("this server has as many turns waiting as it takes: try again.")
        self.taken += 1
        try:
            with self._metrics.stage("queue"):
                await self._slots.acquire()
            try:
                yield
            finally:
                self._slots.release()
        finally:
            self.taken -= 1


class Conversations:
    """All conversations of a server; those used last are held open.

    Args:
        policy: Who reads and answers.
        log: Where everything is committed.
        metrics: What is counted.
        active, waiting: See `Turns`.
        waiting_each: Most requests that wait for one conversation.
        open_count, open_bytes: Bounds of what is held open without being in use.
        turn_seconds: How long a turn may take.
    """

    def __init__(
        self,
        policy: ServedPolicy,
        log: ConversationLog,
        metrics: Metrics,
        *,
        active: int = 64,
        waiting: int = 256,
        waiting_each: int = 16,
        open_count: int = 500,
        open_bytes: int = 1_000_000_000,
        turn_seconds: float = 300.0,
    ) -> None:
        self.policy = policy
        self.log = log
        self.metrics = metrics
        self.turns = Turns(active, waiting, metrics)
        self.turn_seconds = turn_seconds
        self._waiting_each = waiting_each
        self._most = open_count, open_bytes
        self._open: OrderedDict[tuple[str, str], Conversation] = OrderedDict()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="atommem-log")
        metrics.watch("atommem_open_conversations", "Conversations held open", lambda: self.open_count)
        metrics.watch("atommem_open_bytes", "Bytes that they take, roughly", lambda: self.open_bytes)
        metrics.watch("atommem_turns_taken", "Turns in work or waiting", lambda: self.turns.taken)

    @asynccontextmanager
    async def use(
        self, conversation: str, owner: str, *, whole: bool = False, moved: bool = False
    ) -> AsyncIterator[Conversation]:
        """A conversation, for the caller alone as far as this process goes.

        Raises:
            NotFoundError: There is none of this id and owner.
            BusyError: Too many wait for it.
            MovedError: See `Conversation.open`.
        """
        key = conversation, owner
        held = self._open.get(key) or self._open.setdefault(key, Conversation(self, conversation, owner))
        if held.waiting >= self._waiting_each:
            raise BusyError(f"{held.waiting} requests wait for conversation {conversation}: try again.")
        held.waiting += 1
        try:
            async with held.lock:
                try:
                    await held.open(whole=whole, moved=moved)
                    yield held
                except BaseException:
                    held.drop()  # whatever was going on, the log knows how far it came
                    raise
        finally:
            held.waiting -= 1
            self._settle(key, held)

    async def forget(self, conversation: str, owner: str) -> None:
        """Take it up from the log again when it is used next: something of it has changed there."""
        held = self._open.get((conversation, owner))
        if held is not None:
            async with held.lock:
                held.drop()
            self._settle((conversation, owner), held)

    def passing(self, metadata: dict[str, str]) -> PassingConversation:
        """A conversation for one call."""
        return PassingConversation(self, metadata)

    def _settle(self, key: tuple[str, str], held: Conversation) -> None:
        """Close what is over the bounds, least recently used first."""
        if held.size == 0 and not held.waiting:
            self._open.pop(key, None)
        elif key in self._open:
            self._open.move_to_end(key)
        count, size = self._most
        while self._open and (len(self._open) > count or self.open_bytes > size):
            idle = next((name for name, item in self._open.items() if not item.waiting), None)
            if idle is None:
                return
            del self._open[idle]

    @property
    def open_count(self) -> int:
        """Conversations that are held open."""
        return len(self._open)

    @property
    def open_bytes(self) -> int:
        """What they take, roughly."""
        return sum(item.size for item in self._open.values())

    async def in_thread(self, work: Callable[..., _Result], *arguments: Any) -> _Result:
        """Do something with the log. Cancelled, it may or may not have been done: callers look again."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    async def close(self) -> None:
        """Free the policy and the threads."""
        await asyncio.to_thread(self._threads.shutdown)
        await self.policy.close()
