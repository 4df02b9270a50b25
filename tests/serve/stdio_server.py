"""MCP on standard input and output, with the scripted policy: ``python -m tests.serve.stdio_server DB``."""

import sys
from pathlib import Path

from atommem.serve.mcp_server import serve_stdio
from tests.serve.servers import make_conversations

if __name__ == "__main__":
    serve_stdio(make_conversations(Path(sys.argv[1])))
