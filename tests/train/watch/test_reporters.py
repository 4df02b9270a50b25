"""What a run tells wandb, read back from the files that it writes; of the texts for TensorBoard a double takes note."""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atommem.envs.task_files import save_tasks
from atommem.errors import ConfigError
from atommem.train.train_cli import main, parse_grpo, parse_sft
from atommem.train.watch.reporters import prepare_reporters, report_table, run_facts
from atommem.train.watch.sample_episodes import COLUMNS
from tests.train.loops.test_end_to_end import make_tasks, save_model

MINIMUM = ["--model_name_or_path", "some/model", "--data", "tasks.parquet", "--use_cpu"]
_SET = (*(f"WANDB_{name}" for name in ("MODE", "DIR", "PROJECT", "RUN_ID", "RESUME")), "TENSORBOARD_LOGGING_DIR")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _SET:  # set and deleted, so that what a run sets is taken back
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_SILENT", "true")


def test_what_wandb_is_told(tmp_path: Path) -> None:
    """Project and run, all settings with version and commit, rates and fill at every update, episodes as a table."""
    import wandb

    model, data, out = save_model(tmp_path), tmp_path / "tasks.jsonl", tmp_path / "out"
    save_tasks(make_tasks(), data)
    config = tmp_path / "config.yaml"
    config.write_text("report_to: [wandb]\nsave_strategy: 'no'\nmax_steps: 2\nrun_name: named\n")
    flags = ["--data", str(data), "--output_dir", str(out), "--config", str(config), "--capacity", "3", "--use_cpu"]
    flags += ["--per_device_train_batch_size", "12", "--num_generations", "6"]
    try:
        assert main(["--model_name_or_path", str(model), *flags]) == 0
    finally:
        wandb.finish()
        wandb.teardown()  # ends its own process, which may be writing yet
    settings: dict[str, Any] = {}
    charts: dict[str, list[float]] = {}
    (file,) = out.glob("wandb/offline-run-*/*.wandb")
    for record in _wandb_records(file):
        if record.HasField("run"):
            assert (record.run.project, record.run.display_name) == ("atommem", "named")
        settings |= {item.key: json.loads(item.value_json) for item in record.config.update}
        for item in record.history.item:
            charts.setdefault(item.nested_key[0], []).append(json.loads(item.value_json))
    told = {"dialect": "paper", "chunk_tokens": 4000, "retrieve_k": 2, "embedder": "hashing", "capacity": 3}
    told |= {"checkpoint": str(model), "project": "atommem", "run_name": "named"}
    assert {name: settings[name] for name in told} == told
    assert settings["atommem_version"]
    assert "git_commit" in settings
    assert [len(charts[f"train/{name}"]) for name in ("actions/create", "store_size", "store_fill")] == [2, 2, 2]
    assert [fill * 3 for fill in charts["train/store_fill"]] == pytest.approx(charts["train/store_size"])
    (table,) = (json.loads(path.read_text()) for path in file.parent.glob("files/media/table/episodes_*.json"))
    assert table["columns"] == list(COLUMNS)
    assert len(table["data"]) >= 2
    assert table["data"][0][COLUMNS.index("task")].startswith("task-")


def _wandb_records(path: Path) -> Iterator[Any]:
    """LevelDB's log format behind seven bytes: blocks of 32 KiB; a record is whole (1), or from its first part (2) to
    its last (4)."""
    from wandb.proto import wandb_internal_pb2

    data, place, whole = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, place)
        whole += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


def test_a_resumed_run_goes_on_in_the_run_that_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atommem.train.watch.reporters.find_spec", lambda name: name)

    def named(*flags: str) -> tuple[str, str]:
        for name in _SET:
            monkeypatch.delenv(name, raising=False)
        args = parse_grpo([*MINIMUM, "--report_to", "wandb", "--output_dir", str(tmp_path / "hotpot"), *flags])[0]
        args.report_to.append("tensorboard")
        prepare_reporters(args)
        assert (os.environ["WANDB_RESUME"], os.environ["WANDB_PROJECT"]) == ("allow", args.project)
        assert os.environ["TENSORBOARD_LOGGING_DIR"] == str(tmp_path / "hotpot" / "runs" / args.run_name)
        return os.environ["WANDB_RUN_ID"], str(args.run_name)

    first = named()
    assert first[1] == f"hotpot-{first[0]}"
    assert named("--resume_from_checkpoint", "auto") == first
    assert named("--project", "other") != first
    assert named("--run_name", "mine")[1] == "mine"


def test_a_service_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atommem.train.watch.reporters.find_spec", lambda name: None)
    args = parse_grpo([*MINIMUM, "--report_to", "none"])[0]
    args.report_to = ["trackio"]
    with pytest.raises(ConfigError, match="report_to names trackio, which is not installed: pip install trackio"):
        prepare_reporters(args)


def test_the_cold_start_tells_its_settings_and_no_commit_outside_of_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    args, *settings, _ = parse_sft([*MINIMUM, "--chunk_tokens", "500"])
    args.facts = run_facts(settings, "some/model")
    expected = {"project": "atommem", "chunk_tokens": 500, "checkpoint": "some/model", "git_commit": None}
    assert expected.items() <= args.to_dict().items()


def test_a_text_is_one_cell_of_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorBoard's is Markdown; wandb and trackio take a frame, wandb with the update's own entry."""
    written: list[Any] = []

    class Writer:
        def __init__(self, folder: str) -> None:
            written.append(folder)

        def add_text(self, *texts: Any) -> None:
            written.append(texts)

        def __enter__(self) -> Writer:
            return self

        def __exit__(self, *raised: object) -> None:
            written.append("closed")

    def log(values: dict[str, Any], **options: Any) -> None:
        written.append((values["t"].fillna("").to_dict("list"), options))

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer))  # type: ignore[arg-type]
    for name in ("wandb", "trackio"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(Table=lambda dataframe: dataframe, log=log))  # type: ignore[arg-type]
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "runs")
    rows = [("1", "<img src=x>|\n`*c*`"), (None, "d")]
    report_table("t", ("a", "b"), rows, 3, ["tensorboard", "mlflow", "trackio", "wandb"])
    cell = "&lt;img src=x&gt;&#124;<br>&#96;&#42;c&#42;&#96;"
    text = f"| a | b |\n| --- | --- |\n| 1 | {cell} |\n|  | d |"
    frame = {"a": ["1", ""], "b": [rows[0][1], "d"]}
    assert written == [os.path.join("runs", "t"), ("t", text, 3), "closed", (frame, {"commit": False}), (frame, {})]
