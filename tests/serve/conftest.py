"""A server, its conversations, and a client of it. Files whose server is another one say so themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from atommem.serve.conversations import Conversations
from tests.serve.servers import Running, make_conversations, running


@pytest.fixture
def conversations(tmp_path: Path) -> Conversations:
    """Of nobody yet; what opens them closes them."""
    return make_conversations(tmp_path / "log.db")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One for all tests of a file."""
    with running(make_conversations(tmp_path_factory.mktemp("serve") / "log.db")) as found:
        yield found


@pytest.fixture
def http(server: Running) -> Iterator[httpx.Client]:
    """Asks it without a key."""
    with server.http() as client:
        yield client
