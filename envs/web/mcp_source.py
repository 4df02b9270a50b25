"""Tools of MCP servers: ``tools: [mcp]`` with ``mcp_servers``, by the official ``mcp`` package."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from atommem.actions import OUR_KINDS
from atommem.envs.web.tools import LONGEST_TEXT, Tool, ToolResult, ToolSource
from atommem.errors import ConfigError, OutageError

_NAMED_KEY = re.compile(r"\$\{(\w+)\}")
_VARIABLE = re.compile(r"[A-Za-z_]\w*=")
_ATTEMPTS = 3
_WAIT_SECONDS = 0.5
_MOST_TOOLS = 1000
_CONNECT_SECONDS = 60.0
"""A server may have to be started."""


class McpSource(ToolSource):
    """All tools of all servers in ``mcp_servers``.

    A server is a URL (streamable HTTP) or a command line (stdio), with ``NAME=value`` for its environment in front. In
    both ``${NAME}`` is a variable of our environment: a key stands there, and nowhere else. Connections live in a
    thread of their own: tools are listed before there is an event loop, and several loops may call them. A tool with
    the name of an action of ours (read, delete, ...) is offered as ``mcp_read``.

    Raises:
        ConfigError: No server is named, ``mcp`` is not installed, a key is not set, or a server cannot be reached.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        if find_spec("mcp") is None:
            raise ConfigError("tools name mcp, which is not installed: pip install 'atommem[web]'.")
        if not config.mcp_servers:
            raise ConfigError(
                "tools name mcp, and mcp_servers is empty: give the URLs or command lines of servers."
            )
        self.backend = f"mcp {' '.join(config.mcp_servers)}"
        self._servers: list[_Server] = []
        self._loop = asyncio.new_event_loop()
        self._tools = [self._tool(*listed) for listed in json.loads(self._listing())]
        if not self._servers:  # nothing may be asked
            self._loop.close()

    @property
    def tools(self) -> Sequence[Tool]:
        """Those that the servers listed at the start."""
        return self._tools

    async def close(self) -> None:
        """Close the connections; servers that were started for them end."""
        await asyncio.to_thread(self._stop)

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    def _stop(self) -> None:
        if self._loop.is_running():
            for server in self._servers:
                self._spawn(server.close()).result()
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _listing(self) -> str:
        """The tools' servers, names, descriptions and schemas, as JSON."""
        if self.config.cassette is None:
            return self._start()
        from atommem.envs.web.net.cassette import told

        listing = told(self.config, "tools/list", str(self.backend), self._start)
        if listing is None:
            raise ConfigError(
                f"{self.config.cassette} holds no tools of {self.backend}: record with them first."
            )
        return listing

    def _start(self) -> str:
        """Connect to the servers, and list their tools."""
        self._servers = [
            _Server(address, self.config.tool_seconds) for address in self.config.mcp_servers
        ]
        threading.Thread(target=self._run, name="atommem-mcp", daemon=True).start()
        try:
            listed = [
                [at, tool.name, tool.description or "", _without_patterns(tool.input_schema)]
                for at, server in enumerate(self._servers)
                for tool in self._spawn(server.list_tools()).result()
            ]
            return json.dumps(listed)
        except (OutageError, RecursionError) as error:
            self._stop()
            why = (
                error if isinstance(error, OutageError) else "a tool's schema is nested too deeply."
            )
            raise ConfigError(f"{why} Start the server, or correct mcp_servers.") from error

    def _tool(self, at: int, name: str, description: str, schema: Mapping[str, Any]) -> Tool:
        async def run(arguments: Mapping[str, Any], task: Any) -> ToolResult:
            if not self._servers:
                raise OutageError(f"{self.backend} is only recorded.")
            return await asyncio.wrap_future(
                self._spawn(self._servers[at].call(name, dict(arguments)))
            )

        return Tool(f"mcp_{name}" if name in OUR_KINDS else name, description, schema, run)


def _text(part: Any) -> str:
    """A part of a result: its text, or that of the resource in it, or what it is."""
    text = (
        part.text if part.type == "text" else getattr(getattr(part, "resource", None), "text", None)
    )
    return f"({part.type})" if text is None else str(text)


