"""An evaluation that is killed ends as one that was left alone."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from atommem.envs.task_files import save_tasks
from tests.eval.toys import make_task
from tests.loopback import make_checkpoint


def start(policy: Path, data: Path, out: Path) -> subprocess.Popen[bytes]:
    words = ["--policy", policy, "--data", data, "--out", out, "--embedder", "hashing"]
    words += ["--samples_per_task", "2", "--max_in_flight", "2"]
    words += ["--max_batch_tokens", "1", "--max_tokens", "4"]
    command = [sys.executable, "-m", "atommem.cli", "eval", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def comparable(value: Any) -> Any:
    """Without seconds and log-probabilities, whose last bits depend on the batch."""
    if isinstance(value, dict):
        left_out = ("seconds", "logprobs")
        return {key: comparable(item) for key, item in value.items() if key not in left_out}
    return [comparable(item) for item in value] if isinstance(value, list) else value


def outcome(out: Path) -> dict[str, list[Any]]:
    """All records and traces, in an order of their own."""
    found = {}
    for path in sorted(out.rglob("*.jsonl")):
        lines = [comparable(json.loads(line)) for line in path.read_text().splitlines()]
        found[str(path.relative_to(out))] = (
            sorted(lines, key=json.dumps) if path.parent == out else lines
        )
    return found


@pytest.mark.slow
def test_evaluation_killed_ends_as_one_left_alone(tmp_path: Path) -> None:
    policy, data = make_checkpoint(tmp_path / "policy"), tmp_path / "tasks.jsonl"
    save_tasks([make_task(f"t{number}", questions=2) for number in range(6)], data)
    assert start(policy, data, tmp_path / "whole").wait(300) == 0
    records = tmp_path / "killed" / "episodes.jsonl"
    process = start(policy, data, tmp_path / "killed")
    while not records.exists() or len(records.read_text().splitlines()) < 4:
        assert process.poll() is None
        time.sleep(0.005)
    process.kill()
    assert process.wait() != 0, "it ended before it was killed"
    assert start(policy, data, tmp_path / "killed").wait(300) == 0
    assert len(records.read_text().splitlines()) == 12
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")
