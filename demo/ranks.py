"""The demo on several cores: processes that share every batch, as under `accelerate launch`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from atommem.errors import AtomMemError
from atommem.servers.vllm_process import free_port

MOST = 2
"""Default ranks: each needs its own core, and a third gains little."""
_PATIENCE = 20.0
"""Seconds for the others to end after the first."""


def cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def ranks(count: int, command: Sequence[str]) -> Iterator[None]:
    """Be rank 0 of `count`; the others run `command`, and end with this process.

    Does nothing in the others, and for a count of 1. CPU only.

    Raises:
        AtomMemError: One of the others failed; with its last line of output.
    """
    if count == 1 or "RANK" in os.environ:
        yield
        return
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(count)}
    shared |= {"LOCAL_WORLD_SIZE": str(count), "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    before = dict(os.environ)
    others = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for rank in range(1, count):
                environment = before | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "env": environment}
                with Path(folder, str(rank)).open("wb") as log:
                    others.append(subprocess.Popen(command, stdout=log, stderr=log, **streams))
            os.environ.update(shared, RANK="0", LOCAL_RANK="0")
            yield
        except RuntimeError as error:  # torch lost the connection to another rank, or our own
            for rank, other in enumerate(others, 1):
                with suppress(subprocess.TimeoutExpired):
                    if other.wait(1) not in (0, -2, 130):
                        output = Path(folder, str(rank)).read_text("utf-8", errors="replace")
                        last = output.strip().splitlines()[-1:] or ["it wrote nothing"]
                        raise AtomMemError(
                            f"process {rank} of the demo's {count} ended with status "
                            f"{other.returncode}: {last[0]} (--processes 1 needs no other)."
                        ) from error
            raise
        finally:
            _end(others)
            os.environ.clear()
            os.environ.update(before)


def _end(others: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait for them; terminate them after an error, and kill those that are late."""
    torch = sys.modules.get("torch")
    if sys.exc_info()[0] is not None:
        for other in others:
            other.terminate()
    elif torch is not None and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    for other in others:
        try:
            other.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            other.kill()
            other.wait()
