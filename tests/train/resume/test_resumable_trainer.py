"""How a run ends when something goes wrong, and that it then goes on as if nothing had."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainerCallback

from atommem.episode import Episode
from atommem.errors import BudgetSpentError, OutageError
from atommem.trace import read_trace
from atommem.train.loops.grpo_trainer import MemoryGRPOTrainer
from atommem.train.resume.checkpoint_files import PARTIAL, complete_checkpoints, last_checkpoint
from atommem.train.resume.faults import CheckpointError, DivergedError, RolloutFailedError, is_disk_full
from atommem.train.resume.interrupts import TrainingInterrupted
from atommem.train.watch.callbacks import METRICS_FILE, read_metrics
from tests.train.harness import make_config, make_trainer
from tests.train.loops.test_end_to_end import make_element_tokenizer, make_real_trainer
from tests.train.toys import make_model, mixed_episode, random_episode

SETTINGS: dict[str, Any] = {
    "max_steps": 4,
    "save_strategy": "steps",
    "save_steps": 100,
    "shuffle_dataset": True,
    "learning_rate": 1e-2,
}


def names(folder: Path) -> list[str]:
    return [path.name for path in complete_checkpoints(folder)]


class At(TrainerCallback):
    """Does something once, at an event of one update (from 1)."""

    def __init__(self, event: str, update: int, action: Callable[[], None]) -> None:
        def act(args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == update:
                action()

        setattr(self, event, act)


def terminate() -> None:
    signal.raise_signal(signal.SIGTERM)


def during_rollout(trainer: MemoryGRPOTrainer, update: int, action: Callable[[], None]) -> None:
    """Do something in the middle of the rollout of an update (from 1)."""
    run_all = trainer.backend.runner.run_all

    async def acting(jobs: Sequence[Any], *args: Any) -> list[Episode]:
        if trainer.state.global_step == update - 1:
            asyncio.get_running_loop().call_later(0.01, action)
        return await run_all(jobs, *args)

    trainer.backend.runner.run_all = acting  # type: ignore[method-assign]


def failing_rollout(trainer: MemoryGRPOTrainer, update: int, error: Exception) -> None:
    """The rollout of an update (from 1) raises an error."""
    run_all = trainer.backend.runner.run_all

    async def failing(jobs: Sequence[Any], *args: Any) -> list[Episode]:
        if trainer.state.global_step == update - 1:
            raise error
        return await run_all(jobs, *args)

    trainer.backend.runner.run_all = failing  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, list[dict[str, Any]]]:
    """Weights and metrics of the run that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole")
    trainer, _ = make_real_trainer(folder, **SETTINGS)
    trainer.train()
    trainer.close()
    return trainer.model.state_dict(), read_metrics(folder / METRICS_FILE)


def resume_and_compare(folder: Path, whole: tuple[Any, list[dict[str, Any]]]) -> None:
    """From other weights: everything has to come from the checkpoint."""
    trainer, _ = make_real_trainer(folder, make_model(9, len(make_element_tokenizer()), spread=0.1), **SETTINGS)
    last = last_checkpoint(folder)
    trainer.train(resume_from_checkpoint=None if last is None else str(last))
    trainer.close()
    for name, expected in whole[0].items():
        assert torch.equal(trainer.model.state_dict()[name], expected), name
    rewards = [
        [(entry["step"], entry["reward"]) for entry in metrics if "reward" in entry]
        for metrics in (read_metrics(folder / METRICS_FILE), whole[1])
    ]
    assert rewards[0] == rewards[1]
    assert len(rewards[0]) == 4


@pytest.mark.parametrize(
    "moment", ["rollout", *(pytest.param(m, marks=pytest.mark.slow) for m in ("on_pre_optimizer_step", "on_log"))]
)
def test_sigterm_saves_and_the_run_goes_on(tmp_path: Path, whole: Any, moment: str) -> None:
    """In the rollout of the third update, or in the second: either way the state after two updates is saved."""
    trainer, _ = make_real_trainer(tmp_path, **SETTINGS)
    if moment == "rollout":
        during_rollout(trainer, 3, terminate)
    else:
        # An update is counted before its log entry is made.
        trainer.add_callback(At(moment, 1 if moment == "on_pre_optimizer_step" else 2, terminate))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(TrainingInterrupted, match=r"stopped before update 3\..*--resume continues"):
        trainer.train()
    trainer.close()
    assert signal.getsignal(signal.SIGTERM) is before
    assert names(tmp_path) == ["checkpoint-2"]
    resume_and_compare(tmp_path, whole)


