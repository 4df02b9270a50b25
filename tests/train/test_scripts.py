"""`scripts/bench_shipped.py` and `scripts/gpu_check` cover what is shipped."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import load_script

ROOT = Path(__file__).parents[2]


def test_every_recipe_and_launcher_has_its_pair() -> None:
    pairs = load_script("bench_shipped").pairs()
    recipes = {path.stem for path in (ROOT / "configs" / "train").glob("*.yaml")}
    assert {pair.recipe for pair in pairs} == recipes - {"sft_smollm2"}  # of scripts/real_train
    launchers = {path.stem for path in (ROOT / "configs" / "accelerate").glob("*.yaml")}
    assert {pair.launcher for pair in pairs} == launchers | {"none"}


@pytest.mark.slow
def test_gpu_check_on_a_cpu_runs_its_parts(tmp_path: Path) -> None:
    environment: dict[str, Any] = {**os.environ, "PYTHON": sys.executable}
    command = [str(ROOT / "scripts" / "gpu_check"), "--tiny", "--out", str(tmp_path)]
    command += ["--only", "mask", "attention", "lora", "colocate", "colocate_lora"]
    subprocess.run(command, env=environment, capture_output=True, timeout=560, check=False)
    found = json.loads((tmp_path / "gpu_check.json").read_text())
    log = (tmp_path / "gpu_check.log").read_text()
    parts = found["parts"].values()
    assert [part["status"] for part in parts] == ["ended"] * 5, log[-5000:]
    rows = [row for part in parts for row in part["rows"]]
    assert [row["what"] for row in rows if row["ok"] is False] == []
    assert any("error of the trie" in row["what"] for row in rows)
    moved = [row["figures"]["weights_moved"] for row in rows if row["what"].startswith("greedy")]
    assert [value > 0 for value in moved] == [False, True] * 2, log[-5000:]
