"""The real command, killed and asked to stop, then resumed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from atommem.envs.task_files import save_tasks
from atommem.train.checkpoints import PARTIAL, last_checkpoint
from atommem.train.logs.console import METRICS_FILE, read_metrics
from atommem.train.stop_request import EXIT_INTERRUPTED
from tests.train.harness import environment
from tests.train.loops.test_end_to_end import make_tasks, save_model

pytestmark = pytest.mark.slow

KILLS = 20


@pytest.fixture
def flags(tmp_path: Path) -> list[str]:
    save_tasks(make_tasks(), tmp_path / "tasks.jsonl")
    model, data = save_model(tmp_path), tmp_path / "tasks.jsonl"
    text = f"""--model_name_or_path {model} --data {data} --seed 3 --learning_rate 1e-2
        --per_device_train_batch_size 12 --num_generations 6 --save_steps 2 --max_steps 40
        --use_cpu --report_to none --disable_tqdm true --dataloader_pin_memory false"""
    return text.split()


def start(flags: list[str], out: Path, *launcher: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", *launcher, "atommem.train.train_cli", "grpo", *flags]
    command += ["--output_dir", str(out), "--resume"]
    streams: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=out.parent, env=environment(), **streams)


def logged_updates(out: Path) -> int:
    file = out / METRICS_FILE
    return sum("loss" in entry for entry in read_metrics(file)) if file.is_file() else 0


def wait_for_updates(out: Path, updates: int) -> None:
    deadline = time.monotonic() + 240
    while logged_updates(out) < updates:
        assert time.monotonic() < deadline, f"{out} did not get to update {updates}"
        time.sleep(0.005)


def test_run_killed_20_times_ends_with_the_same_weights(flags: list[str], tmp_path: Path) -> None:
    """Killed at random moments, in rollouts, updates and checkpoints; in the end asked to stop."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    flags += ["--max_steps", str(2 * KILLS + 6)]
    with start(flags, whole) as left_alone:
        assert left_alone.wait(240) == 0
    rng = random.Random(0)
    for kill in range(KILLS):
        with start(flags, parts) as killed:
            wait_for_updates(parts, 2 * kill + 1)
            time.sleep(rng.uniform(0, 0.2))
            killed.kill()
    with start(flags, parts) as asked:
        wait_for_updates(parts, 2 * KILLS + 1)
        asked.send_signal(signal.SIGTERM)
        _, error = asked.communicate(timeout=120)
    assert asked.returncode == EXIT_INTERRUPTED, error
    assert "--resume continues from the last checkpoint" in error
    last = last_checkpoint(parts)
    assert last is not None
    assert last.name == f"checkpoint-{logged_updates(parts)}"
    with start(flags, parts) as resumed:
        assert resumed.wait(240) == 0
    ours, expected = load_file(parts / "model.safetensors"), load_file(whole / "model.safetensors")
    assert all(torch.equal(ours[name], expected[name]) for name in expected)
    assert not (parts / PARTIAL).exists()


def test_two_processes_stop_together(flags: list[str], tmp_path: Path) -> None:
    """Only one of them gets the signal; both save the same step."""
    out = tmp_path / "out"
    flags += ["--per_device_train_batch_size", "6", "--eval_data", str(tmp_path / "tasks.jsonl")]
    flags += ["--eval_strategy", "steps", "--eval_steps", "2"]
    launcher = ("torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m")
    with start(flags, out, *launcher) as process:
        wait_for_updates(out, 3)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[1]), signal.SIGTERM)
        _, error = process.communicate(timeout=180)
    assert error.count("--resume continues from the last checkpoint") >= 2
    evaluations = [entry for entry in read_metrics(out / METRICS_FILE) if "eval_em" in entry]
    assert {(entry["eval_n"], entry["eval_episodes"]) for entry in evaluations} == {(6, 6.0)}
    checkpoint = last_checkpoint(out)
    assert checkpoint is not None
    assert checkpoint.name == f"checkpoint-{logged_updates(out)}"
    assert {"rng_state_0.pth", "rng_state_1.pth"} <= {path.name for path in checkpoint.iterdir()}
