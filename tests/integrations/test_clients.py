"""Clients as released, each by a script in an environment of its own: docs/serve.md, Clients.

``CLIENTS_PYTHON`` is the interpreter of that environment; without it, or the client, a test skips.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serve.servers import Running, make_conversations, running

FOLDER = Path(__file__).with_name("clients")
CLIENTS = {
    "claude_memory": "anthropic",
    "langgraph_store": "langgraph.store",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(make_conversations(tmp_path_factory.mktemp("clients") / "log.db")) as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("client", CLIENTS)
def test_client_works_as_released(client: str, server: Running) -> None:
    python = os.environ.get("CLIENTS_PYTHON") or sys.executable
    found = subprocess.run([python, "-c", f"import {CLIENTS[client]}"], capture_output=True)
    if found.returncode:
        pytest.skip(f"{CLIENTS[client]} is not installed for CLIENTS_PYTHON={python}")
    command = [python, "-P", FOLDER / f"{client}.py", server.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
