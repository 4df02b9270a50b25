"""Batching of concurrent requests and embeddings."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from atommem.embedding.embedder import HashingEmbedder, MicroBatcher, TextKind, Vectors
from atommem.errors import OutageError
from atommem.micro_batching import RequestBatcher, Waiting
from tests.atommem.sessions import Embeds


class Doubler(RequestBatcher[int, int]):
    """Keeps the batches it is given, each of which takes some seconds."""

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__(self.double)
        self.batches: list[list[int]] = []
        self.error: Exception | None = None
        self.seconds = seconds

    async def double(self, waiting: list[Waiting[int, int]]) -> None:
        self.batches.append([item.request for item in waiting])
        await asyncio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        for item in waiting:
            item.resolve(2 * item.request)

    async def start(self, *requests: int) -> list[asyncio.Task[int]]:
        """Tasks whose requests are being handled."""
        before, tasks = (
            len(self.batches),
            [asyncio.create_task(self.submit(request)) for request in requests],
        )
        while len(self.batches) == before:
            await asyncio.sleep(0.001)
        return tasks


async def test_batcher_staggered_requests_share_a_batch() -> None:
    batcher = Doubler()

    async def work_then_submit(i: int) -> int:
        for _ in range(i):
            await asyncio.sleep(0)
        return await batcher.submit(i)

    await asyncio.gather(*(work_then_submit(i) for i in range(32)))
    assert len(batcher.batches) == 1


async def test_batcher_cancelled_waiter_does_not_affect_others() -> None:
    batcher = Doubler(0.01)
    tasks = await batcher.start(0, 1, 2)
    tasks[1].cancel()
    collected = [asyncio.create_task(batcher.submit(request)) for request in (3, 4)]
    assert (await asyncio.gather(*tasks, *collected, return_exceptions=True))[::2] == [0, 4, 8]
    assert batcher.batches == [[0, 1, 2], [3, 4]], "the next one collects meanwhile"
    batcher.error = RuntimeError("too late for the cancelled one")
    failing = await batcher.start(0, 1)
    failing[0].cancel()
    assert (await asyncio.gather(*failing, return_exceptions=True))[1] is batcher.error


def test_batcher_ended_loop_leaves_nothing() -> None:
    batcher = Doubler(60)
    background: list[asyncio.Task[int]] = []

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await batcher.submit(1)
        background.append(asyncio.create_task(batcher.submit(2)))  # still waits when the loop ends
        await asyncio.sleep(0)

    asyncio.run(give_up())
    assert background[0].cancelled()
    batcher.seconds = 0.0
    assert asyncio.run(batcher.submit(3)) == 6


class Recorder(Embeds):
    """Fails on texts that contain "bad"."""

    async def embed(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        await asyncio.sleep(0.001)
        self.fail = OutageError("server gone") if any("bad" in text for text in texts) else None
        return await super().embed(texts, kind)


async def expected(texts: Sequence[str]) -> Vectors:
    return await HashingEmbedder(32).embed(texts, "entry")


async def test_micro_batcher_embeds_equal_texts_once() -> None:
    recorder = Recorder()
    batcher = MicroBatcher(recorder, max_batch=4)
    vectors = await asyncio.gather(
        *(batcher.embed(["same", "same", f"x{i % 2}"], "entry") for i in range(10))
    )
    assert recorder.calls == [("entry", "same", "x0", "x1")]
    assert batcher.id == recorder.id, "they are the same vectors"
    np.testing.assert_array_equal(vectors[3], await expected(["same", "same", "x1"]))
    vectors[3][:] = 7  # a result that is changed does not change the cache
    again = await batcher.embed(["x1", "new", "same"], "entry")
    again_expected = await expected(["x1", "new", "same"])
    np.testing.assert_array_equal(again, again_expected)
    again[:] = 7
    np.testing.assert_array_equal(
        await batcher.embed(["x1", "new", "same"], "entry"), again_expected
    )
    assert recorder.calls[1:] == [("entry", "new")]
    await batcher.embed(["same"], "query")  # which is another vector
    assert recorder.calls[2:] == [("query", "same")]
    many = [str(i) for i in range(10)]
    np.testing.assert_array_equal(await batcher.embed(many, "entry"), await expected(many))
    assert [len(texts) for _, *texts in recorder.calls[3:]] == [4, 4, 2]


async def test_micro_batcher_error_reaches_only_its_call() -> None:
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
