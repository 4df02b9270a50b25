"""What a server counts and measures, as Prometheus reads it. No label holds what a client wrote."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """Of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)  # resident memory, CPU, open files
        self._stages = Histogram(
            "atommem_stage_seconds",
            "Seconds by stage: queue, turn, open, commit, request",
            ["stage"],
            registry=self.registry,
            buckets=_BUCKETS,
        )
        self._requests = Counter(
            "atommem_requests",
            "Requests by route and status",
            ["route", "status"],
            registry=self.registry,
        )
        self._tokens = Counter(
            "atommem_tokens", "Tokens of the policy", ["kind"], registry=self.registry
        )
        self.conflicts = Counter(
            "atommem_conflicts", "Commits that another gateway was ahead of", registry=self.registry
        )

    def stage(self, name: str) -> AbstractContextManager[Any]:
        """Measure a part of a request."""
        return self._stages.labels(name).time()

    def sampled(self, prompt_tokens: int, completion_tokens: int) -> None:
        """Count a completion."""
        self._tokens.labels("prompt").inc(prompt_tokens)
        self._tokens.labels("completion").inc(completion_tokens)

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self._requests.labels(route, str(status)).inc()
        self._stages.labels("request").observe(seconds)

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Measure something whenever somebody asks."""
        Gauge(name, text, registry=self.registry).set_function(value)

    def text(self) -> bytes:
        """All of it."""
        return generate_latest(self.registry)
