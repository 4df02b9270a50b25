"""A server in this process, with a policy that follows a script; and the clients that ask it."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import uvicorn

from atommem.face.engine import Engine
from atommem.policy.scripted import ScriptedPolicy
from atommem.serve.app import make_app
from atommem.serve.conversation_log import ConversationLog
from atommem.serve.conversations import Conversations
from atommem.serve.resources import Resources
from atommem.serve.schema import open_database
from atommem.serve.served_model import ServedModel
from tests.fakes import WordTokenizer

_TURNS = ("active", "waiting", "turn_seconds")
_CHUNK = re.compile(r"of the text:\n(.*?)\n\nYour scratchpad", re.DOTALL)
_QUESTION = re.compile(r"Question:\n(.*)")
_ENTRY = re.compile(r"^Memory \d+: (.*)", re.MULTILINE)


def note_taker(prompt: str) -> str:
    """Keeps every chunk as an entry and looks for the question; answers with the entry that fits best."""
    chunk, question = _CHUNK.search(prompt), _QUESTION.search(prompt)
    asked = question[1] if question else ""
    if chunk is not None:
        return f"<create_memory>{chunk[1]}</create_memory><read_memory>{asked}</read_memory>"
    if f"current query:\n{asked}" not in prompt:
        return f"<read_memory>{asked}</read_memory>"
    found = _ENTRY.findall(prompt)
    return f"<final_answer>\\boxed{{{found[0] if found else 'nothing'}}}</final_answer>"


def scripted(
    script: Callable[[str], str] = note_taker, checkpoint: str = "scripted", **settings: Any
) -> ServedModel:
    """A policy to be served. Its chunks are of 40 words."""
    settings = {"embedder": "hashing", "chunk_tokens": 40, **settings}
    policy = settings.pop("policy", None)
    tokenizer = settings.pop("tokenizer", None) or WordTokenizer()
    engine = Engine.open(
        policy or ScriptedPolicy(tokenizer, script), tokenizer=tokenizer, **settings
    )
    return ServedModel.from_engine(engine, "scripted", checkpoint)


def make_conversations(
    db: Path | str, model: ServedModel | None = None, **bounds: Any
) -> Conversations:
    """Over a database of its own, or a URL."""
    url = f"sqlite:///{db}" if isinstance(db, Path) else db
    log = ConversationLog(open_database(url))
    shared = {name: bounds.pop(name) for name in _TURNS if name in bounds}
    return Conversations(Resources(model or scripted(), log, **shared), **bounds)


@dataclass
class Running:
    """A server that listens: its conversations, and its address without ``/v1``."""

    conversations: Conversations
    url: str

    def client(self, key: str = "none") -> openai.OpenAI:
        """OpenAI's client, as it is."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=30)

    def http(self, key: str | None = None) -> httpx.Client:
        """For routes that OpenAI does not have."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return httpx.Client(
            base_url=self.url, headers=headers, timeout=30, verify=False
        )  # no certificates to load


@contextmanager
def running(
    conversations: Conversations, keys: Mapping[str, str] | None = None, hosts: Sequence[str] = ()
) -> Iterator[Running]:
    """A server on this machine, until the block ends."""
    config = uvicorn.Config(
        make_app(conversations, keys, hosts), port=0, log_level="error", timeout_graceful_shutdown=5
    )
    server = uvicorn.Server(config)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(server.serve(),))
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise RuntimeError("the server did not start")
        time.sleep(0.005)
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield Running(conversations, f"http://127.0.0.1:{port}")
    finally:
        server.should_exit = True
        thread.join()
        loop.close()


def until(condition: Any, seconds: float = 5) -> None:
    """Wait for it."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.005)
