"""An MCP server for tests, over stdio."""

from __future__ import annotations

from mcp.server import MCPServer

server = MCPServer("facts")


@server.tool()
def lookup(name: str) -> str:
    """Finds where somebody lives."""
    return f"{name} lives in Oakrest."


@server.tool()
def broken(name: str) -> str:
    """Raises an error."""
    raise ValueError(f"no {name} today")


if __name__ == "__main__":
    server.run("stdio")
