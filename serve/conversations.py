"""The conversations of a server; the most recently used stay in memory."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from atommem.serve.conversation import Conversation, EphemeralConversation
from atommem.serve.resources import BusyError, Resources

_WAITING_EACH = 16


class Conversations:
    """The conversations of a server; the most recently used stay in memory.

    Args:
        resources: Model, log and bounds of turns.
        waiting_each: Most requests for one conversation at a time.
        open_count, open_bytes: Bounds of idle conversations in memory.
    """

    def __init__(
        self,
        resources: Resources,
        *,
        waiting_each: int = _WAITING_EACH,
        open_count: int = 500,
        open_bytes: int = 1_000_000_000,
    ) -> None:
        self.resources = resources
        self.model, self.log, self.metrics = resources.model, resources.log, resources.metrics
        self.in_thread = resources.in_thread
        self.answering: set[str] = set()
        """Ids of responses in progress in this process."""
        self._waiting_each = waiting_each
        self._open_count, self._open_bytes = open_count, open_bytes
        self._open: OrderedDict[tuple[str, str], Conversation] = OrderedDict()
        self._sizes: dict[tuple[str, str], int] = {}
        gauges = (
            ("atommem_open_conversations", "Conversations in memory", lambda: self.open_count),
            ("atommem_open_bytes", "Their approximate size", lambda: self.open_bytes),
        )
        for name, text, value in gauges:
            self.metrics.gauge(name, text, value)

    @asynccontextmanager
    async def use(
        self, conversation: str, owner: str, *, full: bool = False, any_checkpoint: bool = False
    ) -> AsyncIterator[Conversation]:
        """Use a conversation exclusively within this process; see `Conversation.open`.

        Raises:
            NotFoundError: `owner` has no such conversation.
            BusyError: Too many requests wait for it.
            CheckpointError: See `Conversation.open`.
        """
        key = conversation, owner
        held = self._open.get(key) or self._open.setdefault(
            key, Conversation(self.resources, conversation, owner)
        )
        if held.waiting >= self._waiting_each:
            raise BusyError(
                f"{held.waiting} requests wait for conversation {conversation}. Try again."
            )
        held.waiting += 1
        try:
            async with held.lock:
                try:
                    await held.open(full=full, any_checkpoint=any_checkpoint)
                    yield held
                except BaseException:
                    held.drop()  # the log knows what was committed
                    raise
        finally:
            held.waiting -= 1
            self._evict(key, held)

    async def reload(self, conversation: str, owner: str) -> None:
        """Load a conversation from the log again when it is used next."""
        held = self._open.get((conversation, owner))
        if held is not None:
            async with held.lock:
                held.drop()
            self._evict((conversation, owner), held)

    @asynccontextmanager
    async def ephemeral(self, goal: str) -> AsyncIterator[Conversation]:
        """Use a conversation for one call."""
        yield EphemeralConversation(self.resources, {"goal": goal})

    def _evict(self, key: tuple[str, str], held: Conversation) -> None:
        """Record the size of `held`, and close the least recently used beyond the bounds."""
        if self._open.get(key) is not held:
            return
        self._sizes[key] = held.size
        self._open.move_to_end(key)
        if held.size == 0 and not held.waiting:
            del self._open[key], self._sizes[key]
        while len(self._open) > self._open_count or self.open_bytes > self._open_bytes:
            idle = next((name for name, item in self._open.items() if not item.waiting), None)
            if idle is None:
                return
            del self._open[idle]
            self._sizes.pop(idle, None)

    async def switch_checkpoints(self) -> int:
        """Switch all conversations to this server's checkpoint and embedder; return how many."""
        switched = 0
        for info in await self.in_thread(self.log.conversations):
            async with self.use(info.id, info.owner, any_checkpoint=True) as held:
                switched += await held.switch_checkpoint()
        return switched

    def waiting(self, conversation: str, owner: str) -> int:
        """Return the number of requests that use a conversation or wait for it."""
        held = self._open.get((conversation, owner))
        return 0 if held is None else held.waiting

    @property
    def open_bytes(self) -> int:
        """Approximate size of the conversations in memory."""
        return sum(self._sizes.values())

    @property
    def open_count(self) -> int:
        """Number of conversations in memory."""
        return len(self._open)

    async def close(self) -> None:
        """Release threads, model and connections."""
        await asyncio.to_thread(self.resources.threads.shutdown)
        await self.model.close()
