"""The real command, killed, asked to stop, and resumed; and an update that is repeated from its data."""

from __future__ import annotations

import json
import os
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
from atommem.train.loops.grpo import MemoryGRPOTrainer
from atommem.train.loops.replay import read_failed, replay
from atommem.train.resume.checkpoint_files import PARTIAL, complete_checkpoints
from atommem.train.resume.faults import DivergedError
from atommem.train.resume.interrupts import EXIT_INTERRUPTED
from atommem.train.train_cli import main
from atommem.train.watch.callbacks import METRICS_FILE, read_metrics
from tests.train.harness import environment
from tests.train.loops.test_end_to_end import make_tasks, save_model

pytestmark = pytest.mark.slow


@pytest.fixture
def flags(tmp_path: Path) -> list[str]:
    save_tasks(make_tasks(), tmp_path / "tasks.jsonl")
    text = f"""--model_name_or_path {save_model(tmp_path)} --data {tmp_path / "tasks.jsonl"} --seed 3
        --learning_rate 1e-2 --per_device_train_batch_size 12 --num_generations 6 --save_steps 2 --max_steps 40
        --use_cpu --report_to none --disable_tqdm true --dataloader_pin_memory false"""
    return text.split()


def start(flags: list[str], out: Path, *launcher: str) -> subprocess.Popen[str]:
    """The command, which resumes what it finds, under a launcher or alone."""
    command = [sys.executable, "-m", *launcher, "atommem.train.train_cli", "grpo", *flags]
    command += ["--output_dir", str(out), "--resume"]
    streams: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=out.parent, env=environment(), **streams)


def logged_updates(out: Path) -> int:
    file = out / METRICS_FILE
    return sum("loss" in entry for entry in read_metrics(file)) if file.is_file() else 0


def wait_for_updates(out: Path, updates: int) -> None:
    deadline = time.monotonic() + 180
    while logged_updates(out) < updates:
        assert time.monotonic() < deadline, f"{out} did not get to update {updates}"
        time.sleep(0.01)


def test_killed_then_asked_to_stop_then_resumed(flags: list[str], tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    with start(flags, whole) as left_alone, start(flags, parts) as killed:
        wait_for_updates(parts, 5)
        killed.kill()
        killed.wait()
        assert left_alone.wait(180) == 0
    with start(flags, parts) as asked:
        wait_for_updates(parts, 12)
        asked.send_signal(signal.SIGTERM)
        _, error = asked.communicate(timeout=120)
        assert asked.returncode == EXIT_INTERRUPTED
        assert "--resume continues from the last checkpoint" in error
    done = logged_updates(parts)
    assert 12 <= done < 40
    assert complete_checkpoints(parts)[-1].name == f"checkpoint-{done}"
    with start(flags, parts) as last:
        assert last.wait(180) == 0
    ours, expected = load_file(parts / "model.safetensors"), load_file(whole / "model.safetensors")
    for name in expected:
        assert torch.equal(ours[name], expected[name]), name
    assert not (parts / PARTIAL).exists()


def test_two_processes_stop_together(flags: list[str], tmp_path: Path) -> None:
    """Only one of them gets the signal; both have to save the same step. Before that they share an evaluation."""
    out = tmp_path / "out"
    two = ["--per_device_train_batch_size", "6", "--eval_data", str(tmp_path / "tasks.jsonl")]
    two += ["--eval_strategy", "steps", "--eval_steps", "2"]
    with start(
        [*flags, *two], out, "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m"
    ) as launcher:
        wait_for_updates(out, 3)
        children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        assert len(children) == 2
        os.kill(int(children[1]), signal.SIGTERM)
        _, error = launcher.communicate(timeout=180)
    assert error.count("--resume continues from the last checkpoint") >= 2
    done = logged_updates(out)
    evaluations = [entry for entry in read_metrics(out / METRICS_FILE) if "eval_em" in entry]
    assert evaluations
    assert {(entry["eval_n"], entry["eval_episodes"]) for entry in evaluations} == {(6, 6.0)}
    checkpoint = complete_checkpoints(out)[-1]
    assert checkpoint.name == f"checkpoint-{done}"
    assert {"rng_state_0.pth", "rng_state_1.pth"} <= {path.name for path in checkpoint.iterdir()}


def test_a_failed_update_is_repeated(
    flags: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = [*flags, "--max_steps", "4"]
    whole, failed = tmp_path / "whole", tmp_path / "failed"
    assert main(["grpo", *flags, "--output_dir", str(whole)]) == 0
    expected = read_metrics(whole / METRICS_FILE)[2]

    training_step = MemoryGRPOTrainer.training_step

    def poisoned(self: Any, *args: Any) -> torch.Tensor:
        loss = training_step(self, *args)
        if self.state.global_step == 2:
            self.model.lm_head.weight.grad[0] = torch.nan
        return loss

    monkeypatch.setattr(MemoryGRPOTrainer, "training_step", poisoned)
    config = tmp_path / "config.yaml"
    config.write_text("learning_rate: 1.0e-2\n")
    with pytest.raises(DivergedError, match="step-3"):
        main(["grpo", "--config", str(config), *flags, "--output_dir", str(failed)])
    config.unlink()
    step = failed / "failed" / "step-3"
    report = json.loads((step / "report.json").read_text())
    assert report["settings"]["config"] == {"learning_rate": 0.01}
    assert report["checkpoint"] == str(failed / "checkpoint-2")

    # It fails again, and the culprit is named.
    assert main(["replay", str(step)]) == 0
    assert "it diverged again; 1 parameters" in (out := capsys.readouterr().out)
    assert "\n  lm_head.weight\n" in out
    # Without the poison it is the update that it would have been.
    monkeypatch.undo()
    run = read_failed(step)
    outcome = replay(run)
    assert outcome["loss"] == pytest.approx(expected["loss"], rel=1e-6)
    assert outcome["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-6)
