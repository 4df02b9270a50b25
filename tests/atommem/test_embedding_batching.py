"""The micro-batcher: few calls, equal texts once, errors to those they concern."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

from atommem.actions import Action
from atommem.config import MemoryConfig
from atommem.embedding.batched import MicroBatcher
from atommem.embedding.embedder import TextKind, Vectors
from atommem.embedding.hashing import HashingEmbedder
from atommem.errors import OutageError
from atommem.memory.working import WorkingMemory
from tests.fakes import WordTokenizer


class Recorder(HashingEmbedder):
    """Keeps its calls; fails on texts that contain "bad"."""

    def __init__(self) -> None:
        super().__init__(16)
        self.calls: list[tuple[TextKind, list[str]]] = []
        self.closed = False

    async def embed(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        self.calls.append((kind, list(texts)))
        await asyncio.sleep(0.001)
        if any("bad" in text for text in texts):
            raise OutageError("server gone")
        return await super().embed(texts, kind)

    async def close(self) -> None:
        self.closed = True


async def expected(texts: Sequence[str]) -> Vectors:
    return await HashingEmbedder(16).embed(texts, "entry")


async def test_equal_texts_are_embedded_once_within_and_across_batches() -> None:
    recorder = Recorder()
    batcher = MicroBatcher(recorder)
    vectors = await asyncio.gather(*(batcher.embed(["same", "same", f"x{i % 2}"], "entry") for i in range(10)))
    assert recorder.calls == [("entry", ["same", "x0", "x1"])]
    np.testing.assert_array_equal(vectors[3], await expected(["same", "same", "x1"]))
    again = await batcher.embed(["x1", "new", "same"], "entry")
    assert recorder.calls[1:] == [("entry", ["new"])]
    np.testing.assert_array_equal(again, await expected(["x1", "new", "same"]))
    np.testing.assert_array_equal(await batcher.embed(["new", "x0"], "entry"), await expected(["new", "x0"]))
    assert len(recorder.calls) == 2


async def test_a_query_is_not_served_with_an_entrys_vector() -> None:
    recorder = Recorder()
    batcher = MicroBatcher(recorder)
    await asyncio.gather(batcher.embed(["same"], "entry"), batcher.embed(["same"], "query"))
    assert sorted(kind for kind, _ in recorder.calls) == ["entry", "query"]


async def test_the_cache_forgets_what_was_used_longest_ago() -> None:
    recorder = Recorder()
    batcher = MicroBatcher(recorder, cache_size=2)
    for text in ("a", "b", "a", "c"):  # b is the one that goes
        await batcher.embed([text], "entry")
    recorder.calls.clear()
    for text in ("a", "c", "b"):
        await batcher.embed([text], "entry")
    assert [texts for _, texts in recorder.calls] == [["b"]]

    recorder.calls.clear()
    uncached = MicroBatcher(recorder, cache_size=0)
    await uncached.embed(["a"], "entry")
    await uncached.embed(["a"], "entry")
    assert len(recorder.calls) == 2


async def test_changing_a_result_does_not_change_the_cache() -> None:
    batcher = MicroBatcher(Recorder())
    for _ in range(3):
        vectors = await batcher.embed(["a"], "entry")
        np.testing.assert_array_equal(vectors, await expected(["a"]))
        vectors[:] = 7


async def test_a_large_batch_is_cut() -> None:
    recorder = Recorder()
    vectors = await MicroBatcher(recorder, max_batch=4).embed([str(i) for i in range(10)], "entry")
    assert [len(texts) for _, texts in recorder.calls] == [4, 4, 2]
    np.testing.assert_array_equal(vectors, await expected([str(i) for i in range(10)]))


async def test_an_error_reaches_every_request_of_its_call_and_no_other() -> None:
    recorder = Recorder()
    batcher = MicroBatcher(recorder)
    results: list[Any] = await asyncio.wait_for(
        asyncio.gather(
            *(batcher.embed([text], "entry") for text in ("a", "bad", "c")),
            batcher.embed(["q"], "query"),
            return_exceptions=True,
        ),
        10,
    )
    assert [isinstance(result, OutageError) for result in results] == [True, True, True, False]
    np.testing.assert_array_equal(results[3], await expected(["q"]))
    np.testing.assert_array_equal(await batcher.embed(["a"], "entry"), await expected(["a"]))


async def test_a_step_of_256_episodes_is_two_calls() -> None:
    """Bar 6, without a model: scripts/bench_embedding.py measures it with one."""
    recorder = Recorder()
    batcher = MicroBatcher(recorder)
    memories = [WorkingMemory(batcher, WordTokenizer(), MemoryConfig()) for _ in range(256)]

    async def step(i: int) -> None:
        actions = [
            Action("create", f"fact {i}"),
            Action("read", f"question {i}"),
            Action("create", f"other fact {i}"),
        ]
        await memories[i].apply(actions, 0)

    await asyncio.gather(*(step(i) for i in range(256)))
    assert sorted((kind, len(texts)) for kind, texts in recorder.calls) == [("entry", 512), ("query", 256)]
    assert all(len(memory.view().retrieved) == 2 for memory in memories)
