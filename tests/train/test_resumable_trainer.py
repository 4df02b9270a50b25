"""How a run ends when something goes wrong, and that it resumes bit for bit."""

from __future__ import annotations

import signal
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer

from atommem.config import CONFIG_FILE
from atommem.episode import Episode
from atommem.errors import BudgetSpentError, OutageError
from atommem.train.checkpoints import PARTIAL, last_checkpoint, list_checkpoints
from atommem.train.console import METRICS_FILE, read_metrics
from atommem.train.errors import (
    CheckpointError,
    DivergedError,
    RolloutFailedError,
    TrainingInterrupted,
)
from atommem.train.loops.grpo_trainer import MemoryGRPOTrainer
from tests.train.harness import (
    at,
    make_config,
    make_element_tokenizer,
    make_real_trainer,
    make_trainer,
    terminate,
)
from tests.train.toys import make_model, mixed_episode, random_episode

SETTINGS: dict[str, Any] = {
    "max_steps": 3,
    "save_strategy": "steps",
    "save_steps": 100,
    "shuffle_dataset": True,
    "learning_rate": 1e-2,
}


def names(folder: Path) -> list[str]:
    return [path.name for path in list_checkpoints(folder)]


def during_rollout(trainer: MemoryGRPOTrainer, update: int, action: Callable[[], None]) -> None:
    """Run `action` in the middle of the rollout of an update (from 1)."""
    backend = trainer.backend
    rollout = backend.rollout

    def acting(_: Any) -> Any:
        if trainer.state.global_step == update - 1:
            trainer._loop.get_loop().call_later(0.01, action)
        return rollout(trainer)

    backend.rollout = acting  # type: ignore[method-assign]


def breaking(path: str, error: Exception) -> Callable[[MemoryGRPOTrainer], None]:
    """Make the method `path` of the trainer raise `error` in the third update."""

    def arrange(trainer: MemoryGRPOTrainer) -> None:
        owner, _, name = path.rpartition(".")
        whole = attrgetter(path)(trainer)

        def broken(*arguments: Any) -> Any:
            if trainer.state.global_step == 2:
                raise error
            return whole(*arguments)

        setattr(attrgetter(owner)(trainer), name, broken)

    return arrange


def diverging(trainer: MemoryGRPOTrainer) -> None:
    """Make the gradients of the third update NaN."""
    trainer.model.lm_head.weight.register_hook(
        lambda gradient: gradient * float("nan") if trainer.state.global_step == 2 else gradient
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
    """Resume from other weights: everything has to come from the checkpoint."""
    other = make_model(9, len(make_element_tokenizer()), spread=0.1)
    trainer, _ = make_real_trainer(folder, other, **SETTINGS)
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
UNSAMPLED = (RolloutFailedError, r"update 3 cannot be sampled: .*it is gone")
SPENT = BudgetSpentError("call_budget is spent: 7 calls are recorded. Give more.")
ENDINGS: dict[str, tuple[Callable[[MemoryGRPOTrainer], Any], type[Exception], str]] = {
    "SIGTERM in a rollout": (lambda trainer: during_rollout(trainer, 3, terminate), *STOPPED),
    "spent budget": (
        breaking("backend.rollout", SPENT),
        BudgetSpentError,
        r"before update 3: call_budget is spent: 7 .*--resume continues",
    ),
    "NaN": (diverging, DivergedError, r"gradient norm of update 3 is nan.*--resume"),
    "no server": (breaking("backend.publish", OutageError("it is gone")), *UNSAMPLED),
}


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS)
def test_run_that_ends_early_saves_the_last_update(tmp_path: Path, whole: Any, ending: str) -> None:
    """All of them in the third update: the second one is saved, and the run resumes bit for bit."""
    arrange, error, message = ENDINGS[ending]
    trainer, _ = make_real_trainer(tmp_path, **SETTINGS)
    arrange(trainer)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(error, match=message):
        trainer.train()
    trainer.close()
    assert signal.getsignal(signal.SIGTERM) is before
    assert names(tmp_path) == ["checkpoint-2"]
    assert (tmp_path / "checkpoint-2" / CONFIG_FILE).is_file()
    resume_and_compare(tmp_path, whole)


@pytest.mark.slow
def test_finished_run_resumed_trains_no_more(tmp_path: Path) -> None:
    """In the middle of an epoch transformers would make one more update."""
    config = make_config(tmp_path, **{**SETTINGS, "max_steps": 2, "save_steps": 2})
    weights = []
    for checkpoint, sampled in ((None, 16), (str(tmp_path / "checkpoint-2"), 0)):
        trainer, _, runner = make_trainer(make_model(), config, mixed_episode, tasks=6)
        trainer.train(resume_from_checkpoint=checkpoint)
        weights.append(trainer.model.state_dict())
        assert (trainer.state.global_step, len(runner.jobs)) == (2, sampled)
    assert all(torch.equal(weights[0][name], weight) for name, weight in weights[1].items())


def test_too_many_failed_episodes_end_the_run(tmp_path: Path) -> None:
    def mostly_failed(task_id: str, sample: int) -> Episode:
        failed = sample < 3 or task_id == "t0"
        episode = random_episode(task_id, sample, None if failed else 1.0)
        episode.error = "no server answers" if failed else None
        return episode

    config = make_config(tmp_path, max_steps=2, save_strategy="steps", save_steps=100)
    trainer, _, runner = make_trainer(make_model(), config, mixed_episode)
    trainer.add_callback(at("on_step_end", 1, lambda: setattr(runner, "write", mostly_failed)))
    message = r"6 of 8 episodes of update 2 failed.*0\.5: no server answers"
    with pytest.raises(RolloutFailedError, match=message):
        trainer.train()
    assert names(tmp_path) == ["checkpoint-1"]


@pytest.mark.slow
def test_failed_write_keeps_the_last_checkpoint(
    tmp_path: Path, whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third checkpoint gets its weights written, but not its optimizer."""
    trainer, _ = make_real_trainer(tmp_path, **{**SETTINGS, "save_steps": 1, "save_total_limit": 1})
    save = Trainer._save_optimizer_and_scheduler

    def full(self: Any, folder: str) -> None:
        if self.state.global_step == 3:
            assert (Path(folder) / "model.safetensors").is_file()
            raise OSError("No space left on device")
        save(self, folder)

    monkeypatch.setattr(Trainer, "_save_optimizer_and_scheduler", full)
    message = r"of update 3 could not be written: No space left.*--resume.*checkpoint-2"
    with pytest.raises(CheckpointError, match=message):
        trainer.train()
    trainer.close()
    monkeypatch.undo()
    assert names(tmp_path) == ["checkpoint-2"]
    assert not (tmp_path / PARTIAL).exists()
    resume_and_compare(tmp_path, whole)
