"""Clients as released, each by a script in an environment of its own: docs/serve.md, Clients.

``CLIENTS_PYTHON`` names interpreters, ``CLIENTS_NODE`` folders with node_modules, with colons
between; without the client a test skips.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atommem.files import load_beside
from tests.serve.servers import Running, make_conversations, running

FOLDER = Path(__file__).with_name("clients")
EXAMPLES = Path(__file__).parents[2] / "examples"
CLIENTS = load_beside(__file__, "clients.yaml")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(make_conversations(tmp_path_factory.mktemp("clients") / "log.db")) as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("client", CLIENTS)
def test_client_works_as_released(client, server):
    script, package, command = FOLDER / client, CLIENTS[client], []
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 300}
    for python in _names("CLIENTS_PYTHON") if script.suffix == ".py" else []:
        find = f"import importlib.util as u; u.find_spec({package!r}) or exit(1)"
        if subprocess.run([python, "-P", "-c", find], **options).returncode == 0:
            command = [python, "-P", str(script), server.url]
    for folder in _names("CLIENTS_NODE") if script.suffix == ".mjs" else []:
        if Path(folder, "node_modules", package).is_dir():
            # A script from standard input imports what the current folder has.
            command = ["node", "--input-type=module", "-", server.url, str(EXAMPLES)]
            path = f"{folder}/node_modules/.bin:{os.environ['PATH']}"
            options |= {"cwd": folder, "env": {**os.environ, "PATH": path}}
            options["input"] = script.read_text()
    if not command:
        pytest.skip(f"{package} is not installed for {script.suffix} clients")
    done = subprocess.run(command, **options)
    assert done.returncode == 0, done.stderr[-3000:]


def _names(variable: str) -> list[str]:
    return list(filter(None, os.environ.get(variable, "").split(":")))