def _without_patterns(schema: Any) -> Any:
    """A schema without its regular expressions: the server has them, and one may take for ever on a text."""
    if isinstance(schema, list):
        return [_without_patterns(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept = {
        name: part
        for name, part in schema.items()
        if name != "pattern" or not isinstance(part, str)
    }
    return {
        name: _without_patterns(part) for name, part in kept.items() if name != "patternProperties"
    }


@dataclass(eq=False, slots=True)
class _Connection:
    """The client when there is one, what ends it, and whether it has ended."""

    client: asyncio.Future[Any]
    closing: asyncio.Event
    ended: bool = False


class _Server:
    """One server, connected when it is first needed and again when the connection broke. Of the source's loop."""

    def __init__(self, address: str, seconds: float) -> None:
        self._address = address
        self._keys = {name: os.environ.get(name, "") for name in _NAMED_KEY.findall(address)}
        missing = [name for name, value in self._keys.items() if not value]
        if missing:
            raise ConfigError(
                f"mcp_servers has {address!r}, and {', '.join(missing)} is not set: export it."
            )
        self._seconds = seconds
        self._connection: _Connection | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def list_tools(self) -> list[Any]:
        """Every page of its list."""

        async def ask(client: Any) -> list[Any]:
            tools, cursor = [], None
            while True:
                page = await client.list_tools(cursor=cursor)
                tools += page.tools
                if len(tools) > _MOST_TOOLS:
                    raise OutageError(
                        f"the MCP server {self._address} lists more than {_MOST_TOOLS} tools."
                    )
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
                said = self._without_keys(str(error))
                raise OutageError(
                    f"the MCP server {self._address} cannot answer a call of {name}: {said}."
                ) from error
            return ToolResult(self._without_keys(str(error)), is_error=True)
        return ToolResult(
            "\n".join(map(_text, result.content))[:LONGEST_TEXT], is_error=bool(result.is_error)
        )

    async def close(self) -> None:
        """End the connection."""
        self._drop(self._connection)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _ask(self, ask: Any) -> Any:
        """What `ask` gets from the client, with a new connection where the last one broke."""
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        for attempt in range(1, _ATTEMPTS + 1):
            connection = self._connected()
            try:
                async with asyncio.timeout(max(self._seconds, _CONNECT_SECONDS)):
                    client = await asyncio.shield(connection.client)
                async with asyncio.timeout(self._seconds):
                    return await ask(client)
            except MCPError as error:
                if error.code != CONNECTION_CLOSED or attempt == _ATTEMPTS:
                    raise
            except OutageError:
                raise
            except TimeoutError as error:
                if not connection.client.done():
                    self._drop(connection)
                raise OutageError(
                    f"the MCP server {self._address} is silent for too long."
                ) from error
            except Exception as error:  # of any transport
                if attempt == _ATTEMPTS:
                    said = self._without_keys(repr(error))
                    raise OutageError(
                        f"the MCP server {self._address} is out of reach: {said}."
                    ) from error
            self._drop(connection)
            await asyncio.sleep(_WAIT_SECONDS * attempt)
        raise AssertionError("unreachable: the last attempt raises")

    def _connected(self) -> _Connection:
        if self._connection is None or self._connection.ended:
            self._connection = _Connection(
                asyncio.get_running_loop().create_future(), asyncio.Event()
            )
            task = asyncio.create_task(self._connect(self._connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return self._connection

    def _drop(self, connection: _Connection | None) -> None:
        """End a connection: of many calls that find it broken, only the first one takes it from the calls after it."""
        if connection is not None:
            connection.closing.set()
        if self._connection is connection:
            self._connection = None

    async def _connect(self, connection: _Connection) -> None:
        """Hold a connection: it is closed by the task that opened it."""
        try:
            async with self._make() as made:
                connection.client.set_result(made)
                await connection.closing.wait()
        except Exception as error:
            if not connection.client.done():
                connection.client.set_exception(error)
                connection.client.exception()  # seen, even if nobody waits any more
        finally:
            connection.ended = True

    def _make(self) -> Any:
        from mcp import Client, StdioServerParameters
        from mcp.client.stdio import get_default_environment

        if self._address.startswith(("http://", "https://")):
            return Client(self._with_keys(self._address))
        parts = shlex.split(self._address)
        at = next(
            (at for at, part in enumerate(parts) if not _VARIABLE.match(part)), len(parts) - 1
        )
        given = dict(self._with_keys(part).split("=", 1) for part in parts[:at])
        command, *arguments = (self._with_keys(part) for part in parts[at:])
        return Client(
            StdioServerParameters(
                command=command, args=arguments, env={**get_default_environment(), **given}
            )
        )

    def _with_keys(self, text: str) -> str:
        return _NAMED_KEY.sub(lambda match: self._keys[match[1]], text)

    def _without_keys(self, text: str) -> str:
        for name, value in self._keys.items():
            text = text.replace(value, f"${{{name}}}")
        return text
