"""An httpx transport for hundreds of requests at the same time."""

from __future__ import annotations

import ssl
from functools import cache

import httpx

SHARDS = 256
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=2.0)
"""Whoever uses it bounds the requests in flight. Idle connections go early: servers on uvicorn (vLLM) close them after
5 s, maybe while a request is sent."""


_OF_SENDING = (b"content-encoding", b"content-length", b"transfer-encoding")
"""Headers of how a body was sent, and not of what it is."""


@cache
def tls_context() -> ssl.SSLContext:
    """The one that all share: reading the certificates takes tens of milliseconds."""
    return ssl.create_default_context()


class LargerError(Exception):
    """An answer is larger than is taken."""


async def whole(response: httpx.Response, most: int) -> httpx.Response:
    """`response` with its body read and unpacked; of one that is, itself.

    Raises:
        LargerError: It is larger than `most` bytes. No more than a part has been read beyond them.
    """
    if response.is_closed:
        return response
    body = bytearray()
    try:
        async for part in response.aiter_bytes():
            body += part
            if len(body) > most:
                raise LargerError
    finally:
        await response.aclose()
    headers = [
        (name, value) for name, value in response.headers.raw if name.lower() not in _OF_SENDING
    ]
    return httpx.Response(
        response.status_code, headers=headers, content=bytes(body), extensions=response.extensions
    )


class ShardedTransport(httpx.AsyncBaseTransport):
    """Spreads requests over several connection pools.

    httpcore looks at every connection of a pool at the beginning and at the end of every request. With a
    thousand requests in flight in one pool that was three quarters of this process's time.

    Args:
        most: Bytes of an answer (`whole`).
        shards: How many pools.
    """

    def __init__(self, most: int, shards: int = SHARDS) -> None:
        self._most = most
        self._shards = [
            httpx.AsyncHTTPTransport(verify=tls_context(), limits=LIMITS) for _ in range(shards)
        ]
        self._in_flight = [0] * shards

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request through the pool that has the fewest."""
        index = self._in_flight.index(min(self._in_flight))
        self._in_flight[index] += 1
        try:
            response = await self._shards[index].handle_async_request(request)
            # Read here, so that a pool counts as busy until its connection is free again.
            return await whole(response, self._most)
        finally:
            self._in_flight[index] -= 1

    async def aclose(self) -> None:
        """Close all pools."""
        for shard in self._shards:
            await shard.aclose()
