"""`scripts/gpu_check`: its parts run on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_gpu_check_on_a_cpu_runs_its_parts(tmp_path: Path) -> None:
    environment: dict[str, Any] = {**os.environ, "PYTHON": sys.executable}
    command = [str(ROOT / "scripts" / "gpu_check"), "--tiny", "--out", str(tmp_path)]
    command += ["--only", "mask", "attention", "lora"]
    subprocess.run(command, env=environment, capture_output=True, timeout=560, check=False)
    found = json.loads((tmp_path / "gpu_check.json").read_text())
    log = (tmp_path / "gpu_check.log").read_text()
    assert {name: part["status"] for name, part in found["parts"].items()} == dict.fromkeys(
        ("mask", "attention", "lora"), "ended"
    ), log[-5000:]
    rows = [row for part in found["parts"].values() for row in part["rows"]]
    assert [row["what"] for row in rows if row["ok"] is False] == []
    assert sum("error of the trie" in row["what"] for row in rows) > 0
    assert any("most memory" in row["what"] for row in rows)
