"""The conversations of a server; the most recently used stay in memory."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from atommem.serve.conversation import Conversation, EphemeralConversation
from atommem.serve.events import BusyError
from atommem.serve.resources import Resources


class Conversations:
    """The conversations of a server; the most recently used stay in memory.

    Args:
        resources: Model, log and turns.
        max_requests: Most requests that use a conversation or wait for one.
        max_open: Most idle conversations in memory.

    Attributes:
        requests: Requests that use a conversation or wait for one.
        answering: Ids of responses in progress in this process.
    """

    def __init__(
        self, resources: Resources, *, max_requests: int = 320, max_open: int = 500
    ) -> None:
        self.resources = resources
        self.model, self.log, self.metrics = resources.model, resources.log, resources.metrics
        self.in_thread = resources.in_thread
        self.requests = 0
        self.answering: set[str] = set()
        self._max_requests, self._max_open = max_requests, max_open
        self._open: OrderedDict[tuple[str, str], Conversation] = OrderedDict()
        self.metrics.gauge(
            "atommem_open_conversations", "Conversations in memory", lambda: self.open_count
        )
        self.metrics.gauge(
            "atommem_requests_waiting", "Requests in work or waiting", lambda: self.requests
        )

    @asynccontextmanager
    async def use(
        self, conversation: str, owner: str, *, full: bool = False, any_checkpoint: bool = False
    ) -> AsyncIterator[Conversation]:
        """Use a conversation exclusively within this process; see `Conversation.open`.

        Raises:
            NotFoundError: `owner` has no such conversation.
            BusyError: Too many requests are waiting.
            CheckpointError: See `Conversation.open`.
        """
        key = conversation, owner
        with self._request():
            held = self._open.setdefault(key, Conversation(self.resources, conversation, owner))
            held.users += 1
            try:
                async with held.lock:
                    try:
                        await held.open(full=full, any_checkpoint=any_checkpoint)
                        yield held
                    except BaseException:
                        held.drop()  # the log knows what was committed
                        raise
            finally:
                held.users -= 1
                self._evict(key, held)

    @asynccontextmanager
    async def ephemeral(self, goal: str) -> AsyncIterator[Conversation]:
        """Use a conversation for one call."""
        with self._request():
            yield EphemeralConversation(self.resources, {"goal": goal})

    @contextmanager
    def _request(self) -> Iterator[None]:
        if self.requests >= self._max_requests:
            raise BusyError("this server has too many waiting requests. Try again.")
        self.requests += 1
        try:
            yield
        finally:
            self.requests -= 1

    def _evict(self, key: tuple[str, str], held: Conversation) -> None:
        """Close `held` if it was dropped, and the least recently used beyond the bound."""
        if self._open.get(key) is not held:
            return
        self._open.move_to_end(key)
        if not held.is_open and not held.users:
            del self._open[key]
        excess = len(self._open) - self._max_open
        if excess > 0:
            idle = [name for name, item in self._open.items() if not item.users]
            for name in idle[:excess]:
                del self._open[name]

    async def drop(self, conversation: str, owner: str) -> None:
        """Load a conversation from the log again when it is used next."""
        held = self._open.get((conversation, owner))
        if held is not None:
            async with held.lock:
                held.drop()
            self._evict((conversation, owner), held)

    async def switch_checkpoints(self) -> int:
        """Switch all conversations to this server's checkpoint and embedder; return how many."""
        switched = 0
        for info in await self.in_thread(self.log.conversations):
            async with self.use(info.id, info.owner, any_checkpoint=True) as held:
                switched += await held.switch_checkpoint()
        return switched

    @property
    def open_count(self) -> int:
        """Number of conversations in memory."""
        return len(self._open)

    async def close(self) -> None:
        """Release threads, model and connections."""
        await asyncio.to_thread(self.resources.threads.shutdown)
        await self.model.close()
