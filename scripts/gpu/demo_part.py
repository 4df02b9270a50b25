"""Part ``demo``: `atommem demo` on the GPU with fewer updates, and the seconds of each phase."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from part import Part


def main() -> None:
    """Run it, and read its summary."""
    part = Part()
    with tempfile.TemporaryDirectory() as name:
        size = ["--quick", "--updates", "1"] if part.tiny else ["--updates", "15"]
        subprocess.run(
            [sys.executable, "-m", "atommem.cli", "demo", "--out", name, *size], check=True
        )
        summary = json.loads((Path(name) / "summary.json").read_text(encoding="utf-8"))
    part.add("held-out EM", before=summary["em_before"], after=summary["em_after"])
    part.add("seconds", total=summary["seconds_total"], **summary["seconds"])


if __name__ == "__main__":
    main()
