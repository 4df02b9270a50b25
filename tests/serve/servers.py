"""Servers in this process with scripted policies, and requests to them."""

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

from atommem.memory.log import replay
from atommem.policy.contract import Completion, Sampling
from atommem.run import Runtime
from atommem.serve.app import make_app
from atommem.serve.conversation_log import ConversationLog
from atommem.serve.conversations import Conversations
from atommem.serve.schema import open_database
from atommem.serve.served_model import ServedModel
from tests.fakes import ScriptedPolicy, WordTokenizer

KEYS = {owner: f"{owner}-key-of-32-characters-{owner}" for owner in ("ann", "bob")}
_CHUNK = re.compile(r"of the text:\n(.*?)\n\nYour scratchpad", re.DOTALL)
_QUESTION = re.compile(r"Question:\n(.*)")
_ENTRY = re.compile(r"^Memory \d+: (.*)", re.MULTILINE)


def note_taker(prompt: str) -> str:
    chunk, question = _CHUNK.search(prompt), _QUESTION.search(prompt)
    asked = question[1] if question else ""
    if chunk is not None and "nothing to keep" in chunk[1]:
        return f"<read_memory>{asked}</read_memory>"
    if chunk is not None:
        return f"<create_memory>{chunk[1]}</create_memory><read_memory>{asked}</read_memory>"
    if f"current query:\n{asked}" not in prompt:
        return f"<read_memory>{asked}</read_memory>"
    found = _ENTRY.findall(prompt)
    return f"<final_answer>\\boxed{{{found[0] if found else 'nothing'}}}</final_answer>"


class GatedPolicy(ScriptedPolicy):
    """The note taker, which waits while `open` is unset and raises `error` if there is one."""

    def __init__(self) -> None:
        super().__init__(WordTokenizer(), note_taker)
        self.open, self.entered, self.cancelled = (threading.Event() for _ in range(3))
        self.open.set()
        self.error: Exception | None = None

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        self.entered.set()
        try:
            while not self.open.is_set():
                await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        if self.error is not None:
            raise self.error
        return await super().complete(prompt_ids, sampling)

    def shut(self) -> None:
        for event in (self.open, self.entered, self.cancelled):
            event.clear()


def scripted(
    script: Callable[[str], str] = note_taker, policy: Any = None, active: int = 64, **settings: Any
) -> ServedModel:
    tokenizer = policy.tokenizer if policy else WordTokenizer()
    policy = policy or ScriptedPolicy(tokenizer, script)
    settings = {"embedder": "hashing", "chunk_tokens": 40, **settings}
    runtime = Runtime.open(policy, tokenizer=tokenizer, **settings)
    return ServedModel(runtime, "scripted", "scripted", active=asyncio.Semaphore(active))


def make_conversations(
    db: Path | str, model: ServedModel | None = None, max_requests: int = 320
) -> Conversations:
    url = f"sqlite:///{db}" if isinstance(db, Path) else db
    log = ConversationLog(open_database(url))
    return Conversations(model or scripted(), log, max_requests=max_requests)


@dataclass
class Running:
    conversations: Conversations
    url: str

    def client(self, key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=30)

    def http(self, key: str | None = None) -> httpx.Client:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30, verify=False)


@contextmanager
def running(
    conversations: Conversations, keys: Mapping[str, str] = {}, hosts: Sequence[str] = ()
) -> Iterator[Running]:
    app = make_app(conversations, {key: owner for owner, key in keys.items()}, hosts)
    config = uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=5)
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


@contextmanager
def opened(
    folder: Path, model: ServedModel | None = None, **settings: Any
) -> Iterator[tuple[Running, httpx.Client]]:
    """A server of its own, and a client without a key."""
    conversations = make_conversations(folder / "log.db", model)
    with running(conversations, **settings) as server, server.http() as http:
        yield server, http


@contextmanager
def gated(
    db: Path, active: int = 64, max_requests: int = 320
) -> Iterator[tuple[GatedPolicy, Running, httpx.Client]]:
    policy = GatedPolicy()
    model = scripted(policy=policy, active=active)
    with running(make_conversations(db, model, max_requests)) as server, server.http() as http:
        yield policy, server, http


def items(*texts: str, **item: str) -> dict[str, Any]:
    parts = [{"type": "input_text", "text": text} for text in texts]
    return {"items": [{"content": parts, **item}]}


def new_conversation(http: httpx.Client, *texts: str, name: str = "", **metadata: str) -> str:
    body = {**items(*texts, name=name), "metadata": metadata} if texts else {"metadata": metadata}
    found = http.post("/v1/conversations", json=body).raise_for_status().json()
    return f"/v1/conversations/{found['id']}"


def respond(http: httpx.Client, path: str, question: Any, **more: Any) -> httpx.Response:
    body = {"conversation": path.rpartition("/")[2], "input": question, **more}
    return http.post("/v1/responses", json=body)


def ask(http: httpx.Client, path: str, question: str) -> tuple[str, str]:
    found = respond(http, path, question).raise_for_status().json()
    return found["id"], found["output"][1]["content"][0]["text"]


def entries(http: httpx.Client, path: str, **query: Any) -> dict[int, str]:
    found = http.get(f"{path}/memory", params=query).raise_for_status().json()
    return {entry["id"]: entry["text"] for entry in found["entries"]}


def event_kinds(conversations: Conversations, conversation: str) -> list[str]:
    """The kinds of all events, after checking that steps and operations are whole and replay."""
    log = conversations.log
    name = conversation.rpartition("/")[2]
    operations = log.load(name, "local", "none")[1].operations
    events, rows = log.events(name), log.operations(name)
    assert (replay(operations), len(operations)) == log.memory_at(name)
    assert [row["seq"] for row in rows] == list(range(len(operations)))
    steps = [event for event in events if event.kind == "step"]
    assert [step.step for step in steps] == list(range(len(steps)))
    for step in steps:
        written = [row for row in rows if row["version"] == step.version]
        actors = [row.get("actor", "policy") for row in written]
        kinds = [action["kind"] for action in step.body["actions"]]
        assert actors.count("policy") == len(kinds) - kinds.count("answer")
    return [event.kind for event in events]


def until(condition: Callable[[], Any], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)
