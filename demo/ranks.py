"""The demo on several cores: processes that share every batch, as `accelerate launch` would start them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from atommem.errors import AtomMemError
from atommem.servers.vllm_process import free_port

MOST = 2
"""Ranks, unless told otherwise: each needs a core of its own, and a third has gained little."""
_PATIENCE = 20.0
"""Seconds that the others have to end once the first has."""


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def ranks(count: int, command: Sequence[str]) -> Iterator[None]:
    """Be the first of `count` ranks meanwhile; the others are processes that run `command`, and end with this one.

    In one of them, and for a count of 1, it does nothing. On processors only: none of them sees a GPU.

    Raises:
        AtomMemError: One of the others failed; with the end of what it wrote.
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
                with Path(folder, str(rank)).open("wb") as log:
                    others.append(
                        subprocess.Popen(
                            command,
                            env=environment,
                            stdin=subprocess.DEVNULL,
                            stdout=log,
                            stderr=log,
                        )
                    )
            os.environ.update(shared, RANK="0", LOCAL_RANK="0")
            yield
        except (
            RuntimeError
        ) as error:  # as torch says that the connection to another is gone; or our own
            for rank, other in enumerate(others, 1):
                with suppress(subprocess.TimeoutExpired):
                    if other.wait(1) not in (0, -2, 130):
                        wrote = (
                            Path(folder, str(rank))
                            .read_text(encoding="utf-8", errors="replace")
                            .strip()
                        )
                        last = wrote.splitlines()[-1:] or ["it wrote nothing"]
                        raise AtomMemError(
                            f"process {rank} of the demo's {count} ended with status {other.returncode}: {last[0]} "
                            "(--processes 1 needs no other)."
                        ) from error
            raise
        finally:
            _end(others)
            os.environ.clear()
            os.environ.update(before)


def _end(others: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait for them; who is late is asked, and then made, to end."""
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
