"""`atommem.Memory`: the same without ``await``, also inside of an event loop, and under Ctrl-C."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from atommem import AsyncMemory, Memory
from atommem.errors import ConfigError
from tests.atommem.test_face import TEXT, NotePolicy
from tests.fakes import WordEmbedder


def make(policy: NotePolicy) -> Memory:
    return Memory(policy, embedder=WordEmbedder(), chunk_tokens=3)


def test_everything_without_await(tmp_path: Path) -> None:
    policy = NotePolicy()
    with make(policy) as memory:
        assert memory.read(TEXT, name="t").complete
        assert memory.ask("What?", keep=False).text == "42"
        assert memory.ask("What?").text == "42"
        assert (len(memory.entries()), memory.steps, memory.readings[0].name) == (3, 4, "t")
        assert memory.history()[0].kind == "create"
        assert (memory.scratchpad, memory.settings["chunk_tokens"]) == ("", 3)
        assert repr(memory) == "Memory(3 entries after 4 steps)"
        assert repr(memory.at(1)) == "Memory(1 entries after 1 steps)"
        assert memory.fork().entries() == memory.entries()
        memory.save(tmp_path)
        assert Memory.load(tmp_path, policy, embedder=WordEmbedder()).history() == memory.history()
    assert policy.closed


def test_it_has_every_method_of_the_other() -> None:
    def public(kind: type) -> dict[str, object]:
        return {name: item for name, item in inspect.getmembers(kind) if not name.startswith("_")}

    assert {*public(AsyncMemory)} - {*public(Memory)} == {"open"}
    for name, method in public(Memory).items():
        if inspect.isfunction(method):
            assert inspect.signature(method).parameters == inspect.signature(public(AsyncMemory)[name]).parameters, name  # type: ignore[arg-type]


async def test_inside_of_a_running_loop() -> None:
    memory = make(NotePolicy())
    memory.read(TEXT)
    assert memory.ask("What?").text == "42"
    assert asyncio.get_running_loop().is_running()


def test_from_several_threads() -> None:
    memory = make(NotePolicy())
    threads = [threading.Thread(target=memory.read, args=(f"text {n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(entry.text.strip() for entry in memory.entries()) == [f"text {n}" for n in range(8)]


def test_ctrl_c_ends_a_reading_and_keeps_what_was_read(request: pytest.FixtureRequest) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    policy = NotePolicy()
    memory = make(policy)

    def hang(done: int, chunks: int) -> None:
        policy.hang = done == 2

    def press() -> None:
        while not policy.running or not policy.hang:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press).start()
    with pytest.raises(KeyboardInterrupt):
        memory.read(TEXT, progress=hang)
    policy.hang = False
    assert len(memory.entries()) == 2
    assert memory.read(TEXT).steps == (0, 1, 2)


def test_its_own_progress_callback_must_not_wait_for_it() -> None:
    memory = make(NotePolicy())
    with pytest.raises(ConfigError, match="own progress callback"):
        memory.read(TEXT, progress=lambda done, chunks: memory.ask("What?") and None)


def test_after_a_fork_of_the_process_it_still_works() -> None:
    memory = make(NotePolicy())
    memory.read("one")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if make(NotePolicy()).ask("What?").text == "42" else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
