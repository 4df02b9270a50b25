"""Tools of MCP servers (``tools: [mcp]``), through the official ``mcp`` package."""

import asyncio
import json
import os
import re
import shlex
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import closing, suppress
from threading import Thread
from typing import Any

from atommem.actions import OUR_KINDS
from atommem.envs.web.recording import Recording
from atommem.envs.web.tools import Tool, ToolResult, ToolSource
from atommem.errors import ConfigError, OutageError

_KEY = re.compile(r"\$\{(\w+)\}")
_ATTEMPTS = 3
_PASSING = (-32000, -32001, -32603)  # connection closed, no answer in time, internal error
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
        if not config.mcp_servers:
            raise ConfigError("mcp_servers is empty. Give URLs or command lines of servers.")
        self.backend = f"mcp {' '.join(config.mcp_servers)}"
        self._servers: list[_Server] = []
        self.tools = [self._tool(*listed) for listed in json.loads(self._listing())]

    async def close(self) -> None:
        for server in self._servers:
            await asyncio.wrap_future(self._start(server.close()))
        if self._servers:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._servers = []

    def _start(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _listing(self) -> str:
        if self.config.recording is None:
            return self._connect()
        call = ("tools/list", str(self.backend), dict[str, Any]())
        with closing(Recording.of(self.config)) as recording:
            if self.config.recording_mode == "record":
                recording.add(*call, ToolResult(self._connect()))
            found = recording.find(*call)
        if found is None:
            raise ConfigError(
                f"{self.config.recording} contains no tools of {self.backend}: record them first."
            )
        return found.text

    def _connect(self) -> str:
        seconds = self.config.tool_seconds
        self._servers = [_Server(address, seconds) for address in self.config.mcp_servers]
        self._loop = asyncio.new_event_loop()
        # A daemon: after an error at start nobody calls `close`, and the program must end.
        Thread(target=_run_and_close, args=(self._loop,), daemon=True).start()
        try:
            return json.dumps(
                [
                    [at, tool.name, tool.description or "", tool.input_schema]
                    for at, server in enumerate(self._servers)
                    for tool in self._start(server.list_tools()).result()
                ]
            )
        except OutageError as error:
            raise ConfigError(f"{error} Start the server, or correct mcp_servers.") from error

    def _tool(self, at: int, name: str, description: str, schema: Mapping[str, Any]) -> Tool:
        async def run(arguments: Mapping[str, Any], task: Any) -> ToolResult:
            work = self._servers[at].call_tool(name, dict(arguments))
            return await asyncio.wrap_future(self._start(work))

        return Tool(f"mcp_{name}" if name in OUR_KINDS else name, description, schema, run)


def _run_and_close(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


class _Server:
    """One server, connected when it is first needed and again after the connection broke."""

    def __init__(self, address: str, seconds: float) -> None:
        from mcp import StdioServerParameters

        self._address, self._seconds = address, seconds
        self._keys = {name: os.environ.get(name, "") for name in _KEY.findall(address)}
        if missing := [name for name, value in self._keys.items() if not value]:
            raise ConfigError(
                f"mcp_servers contains {address!r}, and {', '.join(missing)} is not set. Export it."
            )
        is_url = address.startswith(("http://", "https://"))
        parts = [address] if is_url else shlex.split(address)
        command, *arguments = (_KEY.sub(lambda match: self._keys[match[1]], part) for part in parts)
        started = StdioServerParameters(command=command, args=arguments)
        self._target: Any = command if is_url else started
        self._connection: asyncio.Task[None] | None = None
        self._client: asyncio.Future[Any] | None = None

    async def list_tools(self) -> list[Any]:
        async def request(client: Any, cursor: str | None = None) -> list[Any]:
            page = await client.list_tools(cursor=cursor)
            if page.next_cursor is None:
                return list(page.tools)
            return [*page.tools, *await request(client, page.next_cursor)]

        return await self._retry(request)

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        from mcp import MCPError

        try:
            result = await self._retry(lambda client: client.call_tool(name, arguments))
        except MCPError as error:
            return ToolResult(self._redact(str(error)), is_error=True)
        return ToolResult(_result_text(result), bool(result.is_error))

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.cancel()
            await asyncio.wait([self._connection], timeout=self._seconds)

    async def _retry(self, request: Callable[[Any], Awaitable[Any]]) -> Any:
        from mcp import MCPError

        why = ""
        for attempt in range(1, _ATTEMPTS + 1):
            client = self._connect()
            try:
                async with asyncio.timeout(self._seconds):
                    return await request(await asyncio.shield(client))
            except TimeoutError as error:
                if not await self._answers(client):
                    await self._drop(client)
                raise OutageError(f"the MCP server {self._address} does not answer.") from error
            except Exception as error:  # transports raise anything
                told = isinstance(error, MCPError) and error.code not in _PASSING
                if told and await self._answers(client):
                    raise
                why = self._redact(repr(error))
            await self._drop(client)
            await asyncio.sleep(_WAIT_SECONDS * attempt)
        raise OutageError(f"the MCP server {self._address} is out of reach: {why}.")

    async def _answers(self, client: asyncio.Future[Any]) -> bool:
        """Whether its session is alive: what a server says of one that it forgot has no form."""
        with suppress(Exception):
            async with asyncio.timeout(self._seconds):
                await (await asyncio.shield(client)).list_tools(cursor=None)
                return True
        return False

    async def _drop(self, client: asyncio.Future[Any]) -> None:
        if self._client is client:  # the first call that finds it broken replaces it
            self._client = None
            await self.close()

    def _connect(self) -> asyncio.Future[Any]:
        """Return the client, which the task that opened it must close."""
        if self._client is None:
            self._client = asyncio.get_running_loop().create_future()
            self._connection = asyncio.create_task(self._hold(self._client))
        return self._client

    async def _hold(self, ready: asyncio.Future[Any]) -> None:
        from mcp import Client

        try:
            async with Client(self._target) as client:
                ready.set_result(client)
                await asyncio.get_running_loop().create_future()  # until cancelled
        except Exception as error:
            if not ready.done():
                ready.set_exception(error)

    def _redact(self, text: str) -> str:
        for name, value in self._keys.items():
            text = text.replace(value, f"${{{name}}}")
        return text


def _result_text(result: Any) -> str:
    if result.content or result.structured_content is None:
        return "\n".join(map(_part_text, result.content))
    return json.dumps(result.structured_content, ensure_ascii=False)


def _part_text(part: Any) -> str:
    for holder in (part, getattr(part, "resource", None)):
        if (text := getattr(holder, "text", None)) is not None:
            return str(text)
    link = [getattr(part, name, None) for name in ("title", "name", "uri", "description")]
    return " ".join(str(value) for value in link if value) or f"({part.type})"
