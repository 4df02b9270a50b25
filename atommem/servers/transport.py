"""An httpx transport for hundreds of requests at the same time."""

from __future__ import annotations

import ssl
from functools import cache

import httpx

SHARDS = 256
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=2.0)
"""Whoever uses it bounds the requests in flight. Idle connections go early: servers on uvicorn (vLLM) close them after
5 s, maybe while a request is sent."""


@cache
def tls_context() -> ssl.SSLContext:
    """The one that all share: reading the certificates takes tens of milliseconds."""
    return ssl.create_default_context()


class ShardedTransport(httpx.AsyncBaseTransport):
    """Spreads requests over several connection pools.

    httpcore looks at every connection of a pool at the beginning and at the end of every request. With a
    thousand requests in flight in one pool that was three quarters of this process's time.
    """

    def __init__(self, shards: int = SHARDS) -> None:
        self._shards = [httpx.AsyncHTTPTransport(verify=tls_context(), limits=LIMITS) for _ in range(shards)]
        self._in_flight = [0] * shards

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request through the pool that has the fewest."""
        index = self._in_flight.index(min(self._in_flight))
        self._in_flight[index] += 1
        try:
            response = await self._shards[index].handle_async_request(request)
            # Read here, so that a pool counts as busy until its connection is free again.
            await response.aread()
            return response
        finally:
            self._in_flight[index] -= 1

    async def aclose(self) -> None:
        """Close all pools."""
        for shard in self._shards:
            await shard.aclose()
