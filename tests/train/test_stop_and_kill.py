"""Signals and kills: what is cancelled, what is saved, and that a run resumes."""

from __future__ import annotations

import multiprocessing
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
from atommem.train import stop_request
from atommem.train.checkpoints import PARTIAL, last_checkpoint
from atommem.train.console import METRICS_FILE, read_metrics
from atommem.train.stop_request import EXIT_INTERRUPTED, StopRequest
from atommem.train.train_cli import main
from tests.serve.servers import until
from tests.train.harness import ROOT, environment, make_tasks, save_model


def ask_twice() -> None:
    stop_request.SAME_REQUEST_SECONDS = 0.0
    with StopRequest().installed():
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM):
            print(number, flush=True)
            signal.raise_signal(number)


def test_stop_request_second_signal_ends_the_process(capfd: pytest.CaptureFixture[str]) -> None:
    """SIGUSR1 never ends a process that is saving."""
    process = multiprocessing.get_context("fork").Process(target=ask_twice)
    process.start()
    process.join(10)
    assert process.exitcode == -signal.SIGTERM
    assert capfd.readouterr().out.split() == ["15", "10", "15"]


KILLS = 4


@pytest.fixture
def flags(tmp_path: Path) -> list[str]:
    model, data = save_model(tmp_path), tmp_path / "tasks.jsonl"
    save_tasks(make_tasks(), data)
    text = f"""--model_name_or_path {model} --data {data} --seed 3 --learning_rate 1e-2
        --per_device_train_batch_size 12 --num_generations 6 --save_steps 2 --max_steps 40
        --use_cpu --report_to none --disable_tqdm true --dataloader_pin_memory false"""
    return text.split()


def logged_updates(out: Path) -> int:
    file = out / METRICS_FILE
    return sum("loss" in entry for entry in read_metrics(file)) if file.is_file() else 0


def wait_for_updates(out: Path, updates: int) -> None:
    until(lambda: logged_updates(out) >= updates, 240)


FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["atommem.train.stages", "atommem.train.loops.grpo_trainer"])


def run_command(flags: list[str], out: Path) -> None:
    """Run the command in a forked process, which has imported the libraries."""
    log = os.open(out.with_suffix(".log"), os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.exit(main(["grpo", *flags, "--output_dir", str(out), "--resume"]))


def fork(flags: list[str], out: Path) -> Any:
    process = FORKS.Process(target=run_command, args=(flags, out))
    process.start()
    return process


@pytest.mark.slow
def test_run_killed_at_random_moments_ends_with_the_same_weights(
    flags: list[str], tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    flags += ["--max_steps", str(2 * KILLS + 6)]
    left_alone = fork(flags, whole)
    rng = random.Random(0)
    for kill in range(KILLS):
        killed = fork(flags, parts)
        wait_for_updates(parts, 2 * kill + 1)
        time.sleep(rng.uniform(0, 0.2))
        killed.kill()
        killed.join()
    asked = fork(flags, parts)
    wait_for_updates(parts, 2 * KILLS + 1)
    os.kill(asked.pid, signal.SIGTERM)
    asked.join(120)
    log = parts.with_suffix(".log").read_text()
    assert asked.exitcode == EXIT_INTERRUPTED, log[-3000:]
    assert "--resume continues from the last checkpoint" in log
    assert last_checkpoint(parts) == parts / f"checkpoint-{logged_updates(parts)}"
    resumed = fork(flags, parts)
    for process in (left_alone, resumed):
        process.join(240)
        assert process.exitcode == 0
    ours, expected = load_file(parts / "model.safetensors"), load_file(whole / "model.safetensors")
    assert all(torch.equal(ours[name], expected[name]) for name in expected)
    assert not (parts / PARTIAL).exists()


@pytest.mark.slow
def test_two_processes_of_the_shipped_launcher_stop_together(
    flags: list[str], tmp_path: Path
) -> None:
    """Only one of them gets the signal; both save the same step."""
    out, launcher = tmp_path / "out", str(ROOT / "configs" / "accelerate" / "ddp.yaml")
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", launcher]
    command += ["--num_processes", "2", "--mixed_precision", "no", "--main_process_port", "0", "-m"]
    command += ["atommem.train.train_cli", "grpo", *flags, "--output_dir", str(out)]
    command += ["--per_device_train_batch_size", "6", "--eval_data", str(tmp_path / "tasks.jsonl")]
    command += ["--eval_strategy", "steps", "--eval_steps", "2", "--resume"]
    streams: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), **streams) as process:
        wait_for_updates(out, 3)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[1]), signal.SIGTERM)
        _, error = process.communicate(timeout=180)
    assert error.count("--resume continues from the last checkpoint") >= 2, error[-3000:]
    evaluations = [entry for entry in read_metrics(out / METRICS_FILE) if "eval_em" in entry]
    assert {(entry["eval_n"], entry["eval_episodes"]) for entry in evaluations} == {(6, 6.0)}
    assert last_checkpoint(out) == out / f"checkpoint-{logged_updates(out)}"
