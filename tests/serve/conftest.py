"""Fixtures: a server with a scripted policy, and its clients."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from atommem.serve.conversations import Conversations
from tests.serve.servers import Running, make_conversations, running


@pytest.fixture
def conversations(tmp_path: Path) -> Conversations:
    return make_conversations(tmp_path / "log.db")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One server without keys for all tests of a file."""
    with running(make_conversations(tmp_path_factory.mktemp("serve") / "log.db")) as found:
        yield found


@pytest.fixture
def http(server: Running) -> Iterator[httpx.Client]:
    with server.http() as client:
        yield client
