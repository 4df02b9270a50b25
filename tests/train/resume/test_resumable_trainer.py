"""How a run ends when something goes wrong, and that it then goes on as if nothing had."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer

from atommem.episode import Episode
from atommem.errors import BudgetSpentError, OutageError
from atommem.trace import read_trace
from atommem.train.loops.grpo_trainer import MemoryGRPOTrainer
from atommem.train.resume.checkpoint_files import PARTIAL, complete_checkpoints, last_checkpoint
from atommem.train.resume.faults import (
    CheckpointError,
    DivergedError,
    RolloutFailedError,
    TrainingFault,
    is_disk_full,
)
from atommem.train.resume.interrupts import TrainingInterrupted
from atommem.train.watch.callbacks import METRICS_FILE, read_metrics
from tests.train.harness import at, make_config, make_trainer, terminate
from tests.train.loops.test_end_to_end import make_element_tokenizer, make_real_trainer
from tests.train.toys import make_model, mixed_episode, random_episode

SETTINGS: dict[str, Any] = {
    "max_steps": 3,
    "save_strategy": "steps",
    "save_steps": 100,
    "shuffle_dataset": True,
    "learning_rate": 1e-2,
}
DISK_FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def names(folder: Path) -> list[str]:
    return [path.name for path in complete_checkpoints(folder)]


def during_rollout(trainer: MemoryGRPOTrainer, update: int, action: Callable[[], None]) -> None:
    """Do something in the middle of the rollout of an update (from 1)."""
    run_all = trainer.backend.runner.run_all

    async def acting(*arguments: Any) -> list[Episode]:
        if trainer.state.global_step == update - 1:
            asyncio.get_running_loop().call_later(0.01, action)
        return await run_all(*arguments)

    trainer.backend.runner.run_all = acting  # type: ignore[method-assign]


def breaking(path: str, error: Exception) -> Callable[[MemoryGRPOTrainer], None]:
    """The method of the trainer's parts that `path` names raises the error in the third update."""

    def arrange(trainer: MemoryGRPOTrainer) -> None:
        owner, _, name = path.rpartition(".")
        whole = attrgetter(path)(trainer)

        def broken(*arguments: Any) -> Any:
            if trainer.state.global_step == 2:
                raise error
            return whole(*arguments)

        setattr(attrgetter(owner)(trainer), name, broken)

    return arrange


def diverging(value: float) -> Callable[[MemoryGRPOTrainer], None]:
    """One gradient of the third update is multiplied by `value`."""
    return lambda trainer: trainer.model.lm_head.weight.register_hook(
        lambda gradient: gradient * value if trainer.state.global_step == 2 else gradient
    )


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
    trainer, _ = make_real_trainer(
        folder, make_model(9, len(make_element_tokenizer()), spread=0.1), **SETTINGS
    )
    trainer.train(resume_from_checkpoint=str(last_checkpoint(folder)))
    trainer.close()
    for name, expected in whole[0].items():
        assert torch.equal(trainer.model.state_dict()[name], expected), name
    ours, expected = (
        [(entry["step"], entry["reward"]) for entry in metrics if "reward" in entry]
        for metrics in (read_metrics(folder / METRICS_FILE), whole[1])
    )
    assert ours == expected
    assert len(ours) == 3


STOPPED = (TrainingInterrupted, r"stopped before update 3\..*--resume continues")
DIVERGED = (DivergedError, r"gradient norm of update 3 is .*failed.step-3.*--resume")
UNSAMPLED = (RolloutFailedError, r"update 3 cannot be sampled: .*it is gone")
SPENT = BudgetSpentError("call_budget is spent: 7 calls are recorded. Give more.")
ENDINGS: dict[str, tuple[Callable[[MemoryGRPOTrainer], Any], type[Exception], str]] = {
    "SIGTERM in a rollout": (lambda trainer: during_rollout(trainer, 3, terminate), *STOPPED),
    # An update is counted before its log entry is made: either way the state after two updates is saved.
    "SIGTERM in an update": (
        lambda trainer: trainer.add_callback(at("on_pre_optimizer_step", 1, terminate)),
        *STOPPED,
    ),
    "SIGTERM after an update": (
        lambda trainer: trainer.add_callback(at("on_log", 2, terminate)),
        *STOPPED,
    ),
    "spent budget": (
        *(breaking("backend.runner.run_all", SPENT), BudgetSpentError),
        r"before update 3: call_budget is spent: 7 .*--resume continues",
    ),
    "NaN": (diverging(float("nan")), *DIVERGED),
    "infinite gradient": (diverging(float("inf")), *DIVERGED),
    "engine that dies": (
        breaking("backend.runner.run_all", RuntimeError("it is gone")),
        *UNSAMPLED,
    ),
    "engine that does not wake": (
        breaking("backend.rollout", RuntimeError("it is gone")),
        *UNSAMPLED,
    ),
    "no server": (breaking("backend.publish", OutageError("it is gone")), *UNSAMPLED),
}
SLOW = {"SIGTERM in an update", "SIGTERM after an update", "infinite gradient"}


