"""Mem0 (Chhikara et al. 2025, arXiv 2504.19413): the package ``mem0ai`` itself, over our model and embedder.

Its own prompts, extraction, deduplication and ranking run as they are installed, with a store of its own for every
episode, in this process. Nothing goes over the network and no API key is needed: telemetry is off, and the two classes
that it calls for completions and vectors are ours. What it stores is what its version stores: 2.x only ever adds
memories.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import tempfile
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any, TypeVar

from atommem.actions import Problem, ProblemReason
from atommem.embedding.embedder import Embedder, TextKind
from atommem.envs.task import Task
from atommem.episode import Step
from atommem.errors import AtomMemError, ConfigError
from atommem.eval.methods.baseline import NOTHING_REMEMBERED, REMEMBERED, Baseline, Recorder, Setup
from atommem.eval.methods.notes import clean_text
from atommem.memory.entries import Retrieved
from atommem.memory.operations import Operation
from atommem.observation import Observation

INSTALL = "pip install 'atommem[mem0]'"
READER = "reader"
"""The user whose memories they are."""
DATE = "2025-04-28"
"""The day on which mem0 believes to read (its paper's): its prompts name one, and a rerun must not depend on it."""

_DATES = "## Observation Date\n"
_Result = TypeVar("_Result")


class Mem0(Baseline):
    """Gives every chunk to `mem0` as a message of the user, and answers from the `retrieve_k` memories it finds.

    Raises:
        ConfigError: ``mem0ai`` is not installed, or not in a version that fits.
    """

    name = "mem0"
    prompts = (*Baseline.prompts, REMEMBERED, NOTHING_REMEMBERED, DATE)

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.require()
        _import()
        # mem0 waits for our model inside its calls: one thread for every episode that does.
        self._threads = ThreadPoolExecutor(setup.max_in_flight or 64, thread_name_prefix="mem0")

    @classmethod
    def require(cls) -> None:
        """Make sure that the package is there; see `Baseline.require`."""
        try:
            installed = version("mem0ai")
        except PackageNotFoundError as error:
            raise ConfigError(f"method mem0 needs the package mem0ai, which is not installed: {INSTALL}") from error
        if [int(number) for number in re.findall(r"\d+", installed)[:2]] < [2, 2] or not installed.startswith("2."):
            raise ConfigError(f"method mem0 needs mem0ai 2.2 or a later 2.x, not the {installed} installed: {INSTALL}")
        if find_spec("spacy") is not None and find_spec("en_core_web_sm") is None:
            raise ConfigError(
                "method mem0 uses spaCy where it is installed, and would download the model en_core_web_sm, which is "
                "missing: python -m spacy download en_core_web_sm (or uninstall spaCy)"
            )

    def settings(self) -> dict[str, Any]:
        """Says which version of the package it is, and which of the optional packages that it ranks with are there."""
        settings = super().settings()
        optional = [name for name in ("fastembed", "spacy") if find_spec(name) is not None]
        return {**settings, "method": {**settings["method"], "version": version("mem0ai"), "optional": optional}}

    async def play(self, record: Recorder, task: Task) -> None:
        """Read chunk by chunk, then answer."""
        bridge = Bridge(record, self.setup.embedder, self._threads)
        memory = await bridge.call(_open_memory, bridge, self.setup.embedder.dim)
        try:
            await self._read_and_answer(bridge, memory, record, task)
        finally:
            memory.close()
            memory.vector_store.client.close()

    async def _read_and_answer(self, bridge: Bridge, memory: Any, record: Recorder, task: Task) -> None:
        entries: dict[str, int] = {}
        chunks = await self.chunks(task)
        for index, chunk in enumerate(chunks):
            bridge.observation = record.reading(chunks, index)
            added = await bridge.call(lambda text=chunk: memory.add(text, user_id=READER))
            for item in added["results"]:
                assert bridge.step is not None, "mem0 stores what the model wrote"
                number = entries[item["id"]] = len(entries) + 1
                record.note(
                    bridge.step,
                    Operation(bridge.step.index, "create", entry_id=number, after=item["memory"]),
                )
        top_k, filters = self.setup.memory.retrieve_k, {"user_id": READER}
        for index, question in enumerate(task.questions):
            found = await bridge.call(lambda query=question.text: memory.search(query, top_k=top_k, filters=filters))
            await record.answer_from_memory(
                index,
                [
                    Retrieved(handle, entries[item["id"]], item["memory"], float(item["score"]))
                    for handle, item in enumerate(found["results"], start=1)
                ],
            )


class Bridge:
    """Between mem0, which blocks in a thread, and the event loop that the policy and the embedder belong to.

    Attributes:
        observation: What the calls of mem0 are recorded under.
        step: The step that its last call of the model became.
    """

    def __init__(self, record: Recorder, embedder: Embedder, threads: ThreadPoolExecutor) -> None:
        self.observation: Observation | None = None
        self.step: Step | None = None
        self._query = ""
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
        dated = [{**message, "content": at_fixed_date(message["content"])} for message in messages]
        self.step = self._wait(self._record.ask(dated, self.observation))
        self._record.note_query(self.step, self._query)  # what it remembers already stands in its prompt
        return storable(self.step)

    def embed(self, texts: Sequence[str], kind: TextKind) -> list[list[float]]:
        """Embed texts (called by mem0 in its thread)."""
        if kind == "query":
            self._query = texts[-1]
        vectors = self._wait(self._embedder.embed(texts, kind))
        return [[float(value) for value in vector] for vector in vectors]

    def _wait(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        if self._error is not None:
            # Where embedding several texts failed, mem0 tries them one by one: each would wait for the same outage.
            work.close()
            raise self._error
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except AtomMemError as error:
            self._error = error
            raise


def at_fixed_date(prompt: str) -> str:
    """A prompt of mem0's, which ends with today's date twice, as it would be on `DATE`."""
    head, mark, tail = prompt.rpartition(_DATES)
    return head + mark + re.sub(r"\d{4}-\d{2}-\d{2}", DATE, tail) if mark else prompt


def storable(step: Step) -> str:
    """The reply of a step for mem0, which raises where a memory in it is no object with a text: those are taken out.

    A reply that it could not read is a problem of the step; then it stores nothing.
    """
    from mem0.memory.utils import extract_json, remove_code_blocks

    reply = remove_code_blocks(step.text)
    for text in (reply, extract_json(reply)):  # as mem0 reads it
        try:
            value = json.loads(text, strict=False)
        except (ValueError, RecursionError):
            continue
        memories = value.get("memory") if isinstance(value, dict) else None
        kept = [
            {"text": clean_text(item["text"]), "attributed_to": clean_text(item.get("attributed_to"))}
            for item in (memories if isinstance(memories, list) else [])
            if isinstance(item, dict) and clean_text(item.get("text"))
        ]
        return json.dumps({"memory": kept})
    step.problems += (Problem(ProblemReason.NOT_JSON, "json", 0, len(step.text)),)
    return ""


def _import() -> None:
    """Import mem0 without telemetry, and without a trace in the user's home.

    Raises:
        ConfigError: It cannot be imported, or has been imported with telemetry.
    """
    # Read when mem0 is imported. It would report to its makers, and keep a file in ~/.mem0.
    os.environ["MEM0_TELEMETRY"] = "False"
    os.environ.setdefault("MEM0_DIR", os.path.join(tempfile.gettempdir(), "atommem-mem0"))
    try:
        from mem0.memory.telemetry import MEM0_TELEMETRY
    except ImportError as error:
        raise ConfigError(f"mem0ai cannot be imported ({error}): {INSTALL}") from error
    if MEM0_TELEMETRY:
        raise ConfigError("mem0 has been imported with telemetry on: set MEM0_TELEMETRY=False before that.")
    logger = logging.getLogger("mem0")
    if logger.level == logging.NOTSET:
        # It warns of every optional package that is not there, for every store; what goes wrong is in our records.
        logger.setLevel(logging.CRITICAL)


def _open_memory(bridge: Bridge, dim: int) -> Any:
    """A `mem0.Memory` of this process alone, whose model and embedder are the bridge."""
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

    store = {"collection_name": "atommem", "embedding_model_dims": dim, "path": ":memory:"}
    memory = Memory.from_config(
        {
            # The clients that these make are never used: they are replaced below.
            "llm": {"provider": "openai", "config": {"api_key": "unused"}},
            "embedder": {"provider": "openai", "config": {"api_key": "unused", "embedding_dims": dim}},
            "vector_store": {"provider": "qdrant", "config": store},
            "history_db_path": ":memory:",
        }
    )
    memory.llm = BridgedModel()
    memory.embedding_model = BridgedEmbedding()
    return memory
