"""Tools of MCP servers: ``tools: [mcp]`` with ``mcp_servers``, by the official ``mcp`` package."""

from __future__ import annotations

import asyncio
import shlex
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from importlib.util import find_spec
from typing import Any

from atommem.envs.web.tools import Tool, ToolResult, ToolSource
from atommem.errors import ConfigError, OutageError

_ATTEMPTS = 3
_WAIT_SECONDS = 0.5
_CONNECT_SECONDS = 60.0
"""A server may have to be started."""


class McpSource(ToolSource):
    """All tools of all servers in ``mcp_servers``.

    A server is a URL (streamable HTTP) or a command line (stdio). Connections live in a thread of their own: tools are
    listed before there is an event loop, and several loops may call them.

    Raises:
        ConfigError: No server is named, ``mcp`` is not installed, or a server cannot be reached at the start.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        if find_spec("mcp") is None:
            raise ConfigError("tools name mcp, which is not installed: pip install 'atommem[web]'.")
        if not config.mcp_servers:
            raise ConfigError("tools name mcp, and mcp_servers is empty: give the URLs or command lines of servers.")
        self.backend = f"mcp {' '.join(config.mcp_servers)}"
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="atommem-mcp", daemon=True).start()
        self._servers = [_Server(address, config.tool_seconds) for address in config.mcp_servers]
        try:
            self._tools = [tool for server in self._servers for tool in self._listed(server)]
        except OutageError as error:
            self._stop()
            raise ConfigError(f"{error} Start it, or correct mcp_servers.") from error

    @property
    def tools(self) -> Sequence[Tool]:
        """Those that the servers listed at the start."""
        return self._tools

    async def close(self) -> None:
        """Close the connections; servers that were started for them end."""
        await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        if self._loop.is_running():
            for server in self._servers:
                self._spawn(server.close()).result()
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _listed(self, server: _Server) -> list[Tool]:
        def tool_of(listed: Any) -> Tool:
            async def run(arguments: Mapping[str, Any], task: Any) -> ToolResult:
                return await asyncio.wrap_future(self._spawn(server.call(listed.name, dict(arguments))))

            return Tool(listed.name, listed.description or "", listed.input_schema, run)

        return [tool_of(listed) for listed in self._spawn(server.list_tools()).result()]


class _Server:
    """One server, connected when it is first needed and again when the connection broke. Of the source's loop."""

    def __init__(self, address: str, seconds: float) -> None:
        self._address = address
        self._seconds = seconds
        self._connection: asyncio.Task[None] | None = None
        self._client: asyncio.Future[Any] | None = None
        self._closing = asyncio.Event()

    async def list_tools(self) -> list[Any]:
        """Every page of its list."""

        async def ask(client: Any) -> list[Any]:
            tools, cursor = [], None
            while True:
                page = await client.list_tools(cursor=cursor)
                tools += page.tools
                cursor = page.next_cursor
                if cursor is None:
                    return tools

        tools: list[Any] = await self._ask(ask)
        return tools

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """What a tool gives; what it says of a failure is a result as well.

        Raises:
            OutageError: The server is gone or silent, and stays so.
        """
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED, INTERNAL_ERROR, REQUEST_TIMEOUT

        try:
            result = await self._ask(lambda client: client.call_tool(name, arguments))
        except MCPError as error:
            if error.code in (CONNECTION_CLOSED, INTERNAL_ERROR, REQUEST_TIMEOUT):
                raise OutageError(f"the MCP server {self._address} cannot answer a call of {name}: {error}.") from error
            return ToolResult(str(error), is_error=True)
        shown = [part.text if part.type == "text" else f"({part.type})" for part in result.content]
        return ToolResult("\n".join(shown), is_error=bool(result.is_error))

    async def close(self) -> None:
        """End the connection."""
        self._closing.set()
        if self._connection is not None:
            await asyncio.gather(self._connection, return_exceptions=True)

    async def _ask(self, ask: Any) -> Any:
        """What `ask` gets from the client, with a new connection where the last one broke."""
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        for attempt in range(1, _ATTEMPTS + 1):
            try:
                async with asyncio.timeout(max(self._seconds, _CONNECT_SECONDS)):
                    client = await self._connected()
                async with asyncio.timeout(self._seconds):
                    return await ask(client)
            except MCPError as error:
                if error.code != CONNECTION_CLOSED or attempt == _ATTEMPTS:
                    raise
            except TimeoutError as error:
                raise OutageError(f"the MCP server {self._address} is silent for too long.") from error
            except Exception as error:  # of any transport
                if attempt == _ATTEMPTS:
                    raise OutageError(f"the MCP server {self._address} is out of reach: {error!r}.") from error
            self._client = None
            await asyncio.sleep(_WAIT_SECONDS * attempt)
        raise AssertionError("unreachable: the last attempt raises")

    async def _connected(self) -> Any:
        if self._client is None or (self._connection is not None and self._connection.done()):
            self._client = asyncio.get_running_loop().create_future()
            self._connection = asyncio.create_task(self._connect(self._client))
        return await asyncio.shield(self._client)

    async def _connect(self, client: asyncio.Future[Any]) -> None:
        """Hold a connection: it is closed by the task that opened it."""
        try:
            async with self._make() as made:
                client.set_result(made)
                await self._closing.wait()
        except Exception as error:
            if not client.done():
                client.set_exception(error)

    def _make(self) -> Any:
        from mcp import Client, StdioServerParameters

        if self._address.startswith(("http://", "https://")):
            return Client(self._address)
        command, *arguments = shlex.split(self._address)
        return Client(StdioServerParameters(command=command, args=arguments))
