"""`scripts/gpu_check`: its parts run on a CPU, and none takes the others with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.fakes import load_script

ROOT = Path(__file__).parents[2]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script as a module; its parts are to be found in `tmp_path`."""
    module = load_script("gpu/check")
    monkeypatch.setattr(module, "HERE", tmp_path)
    return module


ROW = """
import json, sys, time
with open(sys.argv[2], "w") as file:
    print(json.dumps({"what": "w", "ok": %s, "figures": {"f": 1.5}}), file=file)
"""


@pytest.mark.slow
def test_a_part_that_fails_or_hangs_keeps_its_rows_and_leaves_the_others(
    check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripts = {"good": ROW % "True", "broken": ROW % "None" + "1 / 0\n", "slow": ROW % "False" + "time.sleep(60)\n"}
    for name, text in scripts.items():
        (tmp_path / f"{name}.py").write_text(text)
    parts = {name: check.Part(f"{name}.py", (), 2 if name == "slow" else 30) for name in ("slow", "broken", "good")}
    monkeypatch.setattr(check, "PARTS", parts)
    assert check.main(["--out", str(tmp_path / "out"), "--only", *parts]) == 1
    found = json.loads((tmp_path / "out" / "gpu_check.json").read_text())
    assert [part["status"] for part in found["parts"].values()] == ["too slow", "failed", "ended"]
    assert all(part["rows"][0]["figures"] == {"f": 1.5} for part in found["parts"].values())
    table = (tmp_path / "out" / "gpu_check.md").read_text()
    assert found["machine"]["device"] in table.splitlines()[0]
    assert "| slow | w | f 1.5 | **no** |" in table
    assert "ZeroDivisionError" in (tmp_path / "out" / "gpu_check.log").read_text()
    assert check.main(["--out", str(tmp_path / "out"), "--only", "good"]) == 0


@pytest.mark.slow
def test_every_part_runs_on_a_cpu(tmp_path: Path) -> None:
    environment: dict[str, Any] = {**os.environ, "PYTHON": sys.executable}
    command = [str(ROOT / "scripts" / "gpu_check"), "--tiny", "--out", str(tmp_path)]
    subprocess.run(command, env=environment, capture_output=True, timeout=560, check=False)
    found = json.loads((tmp_path / "gpu_check.json").read_text())
    log = (tmp_path / "gpu_check.log").read_text()
    assert {name: part["status"] for name, part in found["parts"].items()} == dict.fromkeys(
        ("mask", "attention", "lora", "full", "fsdp2", "demo"), "ended"
    ), log[-5000:]
    rows = [row for part in found["parts"].values() for row in part["rows"]]
    assert [row["what"] for row in rows if row["ok"] is False] == []
    assert sum("error of the trie" in row["what"] for row in rows) == 2
    assert sum("most memory" in row["what"] for row in rows) == 6
