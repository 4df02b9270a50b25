"""Clients as released, each by a script in an environment of its own: docs/serve.md, Clients.

``CLIENTS_PYTHON`` names interpreters, with colons between; without the client a test skips.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serve.servers import Running, make_conversations, running

FOLDER = Path(__file__).with_name("clients")
CLIENTS = {
    "claude_memory": "anthropic.tools",
    "langchain_chat": "langchain_openai",
    "langgraph_store": "langgraph.store",
    "litellm_sdk": "litellm",
    "llama_index": "llama_index.llms.openai_like",
    "mcp_session": "mcp.server.fastmcp.server",  # of 1.x alone
    "openai_agents": "agents",
    "pydantic_agent": "pydantic_ai",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(make_conversations(tmp_path_factory.mktemp("clients") / "log.db")) as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("client", CLIENTS)
def test_client_works_as_released(client: str, server: Running) -> None:
    find = f"import importlib.util as u; u.find_spec('{CLIENTS[client]}') or exit(1)"
    for python in filter(None, os.environ.get("CLIENTS_PYTHON", "").split(":")):
        if subprocess.run([python, "-P", "-c", find], capture_output=True).returncode == 0:
            command = [python, "-P", FOLDER / f"{client}.py", server.url]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, done.stderr[-3000:]
            return
    pytest.skip(f"{CLIENTS[client]} is not installed for CLIENTS_PYTHON")
