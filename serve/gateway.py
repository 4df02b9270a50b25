"""What all conversations of a server share: model, log, metrics, threads, and turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from atommem.serve.conversation_log import ConversationLog
from atommem.serve.served_model import ServedModel

_THREADS = 16
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_Result = TypeVar("_Result")


class Metrics:
    """Prometheus metrics of one server. Labels never hold text from clients."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.stages = Histogram(
            "atommem_stage_seconds",
            "Duration of a stage: queue, turn, open, commit, request",
            ["stage"],
            registry=registry,
            buckets=_BUCKETS,
        )
        self.requests = Counter(
            "atommem_requests", "Requests", ["route", "status"], registry=registry
        )
        self.tokens = Counter("atommem_tokens", "Model tokens", ["kind"], registry=registry)
        self.conflicts = Counter(
            "atommem_conflicts", "Commits that lost to another gateway", registry=registry
        )
        self.waiting = Gauge(
            "atommem_requests_waiting", "Requests in work or waiting", registry=registry
        )


class Gateway:
    """The model of a server and its log.

    Args:
        active: Most turns at a time.
        turn_seconds: Longest duration of a turn.
    """

    def __init__(
        self,
        model: ServedModel,
        log: ConversationLog,
        active: int = 64,
        turn_seconds: float = 300.0,
    ) -> None:
        self.model, self.log, self.metrics = model, log, Metrics()
        self.turns = asyncio.Semaphore(active)
        self.turn_seconds = turn_seconds
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="atommem-log")

    async def in_thread(self, work: Callable[..., _Result], *arguments: Any) -> _Result:
        """Run blocking work on the log. If this is cancelled, the work may still complete."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    async def close(self) -> None:
        """Release threads, model and connections."""
        await asyncio.to_thread(self._threads.shutdown)
        await self.model.close()
