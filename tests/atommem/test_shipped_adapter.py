"""The adapter that comes with AtomMem, on the real SmolLM2-135M-Instruct (scripts/models.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from atommem import Memory
from atommem.config import SHIPPED, PolicyConfig, shipped_policy
from atommem.errors import ConfigError
from atommem.run import stored_settings

ROOT = Path(__file__).parents[2]


def test_adapter_is_small_and_brings_its_settings() -> None:
    folder = Path(PolicyConfig(["smollm2"]).policy[0])
    assert sum(file.stat().st_size for file in folder.iterdir()) < 5e6
    stored = stored_settings(str(folder))
    assert (stored["embedder"], stored["templates"], stored["max_reads"]) == ("hashing", "plain", 0)
    assert shipped_policy("mine/smollm3") == "mine/smollm3"
    with pytest.raises(ConfigError, match=r"policy=smolm2: no such folder \(did you mean smollm2"):
        Memory("smolm2")


@pytest.mark.slow
def test_strangers_questions_are_answered(tmp_path: Path) -> None:
    """Eight of tests/strangers.jsonl; all 60: `atommem eval --policy smollm2 --data ...`."""
    command = [sys.executable, "scripts/models.py", "smollm2"]
    base = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    tasks = (ROOT / "tests" / "strangers.jsonl").read_text(encoding="utf-8").splitlines()[::8]
    (tmp_path / "tasks.jsonl").write_text("\n".join(tasks) + "\n", encoding="utf-8")
    flags = ["--data", str(tmp_path / "tasks.jsonl"), "--output_dir", str(tmp_path / "eval")]
    flags += ["--policy", SHIPPED, "--base_model", base.strip(), "--temperature", "0"]
    command = [sys.executable, "-m", "atommem.cli", "eval", *flags]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    summary = json.loads((tmp_path / "eval" / "summary.json").read_text(encoding="utf-8"))
    # Measured: 3 of these 8, and 28 of all 60. The half that we want is not reached.
    assert summary["metrics"]["em"]["mean"] >= 0.25
