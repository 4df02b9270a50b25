"""`atommem demo` in two processes: the same lessons, and an end of both when one ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file

from tests.serve.servers import until

pytestmark = pytest.mark.slow


@contextmanager
def demo(out: Path, processes: int, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """One that runs, in a session of its own, which is gone afterwards."""
    command = [
        sys.executable,
        "-m",
        "atommem.cli",
        "demo",
        "--quick",
        "--processes",
        str(processes),
        "--out",
        str(out),
    ]
    with (out.parent / f"{out.name}.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, *options], stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_demo_on_two_processes_trains_as_on_one(tmp_path: Path) -> None:
    for processes in (1, 2):
        with demo(tmp_path / str(processes), processes) as process:
            assert process.wait(timeout=300) == 0
    one, two = (
        load_file(tmp_path / str(processes) / "pretrained" / "model.safetensors")
        for processes in (1, 2)
    )
    assert max((one[name] - two[name]).abs().max().item() for name in one) < 1e-5
    # Until the first epoch of 302 rows ends, whose last batch is filled up where two share it.
    losses = [
        re.findall(r"^ +[1-4] +\S+ +(\d\.\d{4}) ", (tmp_path / f"{n}.log").read_text(), re.M)
        for n in (1, 2)
    ]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 4
    for folder in ("", "eval"):
        first, second = (
            {path.name for path in (tmp_path / n / folder).iterdir()} for n in ("1", "2")
        )
        assert first == second


def test_demo_with_a_killed_process_ends_the_other(tmp_path: Path) -> None:
    out, log = tmp_path / "demo", tmp_path / "demo.log"
    with demo(out, 2, "--updates", "500") as process:
        until(lambda: "GRPO:" in log.read_text(), 120)
        (other,) = [
            child.pid
            for child in psutil.Process(process.pid).children()
            if "atommem.cli" in child.cmdline()
        ]
        os.kill(other, signal.SIGKILL)
        assert process.wait(timeout=60) == 2
    message = "process 1 of the demo's 2 ended with status -9"
    assert message in log.read_text().splitlines()[-1]
    assert "Traceback" not in log.read_text()
