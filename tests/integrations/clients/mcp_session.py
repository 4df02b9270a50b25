"""MCP's Python SDK 1.x: all tools over streamable HTTP."""

import asyncio
import sys
from typing import Any

from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client


async def main() -> None:
    async with (
        streamablehttp_client(f"{sys.argv[1]}/mcp") as (read, write, _),
        ClientSession(read, write) as session,
    ):
        await session.initialize()

        async def call(tool: str, **arguments: Any) -> Any:
            result: Any = await session.call_tool(tool, arguments)
            assert not result.isError, result
            return result.structuredContent

        assert len((await session.list_tools()).tools) == 5
        told = await call("remember", text="Ann lives in Rome.", conversation=None, name="letter")
        where = {"conversation": told["conversation"]}
        answer = await call("ask", question="Where does Ann live?", **where)
        assert answer["answer"] == "Ann lives in Rome.", answer
        found = await call("recall", query="Rome", **where)
        assert found["result"][0]["text"] == "Ann lives in Rome.", found
        await call("forget", source="letter", **where)
        assert (await call("recall", query="Rome", **where))["result"] == []


asyncio.run(main())
