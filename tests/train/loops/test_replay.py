"""Reading what was kept of a failed update."""

from __future__ import annotations

import json
from dataclasses import replace as changed
from pathlib import Path

import pytest

from atommem.config import MemoryConfig
from atommem.envs.task_files import save_tasks
from atommem.errors import ConfigError, DataError
from atommem.train.loops.replay import FailedRun, RecordedRunner, read_failed, replay
from atommem.train.resume.faults import FailedStep, recorded_command
from tests.train.loops.test_end_to_end import make_tasks, save_model
from tests.train.toys import ToyTask, mixed_episode, random_episode


def test_the_command_keeps_what_its_file_said(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("beta: 0.5\n")
    arguments = ["--data", "x", "--config", str(file), "--seed", "1"]
    assert recorded_command(arguments) == {
        "arguments": ["--data", "x", "--seed", "1"],
        "config": {"beta": 0.5},
    }
    assert recorded_command(["--seed", "1"]) == {"arguments": ["--seed", "1"], "config": None}


def save(step: FailedStep, folder: Path, update: int = 0) -> Path:
    saved = step.save(
        folder, update, ValueError("why"), checkpoint=None, rng=None, rank=0, world_size=1
    )
    assert saved is not None
    return saved


async def test_the_episodes_of_the_update_come_back_as_they_were(tmp_path: Path) -> None:
    step = FailedStep(recorded_command(["--data", "x"]))
    step(4, [mixed_episode("t0", 0)])
    step(5, [mixed_episode("t1", 0)])
    step(5, [mixed_episode("t1", 1)])
    saved = save(step, tmp_path, 5)
    assert saved == tmp_path / "failed" / "step-6"
    run = read_failed(saved)
    assert (run.update, run.error, run.checkpoint, run.arguments) == (
        5,
        "ValueError: why",
        None,
        ["--data", "x"],
    )
    expected = [mixed_episode("t1", 1), mixed_episode("t1", 0)]
    runner = RecordedRunner(run.episodes, None, MemoryConfig())
    assert await runner.run_all([(ToyTask("t1"), 1), (ToyTask("t1"), 0)]) == expected
    with pytest.raises(DataError, match=r"\('t0', 0\) was not recorded"):
        await runner.run_all([(ToyTask("t0"), 0)])


def test_what_cannot_be_replayed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"report\.json cannot be read"):
        read_failed(tmp_path)
    with pytest.raises(DataError, match="holds no episodes"):
        read_failed(save(FailedStep(recorded_command([])), tmp_path))


def test_where_nothing_can_be_written_the_temporary_folder_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "elsewhere"))
    (tmp_path / "run").write_text("a file where the folder would be")
    step = FailedStep()
    step(0, [mixed_episode("t1", 0)])
    saved = save(step, tmp_path / "run")
    assert saved == tmp_path / "elsewhere" / "atommem-run" / "failed" / "step-1"
    assert json.loads((saved / "report.json").read_text())["error"] == "ValueError: why"


def test_what_vllm_sampled_is_corrected_as_it_was(tmp_path: Path) -> None:
    """The recorded log-probabilities are far below the model's: every ratio is truncated to the bound."""
    tasks = make_tasks()[:2]
    save_tasks(tasks, tmp_path / "tasks.jsonl")
    arguments = f"""--model_name_or_path {save_model(tmp_path)} --data {tmp_path / "tasks.jsonl"} --use_cpu
        --max_steps 1 --per_device_train_batch_size 4 --num_generations 2 --disable_tqdm true --max_grad_norm 0
        --use_vllm true --vllm_importance_sampling_mode token_truncate
        --vllm_importance_sampling_clip_max 2.0""".split()
    episodes = {
        (t.id, sample): random_episode(t.id, sample, float(sample))
        for t in tasks
        for sample in (0, 1)
    }
    for step in (step for episode in episodes.values() for step in episode.steps):
        step.prompt_ids, step.token_ids = (
            [token % 10 for token in ids] for ids in (step.prompt_ids, step.token_ids)
        )
        step.logprobs = [-50.0] * len(step.token_ids)
    run = FailedRun(0, "why", None, arguments, None, episodes)
    uncorrected = replay(run, ["--vllm_importance_sampling_correction", "false"])["grad_norm"]
    assert replay(run)["grad_norm"] == pytest.approx(2 * uncorrected, rel=1e-4)
    with pytest.raises(
        ConfigError, match="carried_groups 1: the update trained on groups that the one before it"
    ):
        replay(changed(run, arguments=[*arguments, "--carried_groups", "1"]))