def test_a_run_that_has_ended_trains_no_more_when_it_is_resumed(tmp_path: Path) -> None:
    """A scheduler that starts the command again: in the middle of an epoch transformers would make one more update."""
    settings = {**SETTINGS, "save_steps": 2}
    weights = []
    for checkpoint in (None, str(tmp_path / "checkpoint-4")):
        trainer, _, runner = make_trainer(make_model(), make_config(tmp_path, **settings), mixed_episode, tasks=6)
        trainer.train(resume_from_checkpoint=checkpoint)
        weights.append({name: weight.clone() for name, weight in trainer.model.state_dict().items()})
        assert trainer.state.global_step == 4
        assert len(runner.jobs) == (32 if checkpoint is None else 0)
    assert all(torch.equal(weights[0][name], weight) for name, weight in weights[1].items())


def test_a_spent_budget_saves_as_a_stop_does_and_keeps_no_failed_step(tmp_path: Path, whole: Any) -> None:
    trainer, _ = make_real_trainer(tmp_path, **SETTINGS)
    failing_rollout(trainer, 3, BudgetSpentError("call_budget is spent: 7 calls are recorded. Give more."))
    with pytest.raises(BudgetSpentError, match=r"before update 3: call_budget is spent: 7 .*--resume continues"):
        trainer.train()
    trainer.close()
    assert names(tmp_path) == ["checkpoint-2"]
    assert not (tmp_path / "failed").exists()
    resume_and_compare(tmp_path, whole)


def test_before_the_first_update_there_is_nothing_to_save(tmp_path: Path) -> None:
    trainer, _ = make_real_trainer(tmp_path, **SETTINGS)
    during_rollout(trainer, 1, terminate)
    with pytest.raises(TrainingInterrupted, match=r"There is no checkpoint yet"):
        trainer.train()
    trainer.close()
    assert names(tmp_path) == []


@pytest.mark.parametrize("moment", ["rollout", "on_pre_optimizer_step"])
def test_where_nothing_is_saved_ctrl_c_ends_training_as_it_ends_anything(tmp_path: Path, moment: str) -> None:
    trainer, _ = make_real_trainer(tmp_path, **{**SETTINGS, "save_strategy": "no"})
    if moment == "rollout":
        during_rollout(trainer, 3, lambda: signal.raise_signal(signal.SIGINT))
    else:
        trainer.add_callback(At(moment, 1, lambda: signal.raise_signal(signal.SIGINT)))
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer.close()
    assert names(tmp_path) == []


def poisoned(trainer: MemoryGRPOTrainer, update: int, value: float) -> None:
    """From an update on, one gradient is `value`."""

    def poison(gradient: torch.Tensor) -> torch.Tensor:
        return gradient * value if trainer.state.global_step == update - 1 else gradient

    trainer.model.lm_head.weight.register_hook(poison)


@pytest.mark.parametrize("value", [float("nan"), pytest.param(float("inf"), marks=pytest.mark.slow)])
def test_a_gradient_that_is_no_number_never_reaches_the_parameters(tmp_path: Path, whole: Any, value: float) -> None:
    trainer, _ = make_real_trainer(tmp_path, **SETTINGS)
    poisoned(trainer, 3, value)
    with pytest.raises(DivergedError, match=r"gradient norm of update 3 is .*failed.step-3.*--resume"):
        trainer.train()
    trainer.close()
    assert names(tmp_path) == ["checkpoint-2"]
    episodes = [read_trace(path).episode for path in sorted((tmp_path / "failed/step-3/episodes").iterdir())]
    assert len(episodes) == 8
    assert all(step.prompt_ids and step.logprobs for episode in episodes for step in episode.steps)
    assert (tmp_path / "failed/step-3/rng_state_0.pth").is_file()
    resume_and_compare(tmp_path, whole)


def mostly_failed(task_id: str, sample: int) -> Episode:
    """Three of four episodes fail, of the first task all."""
    episode = random_episode(task_id, sample, None if sample < 3 or task_id == "t0" else 1.0)
    episode.error = "no server answers" if episode.reward is None else None
    return episode


