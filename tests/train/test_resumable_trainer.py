"""How a run ends when something goes wrong, and that it resumes bit for bit."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from atommem.episode import Episode
from atommem.errors import BudgetSpentError
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


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, list[float]]:
    """Weights and rewards of the run that nothing happened to."""
    trainer, _ = make_real_trainer(tmp_path_factory.mktemp("whole"), **SETTINGS)
    trainer.train()
    trainer.close()
    return trainer.model.state_dict(), rewards(Path(trainer.args.output_dir))


def rewards(folder: Path) -> list[float]:
    metrics = read_metrics(folder / METRICS_FILE)
    return [entry["reward"] for entry in metrics if "reward" in entry]


def fail(trainer: Any, owner: Any, name: str, update: int, error: Exception) -> None:
    """Make a method raise `error` after so many updates."""
    method = getattr(owner, name)

    def failing(*arguments: Any) -> Any:
        if trainer.state.global_step == update:
            raise error
        return method(*arguments)

    setattr(owner, name, failing)


def interrupt_rollout(trainer: MemoryGRPOTrainer) -> None:
    """Send SIGTERM in the middle of the third rollout."""
    rollout = trainer.backend.rollout

    def interrupted(_: Any) -> Any:
        if trainer.state.global_step == 2:
            trainer._loop.get_loop().call_later(0.01, terminate)
        return rollout(trainer)

    trainer.backend.rollout = interrupted  # type: ignore[method-assign]


def spend_budget(trainer: MemoryGRPOTrainer) -> None:
    error = BudgetSpentError("call_budget is spent: 7 calls are recorded. Give more.")
    fail(trainer, trainer.backend, "rollout", 2, error)


def diverge(trainer: MemoryGRPOTrainer) -> None:
    """Make the gradients of the third update NaN."""
    trainer.model.lm_head.weight.register_hook(
        lambda gradient: gradient * float("nan") if trainer.state.global_step == 2 else gradient
    )


def fill_disk(trainer: MemoryGRPOTrainer) -> None:
    """Let the checkpoint of the third update have its weights written, but not its optimizer."""
    trainer.args.save_steps = trainer.state.save_steps = 2
    error = OSError("No space left on device")
    fail(trainer, trainer, "_save_optimizer_and_scheduler", 3, error)


ENDINGS: dict[str, tuple[Callable[[MemoryGRPOTrainer], None], type[Exception], str]] = {
    "SIGTERM in a rollout": (interrupt_rollout, TrainingInterrupted, "stopped before update 3"),
    "spent budget": (spend_budget, BudgetSpentError, "before update 3: call_budget is spent"),
    "NaN": (diverge, DivergedError, "gradient norm of update 3 is nan"),
    "full disk": (fill_disk, CheckpointError, "of update 3 could not be written: No space left"),
}


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS)
def test_run_that_ends_early_resumes_from_the_last_update(
    tmp_path: Path, whole: tuple[Any, list[float]], ending: str
) -> None:
    """All of them in the third update: the second one is saved, and the run resumes bit for bit."""
    arrange, error, message = ENDINGS[ending]
    trainer, _ = make_real_trainer(tmp_path, **SETTINGS)
    arrange(trainer)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(error, match=rf"{message}.*--resume"):
        trainer.train()
    trainer.close()
    assert signal.getsignal(signal.SIGTERM) is before
    assert names(tmp_path) == ["checkpoint-2"]
    assert not (tmp_path / PARTIAL).exists()
    # Other weights: everything has to come from the checkpoint.
    other = make_model(9, len(make_element_tokenizer()), spread=0.1)
    resumed, _ = make_real_trainer(tmp_path, other, **SETTINGS)
    resumed.train(resume_from_checkpoint=str(last_checkpoint(tmp_path)))
    resumed.close()
    for name, expected in whole[0].items():
        assert torch.equal(resumed.model.state_dict()[name], expected), name
    assert rewards(tmp_path) == whole[1]


@pytest.mark.slow
def test_finished_run_resumed_trains_no_more(tmp_path: Path) -> None:
    """In the middle of an epoch transformers would make one more update."""
    config = make_config(tmp_path, **{**SETTINGS, "max_steps": 2, "save_steps": 2})
    for checkpoint, sampled in ((None, 16), (str(tmp_path / "checkpoint-2"), 0)):
        trainer, _, runner = make_trainer(make_model(), config, mixed_episode, tasks=6)
        trainer.train(resume_from_checkpoint=checkpoint)
        assert (trainer.state.global_step, len(runner.jobs)) == (2, sampled)


@pytest.mark.slow
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
