"""Console table, metrics file, plot, sample episodes, and reports to services."""

from __future__ import annotations

import io
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import wandb
from rich.console import Console
from wandb.sdk.lib.noop_run import NoopRun

from atommem.config import MemoryConfig
from atommem.environment import TaskDescription
from atommem.envs.task_files import save_tasks
from atommem.episode import add_sums
from atommem.process import ActivityClock
from atommem.train import console
from atommem.train.console import ConsoleTable, MetricsFile, read_metrics
from atommem.train.episode_logs import COLUMNS, RolloutLog, rollout_means
from atommem.train.settings import parse
from atommem.train.stages import prepare_reporters
from atommem.train.train_cli import main
from tests.train.harness import make_tasks, save_model
from tests.train.toys import make_episode


def state(step: int, history: list[dict[str, Any]] | None = None) -> Any:
    return SimpleNamespace(
        global_step=step, is_world_process_zero=True, max_steps=100, log_history=history or []
    )


def test_console_table_prints_a_line_per_update(monkeypatch: pytest.MonkeyPatch) -> None:
    out, times = io.StringIO(), iter([1000.0, 1300.0, 1600.0])
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: next(times)))
    columns = [("reward", "reward", ".3f"), ("a long heading", "x", ".1f")]
    table = ConsoleTable(columns, Console(file=out, width=120))
    table.on_train_begin(None, state(10), None)  # resumed
    table.on_log(None, state(20), None, logs={"loss": 0.1, "reward": 0.25, "x": 3})
    table.on_log(None, state(30), None, logs={"loss": 0.1, "reward": 0.5})
    assert out.getvalue().splitlines() == [
        "  step      left   reward  a long heading",
        "    20   0:40:00    0.250             3.0",  # ten updates took 300 s, eighty are left
        "    30   0:35:00    0.500               -",
    ]


def test_metrics_file_of_a_resumed_run_continues_its_checkpoint(tmp_path: Path) -> None:
    path, args = tmp_path / "metrics.jsonl", SimpleNamespace(output_dir=str(tmp_path))

    def write(start: Any, *steps: int) -> list[int]:
        file = MetricsFile()
        file.on_train_begin(args, start, None)
        for step in steps:
            file.on_log(args, state(step), None, logs={"loss": float(step)})
        return [entry["step"] for entry in read_metrics(path)]

    assert write(state(0), 1, 2, 3) == [1, 2, 3]
    with path.open("a") as file:
        file.write('{"step": 4, "lo')  # killed while it wrote
    assert len(read_metrics(path)) == 3
    history = [{"loss": float(step), "step": step} for step in (1, 2)]
    assert write(state(2, history), 3, 4) == [1, 2, 3, 4]


def test_rollout_means_by_source_omit_failed_episodes() -> None:
    tasks = [TaskDescription("t0", "hotpotqa"), TaskDescription("t1", "musique")]
    first = [make_episode("t0", i, reward, []) for i, reward in enumerate((1.0, 0.0))]
    second = [make_episode("t0", 2, 1.0, []), make_episode("t1", 1, None, [])]
    second += [make_episode("t1", 0, 0.5, [])]
    logs = [RolloutLog(tasks, MemoryConfig()).sums(e, ActivityClock()) for e in (first, second)]
    means = rollout_means(add_sums(logs), 2)
    found = {key: value for key, value in means.items() if key.startswith("reward/")}
    assert found == pytest.approx({"reward/hotpotqa": 2 / 3, "reward/musique": 0.5})


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MODE", "DIR", "PROJECT", "RUN_ID", "RESUME"):
        # Set and deleted, so that what a run sets is taken back.
        monkeypatch.setenv(f"WANDB_{name}", "")
        monkeypatch.delenv(f"WANDB_{name}")


@pytest.mark.slow
def test_wandb_gets_settings_rates_and_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: None
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
    assert (settings["dialect"], settings["capacity"]) == ("paper", 3)
    updates = [values for values in logged if "train/store_fill" in values]
    assert [values["train/global_step"] for values in updates] == [1, 2]
    (table,) = (values["episodes"] for values in logged if "episodes" in values)
    assert table.data[0][COLUMNS.index("task")].startswith("task-")


@pytest.mark.slow
def test_reporters_of_a_resumed_run_continue_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: None
) -> None:
    monkeypatch.setattr("atommem.train.stages.find_spec", lambda name: name)
    fixed = ["--model_name_or_path", "some/model", "--data", "tasks.parquet", "--use_cpu"]
    fixed += ["--report_to", "wandb", "--output_dir", str(tmp_path / "hotpot")]

    def run_id(*flags: str) -> str:
        monkeypatch.delenv("WANDB_RUN_ID", raising=False)
        monkeypatch.delenv("WANDB_PROJECT", raising=False)
        prepare_reporters(parse("grpo", [*fixed, *flags]).args)
        assert os.environ["WANDB_RESUME"] == "allow"
        return os.environ["WANDB_RUN_ID"]

    first = run_id()
    assert run_id("--resume_from_checkpoint", "auto") == first
    assert run_id("--project", "other") != first
