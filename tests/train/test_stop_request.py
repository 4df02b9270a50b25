"""Signals cancel running work; a second one ends the process."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time

import pytest

from atommem.train.stop_request import StopRequest


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_stop_request_cancels_guarded_work(number: signal.Signals) -> None:
    before = signal.signal(number, signal.default_int_handler)
    request, begun = StopRequest(), []

    async def work() -> str:
        begun.append(number)
        signal.raise_signal(number)
        await asyncio.sleep(30)
        return "done"

    try:
        with request.installed(), asyncio.Runner() as runner:
            started = time.perf_counter()
            assert runner.run(request.guard(work())) is None
            assert runner.run(request.guard(work())) is None
            assert time.perf_counter() - started < 5
        assert (request.signal, begun) == (number, [number])
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)


BUSY = """
import signal, time
from atommem.train import stop_request
stop_request.SAME_REQUEST_SECONDS = 0.2
request = stop_request.StopRequest()
with request.installed():
    print("ready", flush=True)
    while not request.requested:
        time.sleep(0.01)
    signal.raise_signal(signal.SIGTERM)  # forwarded by a launcher: the same request
    print("asked", flush=True)
    time.sleep(30)
"""


@pytest.mark.slow
def test_stop_request_second_signal_ends_the_process() -> None:
    command = [sys.executable, "-c", BUSY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == b"asked\n"
        time.sleep(0.4)
        process.send_signal(signal.SIGUSR1)
        time.sleep(0.1)
        assert process.poll() is None, "SIGUSR1 never ends a process that is saving"
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == -signal.SIGTERM