@pytest.mark.parametrize(
    "ending", [pytest.param(e, marks=pytest.mark.slow if e in SLOW else ()) for e in ENDINGS]
)
def test_what_ends_a_run_leaves_the_state_before_it(
    tmp_path: Path, whole: Any, ending: str
) -> None:
    """All of them in the third update: saved is the second, and the run goes on from it bit for bit."""
    arrange, error, message = ENDINGS[ending]
    trainer, _ = make_real_trainer(tmp_path, **SETTINGS)
    arrange(trainer)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(error, match=message):
        trainer.train()
    trainer.close()
    assert signal.getsignal(signal.SIGTERM) is before
    assert names(tmp_path) == ["checkpoint-2"]
    # What is no fault leaves no failed step.
    assert (tmp_path / "failed" / "step-3").exists() == (
        error in (DivergedError, RolloutFailedError)
    )
    if error is DivergedError:
        episodes = [
            read_trace(path).episode for path in (tmp_path / "failed/step-3/episodes").iterdir()
        ]
        assert len(episodes) == 8
        assert all(
            step.prompt_ids and step.logprobs for episode in episodes for step in episode.steps
        )
        assert (tmp_path / "failed/step-3/rng_state_0.pth").is_file()
    if "dies" in ending:
        assert "in broken" in (tmp_path / "failed/step-3/report.json").read_text(), (
            "where it happened"
        )
    resume_and_compare(tmp_path, whole)


def test_a_run_that_has_ended_trains_no_more_when_it_is_resumed(tmp_path: Path) -> None:
    """A scheduler that starts the command again: in the middle of an epoch transformers would make one more update."""
    config = make_config(tmp_path, **{**SETTINGS, "max_steps": 2, "save_steps": 2})
    weights = []
    for checkpoint, sampled in ((None, 16), (str(tmp_path / "checkpoint-2"), 0)):
        trainer, _, runner = make_trainer(make_model(), config, mixed_episode, tasks=6)
        trainer.train(resume_from_checkpoint=checkpoint)
        weights.append(trainer.model.state_dict())
        assert (trainer.state.global_step, len(runner.jobs)) == (2, sampled)
    assert all(torch.equal(weights[0][name], weight) for name, weight in weights[1].items())


@pytest.mark.parametrize(
    ("update", "number", "save_strategy", "ending"),
    [
        (1, signal.SIGTERM, "steps", TrainingInterrupted),
        (3, signal.SIGINT, "no", KeyboardInterrupt),
    ],
    ids=["nothing to save yet", "nothing is to be saved: Ctrl-C ends training as it ends anything"],
)
def test_a_stop_without_a_checkpoint(
    tmp_path: Path, update: int, number: int, save_strategy: str, ending: type[BaseException]
) -> None:
    trainer, _ = make_real_trainer(tmp_path, **{**SETTINGS, "save_strategy": save_strategy})
    during_rollout(trainer, update, lambda: signal.raise_signal(number))
    with pytest.raises(
        ending, match="There is no checkpoint yet" if ending is TrainingInterrupted else None
    ):
        trainer.train()
    trainer.close()
    assert names(tmp_path) == []


def mostly_failed(task_id: str, sample: int) -> Episode:
    """Three of four episodes fail, of the first task all."""
    episode = random_episode(task_id, sample, None if sample < 3 or task_id == "t0" else 1.0)
    episode.error = "no server answers" if episode.reward is None else None
    return episode


def test_too_many_failed_episodes_end_the_run(tmp_path: Path) -> None:
    config = make_config(tmp_path, max_steps=2, save_strategy="steps", save_steps=100)
    trainer, _, runner = make_trainer(make_model(), config, mixed_episode)
    trainer.add_callback(at("on_step_end", 1, lambda: setattr(runner, "write", mostly_failed)))
    with pytest.raises(
        RolloutFailedError, match=r"6 of 8 episodes of update 2 failed.*0\.5: no server answers"
    ):
        trainer.train()
    assert names(tmp_path) == ["checkpoint-1"]
    assert len(list((tmp_path / "failed/step-2/episodes").iterdir())) == 8


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (DISK_FULL, r"the disk is full.*MB are free for .*: make room there"),
        pytest.param(
            RuntimeError("this cannot be pickled"), "this cannot be pickled", marks=pytest.mark.slow
        ),
    ],
)
def test_a_full_disk_leaves_the_last_good_checkpoint(
    tmp_path: Path, whole: Any, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    """The third checkpoint gets its weights written, but not its optimizer."""
    trainer, _ = make_real_trainer(tmp_path, **{**SETTINGS, "save_steps": 1, "save_total_limit": 1})
    save = Trainer._save_optimizer_and_scheduler

    def full(self: Any, folder: str) -> None:
        if self.state.global_step == 3:
            assert (Path(folder) / "model.safetensors").is_file()
            raise error
        save(self, folder)

    monkeypatch.setattr(Trainer, "_save_optimizer_and_scheduler", full)
    with pytest.raises(
        CheckpointError,
        match=rf"of update 3 could not be written: {reason}.*checkpoint-2.*--resume",
    ):
        trainer.train()
    trainer.close()
    monkeypatch.undo()
    assert names(tmp_path) == ["checkpoint-2"]
    assert not (tmp_path / PARTIAL).exists()
    assert not (tmp_path / "checkpoint-3").exists()
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
    def full() -> None:
        raise DISK_FULL

    trainer, _, _ = make_trainer(make_model(), make_config(tmp_path, **SETTINGS), mixed_episode)
    trainer.add_callback(at("on_log", 2, full))
    with pytest.raises(TrainingFault, match=r"the disk is full.*failed/step-3"):
        trainer.train()
