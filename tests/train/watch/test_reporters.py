"""What a run tells wandb, trackio and TensorBoard, read back from the files that they write.

wandb is installed with the package's own extras; the other two are tested where they are installed.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from atommem.config import save_config
from atommem.envs.task_files import save_tasks
from atommem.errors import ConfigError
from atommem.train.train_cli import main, parse_grpo, parse_sft
from atommem.train.watch.reporters import TABLES, prepare_reporters, report_table, run_facts
from atommem.train.watch.sample_episodes import COLUMNS
from tests.train.loops.test_end_to_end import SETTINGS, make_element_tokenizer, make_tasks
from tests.train.toys import make_model

MINIMUM = ["--model_name_or_path", "some/model", "--data", "tasks.parquet", "--use_cpu"]
_SET = (*(f"WANDB_{name}" for name in ("MODE", "DIR", "PROJECT", "RUN_ID", "RESUME")), "TENSORBOARD_LOGGING_DIR")
TOLD = {"dialect": "paper", "chunk_tokens": 4000, "retrieve_k": 2, "embedder": "hashing", "capacity": 3}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in _SET:  # set and deleted, so that what a run sets is taken back
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_SILENT", "true")
    if find_spec("trackio"):
        for module in [one for name, one in sys.modules.items() if name.split(".")[0] == "trackio"]:
            if hasattr(module, "TRACKIO_DIR"):  # read from the environment when it is imported
                monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio")


def test_what_every_service_is_told(tmp_path: Path) -> None:
    """Project and run, all settings with version and commit, rates and fill at every update, episodes as a table."""
    import wandb

    services = [name for name in TABLES if find_spec(name)]
    tokenizer = make_element_tokenizer()
    model, data, out = tmp_path / "model", tmp_path / "tasks.jsonl", tmp_path / "out"
    make_model(vocabulary=len(tokenizer), spread=0.1).save_pretrained(model)
    tokenizer.save_pretrained(model)
    save_config(model, *SETTINGS)
    save_tasks(make_tasks(), data)
    config = tmp_path / "config.yaml"
    config.write_text(f"report_to: [{', '.join(services)}]\nsave_strategy: 'no'\nmax_steps: 2\nrun_name: named\n")
    flags = ["--data", str(data), "--output_dir", str(out), "--config", str(config), "--capacity", "3", "--use_cpu"]
    flags += ["--per_device_train_batch_size", "12", "--num_generations", "6"]
    try:
        assert main(["--model_name_or_path", str(model), *flags]) == 0
    finally:
        wandb.finish()
        wandb.teardown()  # ends its own process, which may be writing yet
    wanted = {**TOLD, "checkpoint": str(model), "project": "atommem", "run_name": "named"}
    for service in services:
        settings, charts, table = _READERS[service](out)
        assert {name: settings[name] for name in wanted} == wanted, service
        assert settings["atommem_version"]
        assert "git_commit" in settings
        for name in ("train/actions/create", "train/store_size", "train/store_fill"):
            assert len(charts[name]) == 2, (service, name)
        assert [fill * 3 for fill in charts["train/store_fill"]] == pytest.approx(charts["train/store_size"]), service
        assert list(table[0]) == list(COLUMNS), service
        assert len(table) >= 2
        assert str(table[0]["task"]).startswith("task-")


def _wandb(out: Path) -> tuple[dict[str, Any], dict[str, list[float]], list[dict[str, Any]]]:
    settings: dict[str, Any] = {}
    charts: dict[str, list[float]] = {}
    (file,) = out.glob("wandb/offline-run-*/*.wandb")
    for record in _wandb_records(file):
        if record.HasField("run"):
            assert (record.run.project, record.run.display_name) == ("atommem", "named")
        settings |= {item.key: json.loads(item.value_json) for item in record.config.update}
        for item in record.history.item:
            charts.setdefault(item.nested_key[0], []).append(json.loads(item.value_json))
    (table,) = file.parent.glob("files/media/table/episodes_*.json")
    written = json.loads(table.read_text())
    return settings, charts, [dict(zip(written["columns"], row, strict=True)) for row in written["data"]]


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


def _tensorboard(out: Path) -> tuple[dict[str, Any], dict[str, list[float]], list[dict[str, Any]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run, episodes = (EventAccumulator(str(out / "runs" / name)) for name in ("named", "named/episodes"))
    run.Reload()
    episodes.Reload()
    settings, table = (
        one.Tensors(f"{name}/text_summary")[0].tensor_proto.string_val[0].decode()
        for one, name in ((run, "args"), (episodes, "episodes"))
    )
    charts = {name: [event.value for event in run.Scalars(name)] for name in run.Tags()["scalars"]}
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    return json.loads(settings), charts, [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]


def _trackio(out: Path) -> tuple[dict[str, Any], dict[str, list[float]], list[dict[str, Any]]]:
    from trackio.sqlite_storage import SQLiteStorage

    logs = SQLiteStorage.get_logs("atommem", "named")
    charts: dict[str, list[float]] = {}
    for entry in logs:
        for name, value in entry.items():
            charts.setdefault(name, []).append(value)
    (table,) = [entry["episodes"]["_value"] for entry in logs if "episodes" in entry]
    return SQLiteStorage.get_run_config("atommem", "named"), charts, table


_READERS = {"wandb": _wandb, "tensorboard": _tensorboard, "trackio": _trackio}


def test_a_resumed_run_goes_on_in_the_run_that_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def named(*flags: str) -> tuple[str, str]:
        for name in _SET:
            monkeypatch.delenv(name, raising=False)
        args = parse_grpo([*MINIMUM, "--report_to", "wandb", "--output_dir", str(tmp_path / "hotpot"), *flags])[0]
        prepare_reporters(args)
        assert (os.environ["WANDB_RESUME"], os.environ["WANDB_PROJECT"]) == ("allow", args.project)
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


def test_the_cold_start_tells_its_settings_too() -> None:
    args, *settings, _ = parse_sft([*MINIMUM, "--chunk_tokens", "500"])
    args.facts = run_facts(settings, "some/model")
    told = args.to_dict()
    assert (told["project"], told["chunk_tokens"], told["checkpoint"]) == ("atommem", 500, "some/model")


def test_no_commit_outside_of_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_facts([], "x")["git_commit"] is None


def test_a_text_is_one_cell_of_tensorboards_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path))
    report_table("t", ("a", "b"), [(1, "<img src=x>|\n`*c*`"), (None, "d")], 3, ["tensorboard"])
    events = EventAccumulator(str(tmp_path / "t"))
    events.Reload()
    (event,) = events.Tensors("t/text_summary")
    cell = "&lt;img src=x&gt;&#124;<br>&#96;&#42;c&#42;&#96;"
    assert event.step == 3
    assert event.tensor_proto.string_val[0].decode() == f"| a | b |\n| --- | --- |\n| 1 | {cell} |\n|  | d |"
