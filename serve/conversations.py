"""All conversations of a server: those used last are held open."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from atommem.serve.conversation import Conversation, PassingConversation
from atommem.serve.conversation_log import ConversationLog
from atommem.serve.serve_metrics import Metrics
from atommem.serve.served_policy import ServedPolicy
from atommem.serve.shared import BusyError, Shared


class Conversations:
    """All conversations of a server; those used last are held open.

    Args:
        policy: Who reads and answers.
        log: Where everything is committed.
        metrics: What is counted.
        active, waiting, turn_seconds: See `Shared`.
        waiting_each: Most requests that wait for one conversation.
        open_count, open_bytes: Bounds of what is held open without being in use.
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
        self.shared = Shared(policy, log, metrics, active, waiting, turn_seconds)
        self.policy, self.log, self.metrics = policy, log, metrics
        self.in_thread = self.shared.in_thread
        self._waiting_each = waiting_each
        self.answering: set[str] = set()
        """Responses that this process is working on; another may be at others."""
        self._most = open_count, open_bytes
        self._open: OrderedDict[tuple[str, str], Conversation] = OrderedDict()
        self._sizes: dict[tuple[str, str], int] = {}
        metrics.watch(
            "atommem_open_conversations", "Conversations held open", lambda: self.open_count
        )
        metrics.watch(
            "atommem_open_bytes", "Bytes that they take, roughly", lambda: self.open_bytes
        )
        metrics.watch(
            "atommem_turns_taken", "Turns in work or waiting", lambda: self.shared.turns_taken
        )

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
        held = self._open.get(key) or self._open.setdefault(
            key, Conversation(self.shared, conversation, owner)
        )
        if held.waiting >= self._waiting_each:
            raise BusyError(
                f"{held.waiting} requests wait for conversation {conversation}: try again."
            )
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

    @asynccontextmanager
    async def passing(self, goal: str) -> AsyncIterator[Conversation]:
        """A conversation for one call."""
        yield PassingConversation(self.shared, {"goal": goal})

    def _settle(self, key: tuple[str, str], held: Conversation) -> None:
        """Close what is over the bounds, least recently used first."""
        if self._open.get(key) is not held:
            return
        self._sizes[key] = held.size
        self._open.move_to_end(key)
        if held.size == 0 and not held.waiting:
            del self._open[key], self._sizes[key]
        count, size = self._most
        while self._open and (len(self._open) > count or self.open_bytes > size):
            idle = next((name for name, item in self._open.items() if not item.waiting), None)
            if idle is None:
                return
            del self._open[idle]
            self._sizes.pop(idle, None)

    async def move_all(self) -> int:
        """Move every conversation of another checkpoint or embedder to this server's; how many there were."""
        moved = 0
        for about in await self.in_thread(self.log.all):
            async with self.use(about.id, about.owner, moved=True) as held:
                moved += await held.move()
        return moved

    def waiting(self, conversation: str, owner: str) -> int:
        """Requests that use a conversation, or wait to."""
        held = self._open.get((conversation, owner))
        return 0 if held is None else held.waiting

    @property
    def open_bytes(self) -> int:
        """What those take that are held open, roughly, as each was when it was last used."""
        return sum(self._sizes.values())

    @property
    def open_count(self) -> int:
        """Conversations that are held open."""
        return len(self._open)

    async def close(self) -> None:
        """Free the policy and the threads."""
        await asyncio.to_thread(self.shared.threads.shutdown)
        await self.policy.close()
