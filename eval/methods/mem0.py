"""Mem0 (Chhikara et al. 2025, arXiv 2504.19413): the package ``mem0ai`` itself, over our model and embedder.

Its own prompts, extraction, deduplication and ranking run as they are installed, with a vector store in a temporary
folder. Nothing goes over the network and no API key is needed: telemetry is off, and the two classes that it calls for
completions and vectors are ours. What it stores is what its version stores: 2.x only ever adds memories.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from atommem.actions import ActionKind
from atommem.embedding.base import Embedder, TextKind
from atommem.errors import AtomMemError, ConfigError
from atommem.records import MemoryView, Observation, Operation, Outcome, Retrieved, Step
from envs.base import Task
from eval.methods.base import Baseline, Recorder, Setup

_Result = TypeVar("_Result")


class Mem0(Baseline):
    """Gives every chunk to `mem0` as a message of the user, and answers from the `retrieve_k` memories it finds.

    Raises:
        ConfigError: ``mem0ai`` is not installed.
    """

    name = "mem0"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.version = _prepare()
        # mem0 waits for our model inside its calls: one thread for every episode that does.
        self._threads = ThreadPoolExecutor(setup.max_in_flight or 64, thread_name_prefix="mem0")

    def settings(self) -> dict[str, Any]:
        """Says which version of the package it is."""
        settings = super().settings()
        return {**settings, "method": {**settings["method"], "version": self.version}}

    async def play(self, record: Recorder, task: Task) -> None:
        """Read chunk by chunk, then answer."""
        with tempfile.TemporaryDirectory(prefix="atommem-mem0-", ignore_cleanup_errors=True) as folder:
            bridge = Bridge(record, self.setup.embedder, self._threads)
            memory = await bridge.call(_open_memory, bridge, folder, self.setup.embedder.dim)
            try:
                await self._read_and_answer(bridge, memory, record, task)
            finally:
                await asyncio.get_running_loop().run_in_executor(self._threads, memory.close)

    async def _read_and_answer(self, bridge: Bridge, memory: Any, record: Recorder, task: Task) -> None:
        entries: dict[str, int] = {}
        chunks = self.setup.environments.chunks(task)
        for index, chunk in enumerate(chunks):
            bridge.observation = record.reading(chunks, index)
            steps = len(bridge.steps)
            added = await bridge.call(lambda text=chunk: memory.add(text, user_id="reader"))
            for item in added["results"]:
                entries[item["id"]] = len(entries) + 1
                operation = Operation(
                    bridge.steps[steps].index,
                    ActionKind.CREATE,
                    Outcome.APPLIED,
                    entries[item["id"]],
                    after=item["memory"],
                )
                record.note(bridge.steps[-1], operation)
        for index, question in enumerate(task.questions):
            found = await bridge.call(
                lambda query=question.text: memory.search(
                    query, top_k=self.setup.memory.retrieve_k, filters={"user_id": "reader"}
                )
            )
            retrieved = tuple(
                Retrieved(handle, entries[item["id"]], item["memory"], float(item["score"]))
                for handle, item in enumerate(found["results"], start=1)
            )
            view = MemoryView(query=question.text, retrieved=retrieved, size=len(entries))
            text = "\n".join(f"- {item.text}" for item in retrieved) or "(nothing is remembered)"
            step = await record.answer(index, f"What you remember of a long text:\n{text}", view)
            record.note_query(step, question.text)


class Bridge:
    """Between mem0, which blocks in a thread, and the event loop that the policy and the embedder belong to.

    Attributes:
        observation: What the calls of mem0 are recorded under.
        steps: The steps that its calls of the model became.
    """

    def __init__(self, record: Recorder, embedder: Embedder, threads: ThreadPoolExecutor) -> None:
        self.observation: Observation | None = None
        self.steps: list[Step] = []
        self._record = record
        self._embedder = embedder
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._error: AtomMemError | None = None

    async def call(self, function: Any, *arguments: Any) -> Any:
        """Run something of mem0's in a thread.

        Raises:
            AtomMemError: The policy or the embedder raised it meanwhile, whatever mem0 made of it.
        """
        try:
            result = await self._loop.run_in_executor(self._threads, function, *arguments)
        except Exception:
            # mem0 wraps some errors in its own, and carries on after others: ours is the cause.
            if self._error is not None:
                raise self._error from None
            raise
        if self._error is not None:
            raise self._error
        return result

    def complete(self, messages: list[dict[str, str]]) -> str:
        """Sample a completion (called by mem0 in its thread)."""
        assert self.observation is not None
        step = self._wait(self._record.ask(self._record.prompt_of(messages), self.observation))
        self.steps.append(step)
        return step.text

    def embed(self, texts: Sequence[str], kind: TextKind) -> list[list[float]]:
        """Embed texts (called by mem0 in its thread)."""
        vectors = self._wait(self._embedder.embed(texts, kind))
        return [[float(value) for value in vector] for vector in vectors]

    def _wait(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except AtomMemError as error:
            self._error = error
            raise


def _prepare() -> str:
    """Import mem0 without telemetry, and without a trace in the user's home; its version."""
    # Read when mem0 is imported. It would report to its makers, and keep a history of all users in ~/.mem0.
    os.environ["MEM0_TELEMETRY"] = "False"
    os.environ.setdefault("MEM0_DIR", os.path.join(tempfile.gettempdir(), "atommem-mem0"))
    try:
        from importlib.metadata import version

        import mem0
    except ImportError as error:
        raise ConfigError(f"method mem0 needs the package mem0ai ({error}): pip install 'atommem[mem0]'.") from error
    del mem0
    return version("mem0ai")


def _open_memory(bridge: Bridge, folder: str, dim: int) -> Any:
    """A `mem0.Memory` in `folder` whose model and embedder are the bridge."""
    from mem0 import Memory
    from mem0.embeddings.base import EmbeddingBase
    from mem0.llms.base import LLMBase

    class BridgedModel(LLMBase):
        def generate_response(self, messages: list[dict[str, str]], *arguments: Any, **more: Any) -> str:
            return bridge.complete(messages)

    class BridgedEmbedding(EmbeddingBase):
        def embed(self, text: str, memory_action: str | None = None) -> list[float]:
            return bridge.embed([text], "query" if memory_action == "search" else "entry")[0]

        def embed_batch(self, texts: list[str], memory_action: str | None = "add") -> list[list[float]]:
            return bridge.embed(texts, "query" if memory_action == "search" else "entry") if texts else []

    store = {"collection_name": "atommem", "embedding_model_dims": dim, "path": os.path.join(folder, "store")}
    memory = Memory.from_config(
        {
            # The clients that these make are never used: they are replaced below.
            "llm": {"provider": "openai", "config": {"api_key": "unused"}},
            "embedder": {"provider": "openai", "config": {"api_key": "unused", "embedding_dims": dim}},
            "vector_store": {"provider": "qdrant", "config": store},
            "history_db_path": os.path.join(folder, "history.db"),
        }
    )
    memory.llm = BridgedModel()
    memory.embedding_model = BridgedEmbedding()
    return memory
