"""Reading what was kept of a failed update."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atommem.errors import DataError
from atommem.train.loops.replay import RecordedRunner, read_failed
from atommem.train.resume.faults import FailedStep, recorded_command
from tests.train.toys import ToyTask, mixed_episode


def test_the_command_keeps_what_its_file_said(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("beta: 0.5\n")
    arguments = ["--data", "x", "--config", str(file), "--seed", "1"]
    assert recorded_command(arguments) == {"arguments": ["--data", "x", "--seed", "1"], "config": {"beta": 0.5}}
    assert recorded_command(["--seed", "1"]) == {"arguments": ["--seed", "1"], "config": None}


def save(folder: Path) -> Path:
    step = FailedStep(recorded_command(["--data", "x"]))
    step(4, [mixed_episode("t0", 0)])
    step(5, [mixed_episode("t1", 0)])
    step(5, [mixed_episode("t1", 1)])
    saved = step.save(folder, 5, ValueError("why"), checkpoint=None, rng=None, rank=0, world_size=1)
    assert saved == folder / "failed" / "step-6"
    return saved


async def test_the_episodes_of_the_update_come_back_as_they_were(tmp_path: Path) -> None:
    run = read_failed(save(tmp_path))
    assert (run.update, run.error, run.checkpoint, run.arguments) == (5, "ValueError: why", None, ["--data", "x"])
    expected = [mixed_episode("t1", 1), mixed_episode("t1", 0)]
    episodes = await RecordedRunner(run.episodes, None).run_all([(ToyTask("t1"), 1), (ToyTask("t1"), 0)])
    assert episodes == expected
    with pytest.raises(DataError, match=r"\('t0', 0\) was not recorded"):
        await RecordedRunner(run.episodes, None).run_all([(ToyTask("t0"), 0)])


def test_what_cannot_be_replayed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"report\.json cannot be read"):
        read_failed(tmp_path)
    saved = FailedStep(recorded_command([])).save(
        tmp_path, 0, ValueError("why"), checkpoint=None, rng=None, rank=0, world_size=1
    )
    assert saved is not None
    with pytest.raises(DataError, match="holds no episodes"):
        read_failed(saved)


def test_where_nothing_can_be_written_the_temporary_folder_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "elsewhere"))
    blocked = tmp_path / "run"
    blocked.write_text("a file where the folder would be")
    step = FailedStep()
    step(0, [mixed_episode("t1", 0)])
    saved = step.save(blocked, 0, ValueError("why"), checkpoint=None, rng=None, rank=0, world_size=1)
    assert saved == tmp_path / "elsewhere" / "atommem-run" / "failed" / "step-1"
    assert json.loads((saved / "report.json").read_text())["error"] == "ValueError: why"
