"""What may come before an answer: interim responses (1xx) have no end of their own, and httpcore reads on."""

from __future__ import annotations

from collections.abc import Iterable
from ssl import SSLContext
from typing import Any

import httpcore


class HeadLimit(httpcore.AsyncNetworkBackend):
    """Connects through another backend, for one request, and bounds what is read until its answer has `begun`.

    Args:
        backend: Connects.
        most: Bytes.

    Raises (of reads):
        httpcore.RemoteProtocolError: There are more.
    """

    def __init__(self, backend: httpcore.AsyncNetworkBackend, most: int) -> None:
        self._backend = backend
        self._most = most
        self._left: int | None = most

    def begun(self) -> None:
        """The answer's headers are there, whose body has a bound of its own."""
        self._left = None

    def count(self, size: int) -> None:
        """So many bytes have come."""
        if self._left is not None:
            self._left -= size
            if self._left < 0:
                raise httpcore.RemoteProtocolError(
                    f"more than {self._most:,} bytes came before an answer"
                )

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """As of the backend."""
        return _Counted(
            await self._backend.connect_tcp(host, port, timeout, local_address, socket_options),
            self,
        )

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await self._backend.sleep(seconds)


class _Counted(httpcore.AsyncNetworkStream):
    def __init__(self, stream: httpcore.AsyncNetworkStream, limit: HeadLimit) -> None:
        self._stream = stream
        self._limit = limit

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await self._stream.read(max_bytes, timeout)
        self._limit.count(len(data))
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        return _Counted(
            await self._stream.start_tls(ssl_context, server_hostname, timeout), self._limit
        )

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
