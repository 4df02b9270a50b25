"""The shipped launchers start real training: here with gloo, as there is no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from atommem.config import save_config
from atommem.envs.task_files import save_tasks
from tests.train.loops.test_end_to_end import SETTINGS, make_element_tokenizer, make_tasks
from tests.train.toys import make_model

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.slow


def test_ddp_trains_with_two_processes(tmp_path: Path) -> None:
    """`accelerate launch` with configs/accelerate/ddp.yaml and the real command: one update of two groups."""
    tokenizer, model = make_element_tokenizer(), tmp_path / "model"
    make_model(vocabulary=len(tokenizer), spread=0.1).save_pretrained(model)
    tokenizer.save_pretrained(model)
    save_config(model, *SETTINGS)
    save_tasks(make_tasks(), tmp_path / "tasks.jsonl")
    command = [
        *(sys.executable, "-m", "accelerate.commands.launch", "--config_file", "configs/accelerate/ddp.yaml"),
        *("--num_processes", "2", "--mixed_precision", "no", "--main_process_port", "0"),
        *("-m", "atommem.cli", "train", "grpo", "--model_name_or_path", str(model), "--use_cpu"),
        *("--data", str(tmp_path / "tasks.jsonl"), "--output_dir", str(tmp_path / "out"), "--report_to", "none"),
        *("--num_generations", "6", "--per_device_train_batch_size", "6", "--max_steps", "1", "--seed", "1"),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1"}
    environment.pop("WORLD_SIZE", None)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    update = next(line for line in lines if "reward" in line)
    # Of both processes together; and the groups taught something.
    assert (update["step"], update["episodes"]) == (1, 12)
    assert update["epoch"] == pytest.approx(2 / 6)
    assert update["grad_norm"] > 0
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert done.stdout.count("saved to") == 1
    assert done.stdout.count("kills its processes 30 s after SIGTERM") == 1
