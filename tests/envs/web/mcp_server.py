"""A real MCP server for tests: over stdio, or over HTTP on the port that is given."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import uvicorn
from mcp.server import MCPServer

server = MCPServer("facts")


@server.tool()
def lookup(name: str) -> str:
    """Tells where somebody lives."""
    return {"Ann": "Ann lives in Oakrest.", "Bob": "Bob lives in Fenford."}.get(
        name, f"nobody knows {name}"
    )


@server.tool()
def broken(name: str) -> str:
    """Cannot do what it is asked."""
    raise ValueError(f"no {name} today")


@server.tool()
def crash() -> str:
    """Ends its process."""
    os._exit(1)


@server.tool()
def slow() -> str:
    """Takes long."""
    time.sleep(30)
    return "late"


STATUS = 200
"""Over HTTP: what every request is answered with from now on, unless it is 200."""


@server.tool()
def refuse(status: int) -> str:
    """Lets the server answer nothing but this status."""
    global STATUS
    STATUS = status
    return "from now on"


def refusing(app: Any) -> Any:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if STATUS == 200 or scope["type"] != "http":
            return await app(scope, receive, send)
        await send({"type": "http.response.start", "status": STATUS, "headers": []})
        await send({"type": "http.response.body", "body": b"not now"})

    return answer


if __name__ == "__main__":
    if sys.argv[1:]:
        app = refusing(server.streamable_http_app())
        uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
    else:
        server.run("stdio")
