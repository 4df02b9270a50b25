"""What a run tells wandb, whose disabled mode does all but write and send it; of a table doubles take note."""

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
from atommem.train.logs.reporters import prepare_reporters, report_table, run_facts
from atommem.train.logs.sample_episodes import COLUMNS
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


def test_what_wandb_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Project and run, all settings with version and commit, rates and fill at every update, episodes as a table."""
    told: list[dict[str, Any]] = []
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setattr(NoopRun, "log", lambda self, values, **options: told.append(values))
    model, data, out = save_model(tmp_path), tmp_path / "tasks.jsonl", tmp_path / "out"
    save_tasks(make_tasks(), data)
    config = tmp_path / "config.yaml"
    config.write_text("report_to: [wandb]\nsave_strategy: 'no'\nmax_steps: 2\nrun_name: named\n")
    flags = [
        "--data",
        str(data),
        "--output_dir",
        str(out),
        "--config",
        str(config),
        "--capacity",
        "3",
        "--use_cpu",
    ]
    flags += ["--per_device_train_batch_size", "12", "--num_generations", "6"]
    try:
        assert main(["--model_name_or_path", str(model), *flags]) == 0
        run: Any = wandb.run
        assert (run.project, run.name) == ("atommem", "named")
        settings = dict(run.config)
    finally:
        wandb.finish()
    expected = {
        "dialect": "paper",
        "chunk_tokens": 4000,
        "retrieve_k": 2,
        "embedder": "hashing",
        "capacity": 3,
    }
    expected |= {"checkpoint": str(model), "project": "atommem", "run_name": "named"}
    assert {name: settings[name] for name in expected} == expected
    assert settings["atommem_version"]
    assert "git_commit" in settings
    updates = [values for values in told if "train/store_fill" in values]
    assert [values["train/global_step"] for values in updates] == [1, 2]
    assert all("train/actions/create" in values for values in updates)
    assert all(
        3 * values["train/store_fill"] == pytest.approx(values["train/store_size"])
        for values in updates
    )
    (table,) = (values["episodes"] for values in told if "episodes" in values)
    assert table.columns == list(COLUMNS)
    assert len(table.data) >= 2
    assert table.data[0][COLUMNS.index("task")].startswith("task-")


def test_a_resumed_run_goes_on_in_the_run_that_it_was(
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


def test_a_service_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atommem.train.logs.reporters.find_spec", lambda name: None)
    args = parse("grpo", [*MINIMUM, "--report_to", "none"])[0]
    args.report_to = ["trackio"]
    with pytest.raises(
        ConfigError, match=r"report_to=trackio: it is not installed\. pip install trackio"
    ):
        prepare_reporters(args)


def test_the_cold_start_tells_its_settings_and_no_commit_outside_of_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    args, *settings, _ = parse("sft", [*MINIMUM, "--chunk_tokens", "500"])
    args.facts = run_facts(settings, "some/model")
    expected = {
        "project": "atommem",
        "chunk_tokens": 500,
        "checkpoint": "some/model",
        "git_commit": None,
    }
    assert expected.items() <= args.to_dict().items()


def test_report_table_goes_out_with_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    weights, trackio = MagicMock(), MagicMock()
    monkeypatch.setitem(sys.modules, "wandb", weights)
    monkeypatch.setitem(sys.modules, "trackio", trackio)
    report_table("t", ("a", "b"), [("1", "c"), (None, "d")], ["mlflow", "trackio", "wandb"])
    for service, options in ((weights, {"commit": False}), (trackio, {})):
        service.log.assert_called_once_with({"t": service.Table.return_value}, **options)
        frame = service.Table.call_args.kwargs["dataframe"]
        assert frame.fillna("").to_dict("list") == {"a": ["1", ""], "b": ["c", "d"]}
