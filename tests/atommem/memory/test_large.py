"""A large store's turn leaves the event loop, and is at rest before anything else happens to it."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from atommem.actions import Action
from atommem.memory import index as index_module
from atommem.memory.admission import Accepted
from atommem.memory.rules import Candidate, StoreState
from atommem.memory.threads import THREADS, share
from tests.atommem.memory.toys import CREATE, DELETE, READ, UPDATE, memory, shown, texts


class Slow:
    """Admits after a fifth of a second, and notes in which thread."""

    threads: list[str] = []  # noqa: RUF012

    def admit(self, candidate: Candidate, store: StoreState) -> Accepted:
        self.threads.append(threading.current_thread().name)
        time.sleep(0.2)
        return Accepted()


@pytest.fixture
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_ENTRIES_ON_LOOP", 0)


@pytest.mark.usefixtures("everything_is_large")
async def test_the_loop_goes_on_while_a_large_store_works() -> None:
    m = memory()
    await m.apply([Action(CREATE, "ann"), Action(CREATE, "bob"), Action(READ, "ann")], 0)
    slow = memory(m._resources.embedder, admission=f"{Slow.__module__}:Slow")
    slow._state = m._state
    task = asyncio.create_task(slow.apply([Action(CREATE, "carol"), Action(READ, "carol")], 1))
    late, Slow.threads[:] = 0.0, []
    while not task.done():
        started = time.perf_counter()
        await asyncio.sleep(0.001)
        late = max(late, time.perf_counter() - started)
    assert late < 0.15
    assert Slow.threads[0].startswith("atommem-memory")
    assert shown(slow)[0] == (1, "carol")


@pytest.mark.usefixtures("everything_is_large")
async def test_a_turn_that_is_cancelled_in_its_thread_is_taken_back() -> None:
    m = memory(admission=f"{Slow.__module__}:Slow")
    await m.apply([Action(CREATE, "ann"), Action(READ, "ann")], 0)  # empty yet, and on the loop
    before, vectors = (m.contents.copy(), m.view(), m.log), m.vectors().rows.tolist()
    turn = [Action(UPDATE, "eve", 1), Action(CREATE, "bob"), Action(DELETE, handle=1), Action(CREATE, "dan")]
    turn.append(Action(READ, "bob"))
    task = asyncio.create_task(m.apply(turn, 1))
    await asyncio.sleep(0.1)  # in the first of its two creates
    task.cancel()
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ((m.contents, m.view(), m.log), m.vectors().rows.tolist()) == (before, vectors)
    await m.apply([Action(CREATE, "carol")], 1)
    assert list(texts(m).values()) == ["ann", "carol"]


def test_shared_work_is_all_done_whether_or_not_threads_are_free() -> None:
    done: list[int] = []
    jobs = [lambda number=number: done.append(number) for number in range(3 * THREADS)]
    share(jobs)
    assert sorted(done) == list(range(3 * THREADS))

    def fail() -> None:
        raise ValueError("in another thread")

    with pytest.raises(ValueError, match="in another thread"):
        share([lambda: time.sleep(0.05), fail])
