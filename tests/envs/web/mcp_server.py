"""An MCP server for tests, over stdio, or over HTTP on the port in the arguments."""

from __future__ import annotations

import sys

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


if __name__ == "__main__":
    if sys.argv[1:]:
        app = server.streamable_http_app()
        uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
    else:
        server.run("stdio")
