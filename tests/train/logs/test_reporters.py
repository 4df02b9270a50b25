"""Reports of a run, with wandb in its disabled mode."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import wandb
from wandb.sdk.lib.noop_run import NoopRun

from atommem.envs.task_files import save_tasks
from atommem.errors import ConfigError
from atommem.train.logs.episodes import COLUMNS
from atommem.train.logs.reporters import prepare_reporters, report_table
from atommem.train.settings import parse
from atommem.train.train_cli import main
from tests.train.loops.test_end_to_end import make_tasks, save_model

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


def test_resumed_run_continues_the_reported_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atommem.train.logs.reporters.find_spec", lambda name: name)

    def named(*flags: str) -> tuple[str, str]:
        for name in _SET:
            monkeypatch.delenv(name, raising=False)
        args = parse(
            "grpo",
            [*MINIMUM, "--report_to", "wandb", "--output_dir", str(tmp_path / "hotpot"), *flags],
        )[0]
        args.report_to.append("tensorboard")
        prepare_reporters(args)
        assert (os.environ["WANDB_RESUME"], os.environ["WANDB_PROJECT"]) == ("allow", args.project)
        assert os.environ["TENSORBOARD_LOGGING_DIR"] == str(
            tmp_path / "hotpot" / "runs" / args.run_name
        )
        return os.environ["WANDB_RUN_ID"], str(args.run_name)

    first = named()
    assert first[1] == f"hotpot-{first[0]}"
    assert named("--resume_from_checkpoint", "auto") == first
    assert named("--project", "other") != first
    assert named("--run_name", "mine")[1] == "mine"


def test_missing_service_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atommem.train.logs.reporters.find_spec", lambda name: None)
    args = parse("grpo", [*MINIMUM, "--report_to", "none"]).args
    args.report_to = ["trackio"]
    with pytest.raises(
        ConfigError, match=r"report_to=trackio: it is not installed\. pip install trackio"
    ):
        prepare_reporters(args)


def test_report_table_goes_out_with_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    weights, trackio = MagicMock(), MagicMock()
    monkeypatch.setitem(sys.modules, "wandb", weights)
    monkeypatch.setitem(sys.modules, "trackio", trackio)
    report_table("t", ("a", "b"), [("1", "c"), (None, "d")], ["mlflow", "trackio", "wandb"])
    for service, options in ((weights, {"commit": False}), (trackio, {})):
        service.log.assert_called_once_with({"t": service.Table.return_value}, **options)
        frame = service.Table.call_args.kwargs["dataframe"]
        assert frame.fillna("").to_dict("list") == {"a": ["1", ""], "b": ["c", "d"]}
