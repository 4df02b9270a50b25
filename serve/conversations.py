"""The conversations of a server; the most recently used stay in memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from atommem.serve.conversation import BusyError, Conversation, EphemeralConversation
from atommem.serve.conversation_log import ConversationLog
from atommem.serve.gateway import Gateway
from atommem.serve.served_model import ServedModel

MAX_IDLE = 500
"""Most conversations in memory that no request uses."""


class Conversations(Gateway):
    """The conversations of a server, with the model and the log that they share.

    Args:
        max_requests: Most requests that use a conversation or wait for one.
        settings: Further arguments of `Gateway`.

    Attributes:
        requests: Requests that use a conversation or wait for one.
        answering: Ids of responses in progress in this process.
    """

    def __init__(
        self, model: ServedModel, log: ConversationLog, *, max_requests: int = 320, **settings: Any
    ) -> None:
        super().__init__(model, log, **settings)
        self.requests = 0
        self.answering: set[str] = set()
        self._max_requests = max_requests
        self._open: OrderedDict[tuple[str, str], Conversation] = OrderedDict()
        self.metrics.waiting.set_function(lambda: self.requests)

    @asynccontextmanager
    async def use(self, conversation: str, owner: str) -> AsyncIterator[Conversation]:
        """Use a conversation exclusively within this process; raises like `Conversation.open`.

        Raises:
            BusyError: Too many requests are waiting.
        """
        key = conversation, owner
        with self._request():
            held = self._open.setdefault(key, Conversation(self, conversation, owner))
            held.users += 1
            try:
                async with held.lock:
                    try:
                        await held.open()
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
            yield EphemeralConversation(self, {"goal": goal})

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
        idle = [name for name, item in self._open.items() if not item.users]
        for name in idle[: len(idle) - MAX_IDLE] if len(idle) > MAX_IDLE else ():
            del self._open[name]

    async def erase(self, conversation: str, owner: str) -> None:
        """Erase a conversation with its log; raises NotFoundError."""
        await self.in_thread(self.log.erase, conversation, owner)
        held = self._open.get((conversation, owner))
        if held is not None:
            async with held.lock:
                held.drop()
            self._evict((conversation, owner), held)
