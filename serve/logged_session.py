"""A `Session` whose every turn is committed to the log before it counts: taken up from it, and written to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from atommem.errors import AtomMemError
from atommem.memory.log import Operation
from atommem.memory.store import TextVectors
from atommem.observation import Observation
from atommem.serve.conversation_log import SNAPSHOT_EVERY
from atommem.serve.log_rows import ConflictError, Event, Loaded, RequestKey, take_unread
from atommem.serve.shared import BusyError, Shared
from atommem.session import Session
from atommem.session_state import SessionState

ATTEMPTS = 50
"""How often a commit that lost to another gateway's is made again on top of it."""
_Result = TypeVar("_Result")


class MovedError(AtomMemError):
    """The conversation was written under another checkpoint or embedder."""


class LoggedSession:
    """A conversation's session, where the log stands, and what commits one to the other.

    What a request with a key wrote is looked up before it is written again, and what another gateway's writing made
    fail is done again on top of that.
    """

    def __init__(self, shared: Shared, conversation: str, owner: str) -> None:
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
            loaded = await shared.in_thread(
                shared.log.load, self.id, self.owner, agent.embedder.id, whole
            )
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
            state = SessionState(
                self.id,
                loaded.turns,
                loaded.sampled,
                start,
                tuple(loaded.operations),
                loaded.vectors,
            )
            self._session = await Session.take_up(agent, state, reembed=moved)
            self._loaded = loaded

    def drop(self) -> None:
        """Forget the session: the log has it, or it never was."""
        self._session = self._loaded = None

    async def _commit(
        self,
        new: Sequence[Event],
        written: Sequence[Operation] = (),
        *,
        cached: TextVectors | None = None,
        snapshot: bool = False,
        request: RequestKey | None = None,
    ) -> list[Event]:
        shared, loaded, memory = self._shared, self.log, self.session.memory
        new = [replace(event, created_at=int(time.time())) for event in new]
        ids = {
            item.entry_id: None
            for item in written
            if item.entry_id in memory.contents.entries and item.after
        }
        if cached is None and any(item.after for item in written):
            cached = memory.vectors([entry_id for entry_id in ids if entry_id is not None])
        seq = loaded.seq + len(written)
        due = snapshot or seq // SNAPSHOT_EVERY > loaded.seq // SNAPSHOT_EVERY
        made = {"checkpoint": shared.policy.checkpoint, "embedder": shared.policy.agent.embedder.id}
        with shared.metrics.stage("commit"):
            kept = memory.snapshot() if due else None
            await asyncio.wrap_future(
                shared.log.commit(
                    self.id,
                    loaded.version,
                    loaded.seq,
                    new,
                    written,
                    cached=cached,
                    snapshot=kept,
                    request=request,
                    **made,
                )
            )
        done = [
            replace(event, version=number) for number, event in enumerate(new, loaded.version + 1)
        ]
        self._take(done, seq)
        return done

    def _take(self, done: Sequence[Event], seq: int) -> None:
        """Stand where the log stands after these events."""
        self.log.version, self.log.seq = done[-1].version, seq
        for event in done:
            take_unread(self.log.unread, event.version, event.kind, event.of, event.chunks)

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

    async def _once(self, new: Sequence[Event], request: RequestKey | None) -> list[Event]:
        """Append; or what this request appended when it came before."""

        async def once() -> list[Event]:
            return await self._before(request, len(new)) or await self._commit(new, request=request)

        return await self._again(once)

    async def _before(self, request: RequestKey | None, count: int = 1) -> list[Event]:
        """The events that this request appended when it came before."""
        shared = self._shared
        if request is None or (wrote := await shared.in_thread(shared.log.wrote, request)) is None:
            return []
        return await shared.in_thread(
            lambda: shared.log.events(self.id, after=wrote.version - 1, limit=count)
        )
