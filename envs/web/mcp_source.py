"""Tools of MCP servers (``tools: [mcp]``), through the official ``mcp`` package."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from importlib.util import find_spec
from typing import Any

from atommem.actions import OUR_KINDS
from atommem.envs.web.tools import LONGEST_TEXT, Tool, ToolResult, ToolSource
from atommem.errors import ConfigError, OutageError

_KEY = re.compile(r"\$\{(\w+)\}")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_ATTEMPTS = 3
_WAIT_SECONDS = 0.5
_CONNECT_SECONDS = 60.0  # a server may have to start
_MAX_TOOLS = 1000


class McpSource(ToolSource):
    """All tools of all servers in ``mcp_servers``.

    A server is a URL (streamable HTTP) or a command line (stdio), optionally with ``NAME=value`` in
    front. ``${NAME}`` is a variable of the environment; keys are written so and appear nowhere
    else. A tool named like an action of ours (read, delete, ...) is offered as ``mcp_read``.
    Connections live in a thread of their own, because tools are listed before there is an event
    loop.

    Raises:
        ConfigError: No server is named, ``mcp`` or a key is missing, or a server is out of reach.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        if find_spec("mcp") is None:
            raise ConfigError("tools=mcp needs the package mcp: pip install 'atommem[web]'.")
        if not config.mcp_servers:
            raise ConfigError("mcp_servers is empty. Give URLs or command lines of servers.")
        self.backend = f"mcp {' '.join(config.mcp_servers)}"
        self._servers: list[_Server] = []
        self._loop = asyncio.new_event_loop()
        listing = self._listing() if config.recording is None else self._recorded_listing()
        self._tools = [self._tool(*listed) for listed in json.loads(listing)]

    @property
    def tools(self) -> Sequence[Tool]:
        """The tools that the servers listed at the start."""
        return self._tools

    async def close(self) -> None:
        """Close the connections; servers that were started for them end."""
        await asyncio.to_thread(self._stop)

    def _recorded_listing(self) -> str:
        from atommem.envs.web.net.recording import recorded_text

        listing = recorded_text(self.config, "tools/list", str(self.backend), self._listing)
        if listing is None:
            raise ConfigError(
                f"{self.config.recording} contains no tools of {self.backend}: record them first."
            )
        return listing

    def _listing(self) -> str:
        """Connect; return server, name, description and schema of each tool as JSON."""
        seconds = self.config.tool_seconds
        self._servers = [_Server(address, seconds) for address in self.config.mcp_servers]
        threading.Thread(target=self._loop.run_forever, name="atommem-mcp", daemon=True).start()
        try:
            return json.dumps(
                [
                    [at, tool.name, tool.description or "", tool.input_schema]
                    for at, server in enumerate(self._servers)
                    for tool in self._submit(server.list_tools()).result()
                ]
            )
        except OutageError as error:
            self._stop()
            raise ConfigError(f"{error} Start the server, or correct mcp_servers.") from error

    def _tool(self, at: int, name: str, description: str, schema: Mapping[str, Any]) -> Tool:
        async def run(arguments: Mapping[str, Any], task: Any) -> ToolResult:
            if not self._servers:
                raise OutageError(f"{self.backend} is only recorded.")
            call = self._servers[at].call(name, dict(arguments))
            return await asyncio.wrap_future(self._submit(call))

        return Tool(f"mcp_{name}" if name in OUR_KINDS else name, description, schema, run)

    def _submit(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _stop(self) -> None:
        if self._loop.is_running():
            for server in self._servers:
                self._submit(server.close()).result()
            self._loop.call_soon_threadsafe(self._loop.stop)


class _Server:
    """One server, connected when it is first needed and again after the connection broke."""

    def __init__(self, address: str, seconds: float) -> None:
        self._address = address
        self._seconds = seconds
        self._keys = {name: os.environ.get(name, "") for name in _KEY.findall(address)}
        missing = [name for name, value in self._keys.items() if not value]
        if missing:
            raise ConfigError(
                f"mcp_servers contains {address!r}, and {', '.join(missing)} is not set. Export it."
            )
        self._client: asyncio.Future[Any] | None = None
        self._holders: dict[asyncio.Future[Any], asyncio.Task[None]] = {}

    async def list_tools(self) -> list[Any]:
        """Return all tools."""

        async def ask(client: Any) -> list[Any]:
            page = await client.list_tools(cursor=None)
            tools = list(page.tools)
            while page.next_cursor is not None and len(tools) <= _MAX_TOOLS:
                page = await client.list_tools(cursor=page.next_cursor)
                tools += page.tools
            return tools[:_MAX_TOOLS]

        tools: list[Any] = await self._ask(ask)
        return tools

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Return the result of a tool, which may report a failure.

        Raises:
            OutageError: The server is out of reach or silent.
        """
        from mcp import MCPError

        try:
            result = await self._ask(lambda client: client.call_tool(name, arguments))
        except MCPError as error:
            return ToolResult(self._redact(str(error)), is_error=True)
        text = "\n".join(map(_part_text, result.content))
        return ToolResult(text[:LONGEST_TEXT], is_error=bool(result.is_error))

    async def close(self) -> None:
        """Close the connections."""
        for holder in self._holders.values():
            holder.cancel()
        await asyncio.gather(*self._holders.values(), return_exceptions=True)

    async def _ask(self, ask: Callable[[Any], Awaitable[Any]]) -> Any:
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED, INTERNAL_ERROR, REQUEST_TIMEOUT

        for attempt in range(1, _ATTEMPTS + 1):
            connection = self._connection()
            try:
                async with asyncio.timeout(max(self._seconds, _CONNECT_SECONDS)):
                    client = await asyncio.shield(connection)
                async with asyncio.timeout(self._seconds):
                    return await ask(client)
            except TimeoutError as error:
                if not connection.done():
                    self._drop(connection)
                raise OutageError(f"the MCP server {self._address} does not answer.") from error
            except Exception as error:  # transports raise anything
                code = error.code if isinstance(error, MCPError) else CONNECTION_CLOSED
                if code not in (CONNECTION_CLOSED, INTERNAL_ERROR, REQUEST_TIMEOUT):
                    raise
                if code != CONNECTION_CLOSED or attempt == _ATTEMPTS:
                    why = self._redact(repr(error))
                    raise OutageError(
                        f"the MCP server {self._address} is out of reach: {why}."
                    ) from error
            self._drop(connection)
            await asyncio.sleep(_WAIT_SECONDS * attempt)
        raise AssertionError("unreachable")

    def _connection(self) -> asyncio.Future[Any]:
        if self._client is None:
            connection = self._client = asyncio.get_running_loop().create_future()
            holder = self._holders[connection] = asyncio.create_task(self._hold(connection))
            holder.add_done_callback(lambda _: self._holders.pop(connection))
        return self._client

    def _drop(self, connection: asyncio.Future[Any]) -> None:
        if self._client is connection:  # the first call that finds it broken replaces it
            self._client = None
            if connection in self._holders:
                self._holders[connection].cancel()

    async def _hold(self, connection: asyncio.Future[Any]) -> None:
        # The client must be closed by the task that opened it.
        try:
            async with self._make_client() as client:
                connection.set_result(client)
                await asyncio.get_running_loop().create_future()  # until cancelled
        except Exception as error:
            if not connection.done():
                connection.set_exception(error)
                connection.exception()  # retrieved, even if nobody waits any more

    def _make_client(self) -> Any:
        from mcp import Client, StdioServerParameters
        from mcp.client.stdio import get_default_environment

        if self._address.startswith(("http://", "https://")):
            return Client(self._insert_keys(self._address))
        parts = [self._insert_keys(part) for part in shlex.split(self._address)]
        environment = get_default_environment()
        while len(parts) > 1 and _ASSIGNMENT.match(parts[0]):
            name, _, value = parts.pop(0).partition("=")
            environment[name] = value
        return Client(StdioServerParameters(command=parts[0], args=parts[1:], env=environment))

    def _insert_keys(self, text: str) -> str:
        return _KEY.sub(lambda match: self._keys[match[1]], text)

    def _redact(self, text: str) -> str:
        for name, value in self._keys.items():
            text = text.replace(value, f"${{{name}}}")
        return text


def _part_text(part: Any) -> str:
    text = getattr(part, "text", None) or getattr(getattr(part, "resource", None), "text", None)
    return f"({part.type})" if text is None else str(text)
