"""Batching of concurrent embeddings."""

import asyncio

import numpy as np
import pytest

from atommem.embedding.embedder import HashingEmbedder, MicroBatcher, Vectors
from atommem.errors import OutageError
from tests.atommem.sessions import Embeds


async def expected(*texts: str) -> Vectors:
    return await HashingEmbedder(32).embed(texts, "entry")


async def test_micro_batcher_embeds_equal_texts_once() -> None:
    recorder = Embeds()
    batcher = MicroBatcher(recorder, max_batch=4)
    vectors = await asyncio.gather(
        *(batcher.embed(["same", "same", f"x{i % 2}"], "entry") for i in range(10))
    )
    assert recorder.calls == [("entry", "same", "x0", "x1")]
    np.testing.assert_array_equal(vectors[3], await expected("same", "same", "x1"))
    vectors[3][:] = 7  # a result that is changed does not change the cache
    again = await batcher.embed(["x1", "new", "same"], "entry")
    np.testing.assert_array_equal(again, await expected("x1", "new", "same"))
    await batcher.embed(["same"], "query")  # which is another vector
    assert recorder.calls[1:] == [("entry", "new"), ("query", "same")]
    many = [str(i) for i in range(10)]
    np.testing.assert_array_equal(await batcher.embed(many, "entry"), await expected(*many))
    assert [len(texts) for _, *texts in recorder.calls[3:]] == [4, 4, 2]


async def test_micro_batcher_error_is_not_cached() -> None:
    recorder = Embeds()
    batcher = MicroBatcher(recorder)
    recorder.fail = OutageError("server gone")
    with pytest.raises(OutageError):
        await batcher.embed(["a"], "entry")
    recorder.fail = None
    np.testing.assert_array_equal(await batcher.embed(["a"], "entry"), await expected("a"))


async def test_micro_batcher_cancelled_waiter_does_not_affect_others() -> None:
    batcher = MicroBatcher(Embeds())
    first, second = (asyncio.create_task(batcher.embed([text], "entry")) for text in "ab")
    await asyncio.sleep(0)
    first.cancel()
    np.testing.assert_array_equal(await second, await expected("b"))
    assert first.cancelled()
