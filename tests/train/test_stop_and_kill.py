"""Signals and kills: what is cancelled, what is saved, and that a run resumes."""

from __future__ import annotations

import asyncio
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
from atommem.train.checkpoints import PARTIAL, last_checkpoint
from atommem.train.console import METRICS_FILE, read_metrics
from atommem.train.stop_request import EXIT_INTERRUPTED, StopRequest
from atommem.train.train_cli import main
from tests.train.harness import ROOT, environment, make_tasks, save_model


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_stop_request_cancels_guarded_work(number: signal.Signals) -> None:
    before = signal.signal(number, signal.default_int_handler)
    request, begun = StopRequest(), []

    async def work() -> str:
        begun.append(number)
        signal.raise_signal(number)
        await asyncio.sleep(30)
        return "done"

    try:
        with request.installed(), asyncio.Runner() as runner:
            started = time.perf_counter()
            assert runner.run(request.guard(work())) is None
            assert runner.run(request.guard(work())) is None
            assert time.perf_counter() - started < 5
        assert (request.signal, begun) == (number, [number])
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)


BUSY = """
import signal, time
from atommem.train import stop_request
stop_request.SAME_REQUEST_SECONDS = 0.2
request = stop_request.StopRequest()
with request.installed():
    print("ready", flush=True)
    while not request.requested:
        time.sleep(0.01)
    signal.raise_signal(signal.SIGTERM)  # forwarded by a launcher: the same request
    print("asked", flush=True)
    time.sleep(30)
"""


@pytest.mark.slow
def test_stop_request_second_signal_ends_the_process() -> None:
    command = [sys.executable, "-c", BUSY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == b"asked\n"
        time.sleep(0.4)
        process.send_signal(signal.SIGUSR1)
        time.sleep(0.1)
        assert process.poll() is None, "SIGUSR1 never ends a process that is saving"
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == -signal.SIGTERM


KILLS = 6


@pytest.fixture
def flags(tmp_path: Path) -> list[str]:
    save_tasks(make_tasks(), tmp_path / "tasks.jsonl")
    model, data = save_model(tmp_path), tmp_path / "tasks.jsonl"
    text = f"""--model_name_or_path {model} --data {data} --seed 3 --learning_rate 1e-2
        --per_device_train_batch_size 12 --num_generations 6 --save_steps 2 --max_steps 40
        --use_cpu --report_to none --disable_tqdm true --dataloader_pin_memory false"""
    return text.split()


def logged_updates(out: Path) -> int:
    file = out / METRICS_FILE
    return sum("loss" in entry for entry in read_metrics(file)) if file.is_file() else 0


def wait_for_updates(out: Path, updates: int) -> None:
    deadline = time.monotonic() + 240
    while logged_updates(out) < updates:
        assert time.monotonic() < deadline, f"{out} did not get to update {updates}"
        time.sleep(0.005)


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
    last = last_checkpoint(parts)
    assert last is not None
    assert last.name == f"checkpoint-{logged_updates(parts)}"
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
    checkpoint = last_checkpoint(out)
    assert checkpoint is not None
    assert checkpoint.name == f"checkpoint-{logged_updates(out)}"
    assert {"rng_state_0.pth", "rng_state_1.pth"} <= {path.name for path in checkpoint.iterdir()}
