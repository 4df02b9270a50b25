"""Reports of a run, with wandb in its disabled mode."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import wandb
from wandb.sdk.lib.noop_run import NoopRun

from atommem.envs.task_files import save_tasks
from atommem.train.logs.episodes import COLUMNS
from atommem.train.logs.reporters import prepare_reporters
from atommem.train.settings import parse
from atommem.train.train_cli import main
from tests.train.harness import make_tasks, save_model

MINIMUM = ["--model_name_or_path", "some/model", "--data", "tasks.parquet", "--use_cpu"]
_SET = (
    *(f"WANDB_{name}" for name in ("MODE", "DIR", "PROJECT", "RUN_ID", "RESUME")),
    "TENSORBOARD_LOGGING_DIR",
)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _SET:  # set and deleted, so that what a run sets is taken back
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_SILENT", "true")


@pytest.mark.slow
def test_wandb_gets_settings_rates_and_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[dict[str, Any]] = []
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setattr(NoopRun, "log", lambda self, values, **options: logged.append(values))
    model, data = save_model(tmp_path), tmp_path / "tasks.jsonl"
    save_tasks(make_tasks(), data)
    flags = f"""--model_name_or_path {model} --data {data} --output_dir {tmp_path / "out"}
        --report_to wandb --save_strategy no --max_steps 2 --run_name named --capacity 3 --use_cpu
        --per_device_train_batch_size 12 --num_generations 6"""
    try:
        assert main(flags.split()) == 0
        run: Any = wandb.run
        assert (run.project, run.name) == ("atommem", "named")
        settings = dict(run.config)
    finally:
        wandb.finish()
    expected = {"dialect": "paper", "retrieve_k": 2, "capacity": 3, "checkpoint": str(model)}
    assert {name: settings[name] for name in expected} == expected
    assert settings["atommem_version"]
    updates = [values for values in logged if "train/store_fill" in values]
    assert [values["train/global_step"] for values in updates] == [1, 2]
    assert all("train/actions/create" in values for values in updates)
    (table,) = (values["episodes"] for values in logged if "episodes" in values)
    assert table.columns == list(COLUMNS)
    assert table.data[0][COLUMNS.index("task")].startswith("task-")


def test_reporters_of_a_resumed_run_continue_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atommem.train.logs.reporters.find_spec", lambda name: name)
    out = ["--report_to", "wandb", "--output_dir", str(tmp_path / "hotpot")]

    def run_id(*flags: str) -> str:
        for name in _SET:
            monkeypatch.delenv(name, raising=False)
        prepare_reporters(parse("grpo", [*MINIMUM, *out, *flags]).args)
        assert os.environ["WANDB_RESUME"] == "allow"
        return os.environ["WANDB_RUN_ID"]

    first = run_id()
    assert run_id("--resume_from_checkpoint", "auto") == first
    assert run_id("--project", "other") != first
