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
from contextlib import closing
from importlib.util import find_spec
from typing import Any

from atommem.actions import OUR_KINDS
from atommem.envs.web.recording import Recording
from atommem.envs.web.tools import LONGEST_TEXT, Tool, ToolResult, ToolSource
from atommem.errors import ConfigError, OutageError

_KEY = re.compile(r"\$\{(\w+)\}")
_ATTEMPTS = 3
_WAIT_SECONDS = 0.5


class McpSource(ToolSource):
    """All tools of all servers in ``mcp_servers``.

    A server is a URL (streamable HTTP) or a command line (stdio). ``${NAME}`` is a variable of the
    environment; keys are written so and appear nowhere else. A tool named like an action of ours
    (read, delete, ...) is offered as ``mcp_read``. Connections live in a thread of their own,
    because tools are listed before there is an event loop.
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
        self._tools = [self._tool(*listed) for listed in json.loads(self._listing())]

    @property
    def tools(self) -> Sequence[Tool]:
        """The tools that the servers listed at the start."""
        return self._tools

    async def close(self) -> None:
        """Close the connections; servers that were started for them end."""
        await asyncio.to_thread(self._stop)

    def _listing(self) -> str:
        """Return server, name, description and schema of each tool as JSON, maybe recorded."""
        if self.config.recording is None:
            return self._connect()
        call = ("tools/list", str(self.backend), dict[str, Any]())
        with closing(Recording.of(self.config)) as recording:
            if self.config.recording_mode == "record":
                listing = self._connect()
                recording.add(*call, ToolResult(listing))
                return listing
            found = recording.find(*call)
        if found is None:
            raise ConfigError(
                f"{self.config.recording} contains no tools of {self.backend}: record them first."
            )
        return found.text

    def _connect(self) -> str:
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
            call = self._servers[at].call_tool(name, dict(arguments))
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
        self._connecting = asyncio.Lock()
        self._client: Any = None
        self._holders: set[asyncio.Task[None]] = set()

    async def list_tools(self) -> list[Any]:
        """Return all tools; raises `OutageError`."""

        async def request(client: Any) -> list[Any]:
            page = await client.list_tools(cursor=None)
            tools = list(page.tools)
            while page.next_cursor is not None:
                page = await client.list_tools(cursor=page.next_cursor)
                tools += page.tools
            return tools

        tools: list[Any] = await self._retrying(request)
        return tools

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Return the result of a tool, which may report a failure; raises `OutageError`."""
        from mcp import MCPError

        try:
            result = await self._retrying(lambda client: client.call_tool(name, arguments))
        except MCPError as error:
            return ToolResult(self._redact(str(error)), is_error=True)
        text = "\n".join(map(_part_text, result.content))
        return ToolResult(text[:LONGEST_TEXT], is_error=bool(result.is_error))

    async def close(self) -> None:
        """Close the connections."""
        for holder in self._holders:
            holder.cancel()
        await asyncio.gather(*self._holders, return_exceptions=True)

    async def _retrying(self, request: Callable[[Any], Awaitable[Any]]) -> Any:
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED, INTERNAL_ERROR, REQUEST_TIMEOUT

        why = ""
        for attempt in range(1, _ATTEMPTS + 1):
            client = None
            try:
                async with asyncio.timeout(self._seconds):
                    client = await self._connected()
                    return await request(client)
            except TimeoutError as error:
                raise OutageError(f"the MCP server {self._address} does not answer.") from error
            except Exception as error:  # transports raise anything
                if isinstance(error, MCPError) and error.code not in (
                    CONNECTION_CLOSED,
                    INTERNAL_ERROR,
                    REQUEST_TIMEOUT,
                ):
                    raise
                why = self._redact(repr(error))
            if self._client is client:  # the first call that finds it broken replaces it
                self._client = None
            await asyncio.sleep(_WAIT_SECONDS * attempt)
        raise OutageError(f"the MCP server {self._address} is out of reach: {why}.")

    async def _connected(self) -> Any:
        async with self._connecting:
            if self._client is None:
                for holder in self._holders:
                    holder.cancel()
                ready = asyncio.get_running_loop().create_future()
                holder = asyncio.create_task(self._hold(ready))
                self._holders.add(holder)
                holder.add_done_callback(self._holders.discard)
                self._client = await ready
            return self._client

    async def _hold(self, ready: asyncio.Future[Any]) -> None:
        # The client must be closed by the task that opened it.
        try:
            async with self._make_client() as client:
                ready.set_result(client)
                await asyncio.get_running_loop().create_future()  # until cancelled
        except Exception as error:
            if not ready.done():
                ready.set_exception(error)

    def _make_client(self) -> Any:
        from mcp import Client, StdioServerParameters

        if self._address.startswith(("http://", "https://")):
            return Client(self._insert_keys(self._address))
        command, *arguments = (self._insert_keys(part) for part in shlex.split(self._address))
        return Client(StdioServerParameters(command=command, args=arguments))

    def _insert_keys(self, text: str) -> str:
        return _KEY.sub(lambda match: self._keys[match[1]], text)

    def _redact(self, text: str) -> str:
        for name, value in self._keys.items():
            text = text.replace(value, f"${{{name}}}")
        return text


def _part_text(part: Any) -> str:
    text = getattr(part, "text", None) or getattr(getattr(part, "resource", None), "text", None)
    return f"({part.type})" if text is None else str(text)
