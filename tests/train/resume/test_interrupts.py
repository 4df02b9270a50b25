"""Signals: what runs is given up, a second one ends the process, an ignored one stays ignored."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time

import pytest

from atommem.train.resume import interrupts
from atommem.train.resume.interrupts import StopRequest


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_work_is_given_up(number: signal.Signals) -> None:
    """Also where SIGINT is ignored, as in background jobs, when the test sets it."""
    before = signal.signal(number, signal.default_int_handler)
    request, begun = StopRequest(), []
    try:
        with request.installed(), asyncio.Runner() as runner:

            async def work() -> str:
                begun.append(number)
                signal.raise_signal(number)
                await asyncio.sleep(30)
                return "done"

            started = time.perf_counter()
            assert runner.run(request.guard(work())) is None
            assert runner.run(request.guard(work())) is None, "nothing begins after the request"
            assert time.perf_counter() - started < 5
        assert (request.signal, begun) == (number, [number])
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)


def test_other_cancellations_are_not_swallowed() -> None:
    async def work() -> None:
        raise asyncio.CancelledError

    with asyncio.Runner() as runner, pytest.raises(asyncio.CancelledError):
        runner.run(StopRequest().guard(work()))


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopRequest().installed():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


BUSY = """
import os, signal, time
from atommem.train.resume import interrupts
interrupts.SAME_REQUEST_SECONDS = 0.2
request = interrupts.StopRequest()
with request.installed():
    print("ready", flush=True)
    while not request.requested:
        time.sleep(0.01)
    signal.raise_signal(signal.SIGTERM)  # a launcher passes it on: the same request
    print("asked", flush=True)
    time.sleep(30)
"""


def test_a_second_signal_ends_the_process() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BUSY], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == b"asked\n"
        time.sleep(0.4)
        assert process.poll() is None
        process.send_signal(signal.SIGUSR1)
        time.sleep(0.1)
        assert process.poll() is None, "SIGUSR1 announces; it never ends a process that is saving"
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == -signal.SIGTERM
    assert interrupts.SAME_REQUEST_SECONDS > 0.2
