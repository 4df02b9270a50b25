"""What all conversations of a server share: model, log, metrics, threads, and turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
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
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.stages = Histogram(
            "atommem_stage_seconds",
            "Duration of a stage: queue, turn, open, commit, request",
            ["stage"],
            registry=self.registry,
            buckets=_BUCKETS,
        )
        self.requests = Counter(
            "atommem_requests", "Requests", ["route", "status"], registry=self.registry
        )
        self.tokens = Counter("atommem_tokens", "Model tokens", ["kind"], registry=self.registry)
        self.conflicts = Counter(
            "atommem_conflicts", "Commits that lost to another gateway", registry=self.registry
        )

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Export `value()` at every scrape."""
        Gauge(name, text, registry=self.registry).set_function(value)


@dataclass
class Resources:
    """What all conversations of a server share.

    Attributes:
        active: Most turns at a time.
        turn_seconds: Longest duration of a turn.
    """

    model: ServedModel
    log: ConversationLog
    active: int = 64
    turn_seconds: float = 300.0
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        self.threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="atommem-log")
        self.turns = asyncio.Semaphore(self.active)

    async def in_thread(self, work: Callable[..., _Result], *arguments: Any) -> _Result:
        """Run blocking work on the log. If this is cancelled, the work may still complete."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, work, *arguments)
