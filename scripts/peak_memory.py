"""The highest resident set of a process, as the benches report it (Linux)."""

from __future__ import annotations

import re
from pathlib import Path


def peak_megabytes(process: int | str = "self") -> float:
    """MB (2^20 bytes); 0 if the process is gone. getrusage's begins with the peak of the process that started it."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0.0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return 0.0 if found is None else int(found[1]) / 1024


def forget_peak() -> None:
    """This process's highest resident set is from now on the one that it has."""
    Path("/proc/self/clear_refs").write_text("5")
