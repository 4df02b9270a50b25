"""The conversations of a server: who uses one, and how many wait."""

from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from weakref import WeakValueDictionary

from anyio import CancelScope
from prometheus_client import Gauge
from starlette.concurrency import run_in_threadpool

from atommem.errors import AtomMemError, ConfigError, DataError, PromptTooLongError
from atommem.memory.log import Entry
from atommem.serve.conversation import Conversation
from atommem.serve.conversation_log import ConversationLog
from atommem.serve.schema import NotFoundError, RequestKey
from atommem.serve.served_model import STAGES, ServedModel

WAITING = Gauge("atommem_requests_waiting", "Requests in work or waiting")
MAX_SCOPE = 100  # conversations that one search goes through
MAX_RECENT = 500  # conversations that stay in memory


class BusyError(AtomMemError):
    """Too many requests are waiting."""


class Conversations:
    """The conversations of a server; at most `max_requests` use one or wait for one.

    `answering` are the ids of responses in progress in this process.
    """

    def __init__(self, model: ServedModel, log: ConversationLog, max_requests: int = 320) -> None:
        self.model, self.log = model, log
        self.requests = 0
        self.answering: set[str] = set()
        self._max_requests = max_requests
        self._in_use: WeakValueDictionary[tuple[str, str], Conversation] = WeakValueDictionary()
        self._recent: OrderedDict[tuple[str, str], Conversation] = OrderedDict()

    @asynccontextmanager
    async def use(self, conversation: str, owner: str) -> AsyncIterator[Conversation]:
        """Use a conversation exclusively within this process; raises NotFoundError or BusyError."""
        async with self.admit():
            key = conversation, owner
            held = self._in_use.setdefault(key, Conversation(self.model, self.log, *key))
            async with held.lock:
                if not held.is_open:
                    with STAGES.labels("open").time():
                        await held.reload()
                self._recent[key] = held
                self._recent.move_to_end(key)
                if len(self._recent) > MAX_RECENT:
                    self._recent.popitem(last=False)
                held.is_open = False  # after an error or a cancellation the log knows the state
                yield held
                held.is_open = True

    @asynccontextmanager
    async def admit(self) -> AsyncIterator[None]:
        """Count a request; raise BusyError beyond `max_requests`."""
        if self.requests >= self._max_requests:
            raise BusyError("this server has too many waiting requests. Try again.")
        self.requests += 1
        try:
            with WAITING.track_inprogress():
                yield
        finally:
            self.requests -= 1

    async def recall(
        self, owner: str, where: Mapping[str, str], query: str, k: int | None = None
    ) -> list[tuple[str, Entry, float]]:
        """Return what the `MAX_SCOPE` newest of this metadata recall, best first, with ids."""
        infos = partial(self.log.conversations, owner, where=where, limit=MAX_SCOPE)
        found = []
        for info in await run_in_threadpool(infos):
            async with self.use(info.id, owner) as held:
                hits = await held.recall(query, k)
            found += [(info.id, entry, score) for entry, score in hits]
        k = k or self.model.runtime.run.memory.retrieve_k
        return sorted(found, key=lambda hit: -hit[2])[:k]

    @asynccontextmanager
    async def settled(self, request: RequestKey | None) -> AsyncIterator[None]:
        """Record whether the work of a request fails: an equal one then continues it."""
        try:
            yield
        except (NotFoundError, DataError, ConfigError, PromptTooLongError):
            raise  # an equal request would fail again
        except BaseException:
            with CancelScope(shield=True):
                await run_in_threadpool(self.log.mark, request, True)
            raise
        if request is not None and not request.renews:
            await run_in_threadpool(self.log.mark, request, False)

    async def erase(self, conversation: str, owner: str) -> None:
        """Erase a conversation with its log; raises NotFoundError."""
        await run_in_threadpool(self.log.erase, conversation, owner)
        self._recent.pop((conversation, owner), None)
        if held := self._in_use.get((conversation, owner)):
            async with held.lock:
                held.is_open = False