def test_too_many_failed_episodes_end_the_run(tmp_path: Path) -> None:
    config = make_config(tmp_path, max_steps=2, save_strategy="steps", save_steps=100)
    trainer, _, runner = make_trainer(make_model(), config, mixed_episode)
    trainer.add_callback(At("on_step_end", 1, lambda: setattr(runner, "write", mostly_failed)))
    with pytest.raises(RolloutFailedError, match=r"6 of 8 episodes of update 2 failed.*0\.5: no server answers"):
        trainer.train()
    assert names(tmp_path) == ["checkpoint-1"]
    assert len(list((tmp_path / "failed/step-2/episodes").iterdir())) == 8


def test_nothing_to_sample_from_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(tmp_path, max_steps=2, save_strategy="steps", save_steps=100)
    trainer, _, _ = make_trainer(make_model(), config, mixed_episode)

    def gone(trainer: Any) -> None:
        if trainer.state.global_step == 1:
            raise OutageError("http://localhost:1 does not answer")

    monkeypatch.setattr(trainer.backend, "publish", gone)
    with pytest.raises(RolloutFailedError, match=r"update 2 cannot be sampled: http://localhost:1 does not answer\."):
        trainer.train()
    assert names(tmp_path) == ["checkpoint-1"]


def test_an_engine_that_dies_in_a_rollout_ends_the_run(tmp_path: Path, whole: Any) -> None:
    trainer, _ = make_real_trainer(tmp_path, **SETTINGS)
    failing_rollout(trainer, 3, RuntimeError("EngineCore died"))
    with pytest.raises(RolloutFailedError, match=r"update 3 cannot be sampled: RuntimeError\('EngineCore died'\)"):
        trainer.train()
    trainer.close()
    assert "in failing" in (tmp_path / "failed/step-3/report.json").read_text(), "where it happened"
    resume_and_compare(tmp_path, whole)


def test_an_engine_that_does_not_wake_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(tmp_path, max_steps=2, save_strategy="steps", save_steps=100)
    trainer, _, _ = make_trainer(make_model(), config, mixed_episode)
    awake = trainer.backend.rollout

    def out_of_memory(of: Any) -> Any:
        if of.state.global_step == 1:
            raise RuntimeError("out of memory")
        return awake(of)

    monkeypatch.setattr(trainer.backend, "rollout", out_of_memory)
    with pytest.raises(RolloutFailedError, match=r"update 2 cannot be sampled: RuntimeError\('out of memory'\)"):
        trainer.train()
    assert names(tmp_path) == ["checkpoint-1"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), r"the disk is full.*MB are free for .*: make room there"),
        pytest.param(RuntimeError("this cannot be pickled"), "this cannot be pickled", marks=pytest.mark.slow),
    ],
)
def test_a_full_disk_leaves_the_last_good_checkpoint(
    tmp_path: Path, whole: Any, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    """The second checkpoint gets its weights written, but not its optimizer."""
    trainer, _ = make_real_trainer(tmp_path, **{**SETTINGS, "save_steps": 2, "save_total_limit": 1})
    save = Trainer._save_optimizer_and_scheduler

    def full(self: Any, folder: str) -> None:
        if self.state.global_step == 4:
            assert (Path(folder) / "model.safetensors").is_file()
            raise error
        save(self, folder)

    monkeypatch.setattr(Trainer, "_save_optimizer_and_scheduler", full)
    with pytest.raises(CheckpointError, match=rf"of update 4 could not be written: {reason}.*checkpoint-2.*--resume"):
        trainer.train()
    trainer.close()
    monkeypatch.undo()
    assert names(tmp_path) == ["checkpoint-2"]
    assert not (tmp_path / PARTIAL).exists()
    assert not (tmp_path / "checkpoint-4").exists()
    resume_and_compare(tmp_path, whole)


def test_torchs_word_for_a_full_disk_is_known(tmp_path: Path) -> None:
    """With a limit on the size of files, which its writer meets as it meets a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(RuntimeError) as raised:
            torch.save(torch.zeros(10_000), tmp_path / "optimizer.pt")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert is_disk_full(raised.value), raised.value


def test_a_full_disk_while_logging_names_the_data(tmp_path: Path) -> None:
    trainer, _ = make_real_trainer(tmp_path, **SETTINGS)

    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    trainer.add_callback(At("on_log", 2, full))
    with pytest.raises(Exception, match=r"the disk is full.*failed/step-3"):
        trainer.train()
    trainer.close()
