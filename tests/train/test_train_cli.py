"""``atommem train``: settings, refusals, the stages on a tiny model, and their logs."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import wandb
from rich.console import Console
from wandb.sdk.lib.noop_run import NoopRun

from atommem.config import MemoryConfig, load_config
from atommem.environment import TaskDescription
from atommem.envs.task_files import save_tasks
from atommem.episode import add_sums
from atommem.errors import ConfigError
from atommem.process import ActivityClock
from atommem.train import console
from atommem.train.console import METRICS_FILE, ConsoleTable, MetricsFile, read_metrics
from atommem.train.episode_logs import COLUMNS, RolloutLog, rollout_means
from atommem.train.settings import parse
from atommem.train.train_cli import main
from tests.train.harness import make_tasks, save_model
from tests.train.toys import make_episode

MINIMUM = ["--model_name_or_path", "some/model", "--data", "tasks.parquet", "--use_cpu"]


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    return save_model(tmp_path)


def test_train_without_arguments_prints_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "atommem train [grpo|sft|async]" in capsys.readouterr().out
    assert main([]) == 2
    with pytest.raises(ConfigError, match=r"dpo: unknown stage\. Give one of grpo, sft, async"):
        main(["dpo"])


REFUSED_VALUES = [
    ("grpo", "--lerning_rate=1", r"unknown setting \(did you mean learning_rate\?\)"),
    ("grpo", "--gradient_accumulation_steps 4", "gradient_accumulation_steps=4: only 1"),
    ("grpo", "--loss_type cispo", "epsilon_high=0.28: with loss_type=cispo"),
    ("async", "--max_staleness -1", "max_staleness=-1: must be at least 0"),
    ("sft", "--packing true", "packing=True: only False"),
]


@pytest.mark.parametrize(("stage", "flags", "message"), REFUSED_VALUES)
def test_parse_value_that_cannot_be_honoured_is_refused(
    stage: str, flags: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(stage, [*MINIMUM, *flags.split(" ")])


def test_parse_flags_override_the_file_and_the_model_folder(
    model_folder: Path, tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"retrieve_k: 3\nscratchpad_tokens: 9\nmodel_name_or_path: {model_folder}\n")
    flags = f"--data x --use_cpu --config {config} --retrieve_k 5 --use_peft --lora_r 4"
    found = parse("grpo", flags.split())
    assert (found.model.use_peft, found.model.lora_r) == (True, 4)
    memory = found.run.memory
    assert found.args.max_completion_length == 4
    assert (memory.templates, memory.retrieve_k, memory.scratchpad_tokens) == ("compact", 5, 9)


def train(folder: Path, stage: str, flags: str) -> None:
    """Run a stage on the tasks and the model of `folder`."""
    reports = "" if "--report_to" in flags else "--report_to none"
    common = f"--data tasks.jsonl --use_cpu {reports} --disable_tqdm true --seed 3"
    group = "" if stage == "sft" else "--per_device_train_batch_size 12 --num_generations 6"
    save_tasks(make_tasks(), folder / "tasks.jsonl")
    with contextlib.chdir(folder):
        assert main([stage, *f"{common} {group} {flags}".split()]) == 0


@pytest.mark.slow
def test_train_grpo_then_sft_on_its_traces_then_grpo_resumed(
    model_folder: Path, tmp_path: Path
) -> None:
    """GRPO with traces, then a cold start from these traces, then GRPO from that, resumed."""
    first = "--model_name_or_path model --output_dir first --max_steps 2 --save_traces true"
    train(tmp_path, "grpo", first)
    assert len(list((tmp_path / "first" / "traces").rglob("*.jsonl"))) == 24

    second = "--model_name_or_path first --output_dir cold --data first --max_steps 2"
    train(tmp_path, "sft", second)
    assert load_config(tmp_path / "cold")["retrieve_k"] == 2

    last = "--model_name_or_path cold --output_dir last --save_steps 1"
    train(tmp_path, "grpo", f"{last} --max_steps 1")
    train(tmp_path, "grpo", f"{last} --max_steps 2 --resume_from_checkpoint true")
    assert (tmp_path / "last" / "checkpoint-2" / "atommem_config.json").is_file()
    assert (tmp_path / "last" / "README.md").is_file()
    logged = read_metrics(tmp_path / "last" / METRICS_FILE)
    assert [entry["step"] for entry in logged if "reward" in entry] == [1, 2]


@pytest.mark.slow
def test_train_async_saves_the_model_and_traces(model_folder: Path, tmp_path: Path) -> None:
    flags = "--model_name_or_path model --output_dir out --max_steps 1 --save_traces true"
    train(tmp_path, "async", flags)
    assert load_config(tmp_path / "out")["templates"] == "compact"
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert len(list((tmp_path / "out" / "traces" / "step-1").iterdir())) == 12


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


@pytest.mark.slow
def test_wandb_gets_settings_rates_and_episodes(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[dict[str, Any]] = []
    for name in ("WANDB_DIR", "WANDB_PROJECT", "TENSORBOARD_LOGGING_DIR"):
        # Set and deleted, so that what a run sets is taken back.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setattr(NoopRun, "log", lambda self, values, **options: logged.append(values))
    flags = "--model_name_or_path model --output_dir out --save_strategy no --max_steps 2"
    try:
        train(tmp_path, "grpo", f"{flags} --report_to wandb --run_name named --capacity 3")
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
