"""Concurrent requests become one call; nobody waits for ever."""

import asyncio

import pytest

from atommem.micro_batching import RequestBatcher, Waiting


class Doubler:
    """Keeps the batches it is given."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.error: Exception | None = None
        self.seconds = 0.0

    async def __call__(self, waiting: list[Waiting[int, int]]) -> None:
        self.batches.append([item.request for item in waiting])
        await asyncio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        for item in waiting:
            item.resolve(2 * item.request)


async def test_requests_after_unequal_amounts_of_work_are_still_one_batch() -> None:
    handle = Doubler()
    batcher: RequestBatcher[int, int] = RequestBatcher(handle)

    async def work_then_submit(i: int) -> int:
        for _ in range(i):
            await asyncio.sleep(0)
        return await batcher.submit(i)

    await asyncio.gather(*(work_then_submit(i) for i in range(32)))
    assert len(handle.batches) == 1


async def test_the_next_batch_collects_while_one_is_handled() -> None:
    handle = Doubler()
    handle.seconds = 0.02
    batcher: RequestBatcher[int, int] = RequestBatcher(handle)
    first = asyncio.create_task(batcher.submit(1))
    while not handle.batches:
        await asyncio.sleep(0.001)
    later = [asyncio.create_task(batcher.submit(i)) for i in (2, 3)]
    assert await first == 2
    assert await asyncio.gather(*later) == [4, 6]
    assert handle.batches == [[1], [2, 3]]


async def test_a_waiter_cancelled_while_its_batch_runs_harms_no_other() -> None:
    handle = Doubler()
    handle.seconds = 0.01
    batcher: RequestBatcher[int, int] = RequestBatcher(handle)
    tasks = [asyncio.create_task(batcher.submit(i)) for i in range(3)]
    while not handle.batches:
        await asyncio.sleep(0.001)
    tasks[1].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert (results[0], results[2]) == (0, 4)

    handle.error = RuntimeError("too late for the cancelled one")
    failing = [asyncio.create_task(batcher.submit(i)) for i in range(2)]
    while len(handle.batches) < 2:
        await asyncio.sleep(0.001)
    failing[0].cancel()
    assert (await asyncio.gather(*failing, return_exceptions=True))[1] is handle.error


def test_a_loop_that_ends_in_the_middle_leaves_nothing_behind() -> None:
    handle = Doubler()
    handle.seconds = 60
    batcher: RequestBatcher[int, int] = RequestBatcher(handle)

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await batcher.submit(1)
        background.append(asyncio.create_task(batcher.submit(2)))  # still waits when the loop ends
        await asyncio.sleep(0)

    background: list[asyncio.Task[int]] = []
    asyncio.run(give_up())
    assert background[0].cancelled()
    handle.seconds = 0.0
    assert asyncio.run(batcher.submit(3)) == 6
    assert batcher._lanes == {}
