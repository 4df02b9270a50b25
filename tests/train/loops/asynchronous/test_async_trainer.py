"""The asynchronous trainer with everything real but the size: sampled, published, trained, resumed."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from atommem.embedding.hashing import HashingEmbedder
from atommem.episode import Episode
from atommem.episode_runner import EpisodeRunner
from atommem.errors import BudgetSpentError, ConfigError, PolicyError
from atommem.train.async_config import AsyncTrainConfig
from atommem.train.loops.asynchronous.async_run import ASYNC_COLUMNS
from atommem.train.loops.asynchronous.async_trainer import AsyncMemoryGRPOTrainer
from atommem.train.loops.asynchronous.samplers import make_sampler
from atommem.train.resume.faults import RolloutFailedError
from atommem.train.resume.interrupts import TrainingInterrupted
from atommem.train.rollout.episodes import Rollouts
from atommem.train.watch.callbacks import METRICS_FILE, read_metrics, use_console
from tests.train.loops.test_end_to_end import ENVIRONMENT, MEMORY, make_element_tokenizer, make_real_trainer, make_tasks
from tests.train.toys import make_model

pytestmark = pytest.mark.slow

SHARED = {"max_completion_length": 4, "max_grad_norm": 1.0, "seed": 3, "learning_rate": 1e-2, "max_steps": 3}


def save_model(folder: Path) -> Path:
    """A tiny model with its tokenizer, in ``folder/model``."""
    tokenizer = make_element_tokenizer()
    make_model(vocabulary=len(tokenizer), spread=0.1).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return folder / "model"


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    return save_model(tmp_path)


def make_trainer(
    model: Path,
    out: Path,
    callbacks: Any = None,
    sampler: Any = None,
    peft_config: Any = None,
    held_out: Any = (),
    **settings: Any,
) -> AsyncMemoryGRPOTrainer:
    defaults: dict[str, Any] = {
        "output_dir": str(out),
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "use_cpu": True,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "token_budget": 64,
        "shuffle_dataset": False,
    }
    args = AsyncTrainConfig(**{**defaults, **SHARED, **settings})
    tokenizer = make_element_tokenizer()
    rollouts = Rollouts(args, tokenizer, HashingEmbedder(16), MEMORY, ENVIRONMENT)
    trainer = AsyncMemoryGRPOTrainer(
        str(model),
        args,
        make_tasks(),
        tokenizer,
        sampler or make_sampler(rollouts, str(model)),
        held_out=held_out,
        callbacks=callbacks,
        peft_config=peft_config,
    )
    use_console(trainer, ASYNC_COLUMNS)
    return trainer


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [entry for entry in read_metrics(folder / METRICS_FILE) if "loss" in entry]


@pytest.mark.parametrize(
    "shared",
    [
        {"normalization": "token"},
        {"normalization": "trajectory", "beta": 0.5},
        {"normalization": "trajectory", "temperature": 0.7},
        {"normalization": "trajectory", "beta": 0.5, "temperature": 0.7},
    ],
)
def test_without_staleness_it_is_on_policy_training(tmp_path: Path, model_folder: Path, shared: dict[str, Any]) -> None:
    """Same seeds, same episodes, same losses, same parameters after three updates; with a KL term too."""
    shared = {**SHARED, "lr_scheduler_type": "constant", **shared}
    on_policy, _ = make_real_trainer(tmp_path / "on_policy", str(model_folder), **shared)
    on_policy.train()
    on_policy.close()
    trainer = make_trainer(model_folder, tmp_path / "async", max_staleness=0, **shared)
    trainer.train()

    expected, found = metrics(tmp_path / "on_policy"), metrics(tmp_path / "async")
    assert [entry["em"] for entry in found] == [entry["em"] for entry in expected]
    assert any(entry["loss"] for entry in expected)
    for a, b in zip(expected, found, strict=True):
        assert b["loss"] == pytest.approx(a["loss"], rel=1e-4, abs=1e-7)
        assert b["grad_norm"] == pytest.approx(a["grad_norm"], rel=1e-4)
        assert b["sample/staleness_max"] == 0
        assert b.get("ratio", 1.0) == pytest.approx(1.0, abs=1e-4)  # not logged where no group taught anything
    trained = dict(trainer.model.named_parameters())
    for name, parameter in on_policy.model.named_parameters():
        torch.testing.assert_close(trained[name], parameter, atol=1e-5, rtol=0)


class StopIt(TrainerCallback):
    """Stops the run as SIGTERM does, while the second update waits for its groups."""

    def __init__(self) -> None:
        self.trainer: Any = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 1:
            self.trainer.stop_request.signal = signal.SIGTERM


class SlowTrainer(TrainerCallback):
    """Lets the worker run as far ahead as it may before each update."""

    def __init__(self) -> None:
        self.trainer: Any = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        worker = self.trainer.rollout_worker
        allowed = min(1 + args.max_staleness, args.max_steps - state.global_step) * worker.groups_per_version
        while worker.rollout_buffer.qsize() + len(self.trainer._reader._early) < allowed:
            worker.check_health(30.0)


def test_staleness_is_used_and_bounded(tmp_path: Path, model_folder: Path) -> None:
    slow = SlowTrainer()
    slow.trainer = make_trainer(model_folder, tmp_path / "async", [slow], max_staleness=2, max_steps=5)
    slow.trainer.train()
    entries = metrics(tmp_path / "async")
    assert [entry["sample/staleness_max"] for entry in entries] == [0, 1, 2, 2, 2]
    assert entries[0]["episodes"] == 8
    assert all(entry[f"seconds/{name}"] >= 0 for entry in entries for name in ("idle", "train", "sync", "generate"))
    # The ratio is against the weights that sampled, so it differs from 1 exactly where these are old.
    ratios = [entry["ratio"] for entry in entries if "ratio" in entry]
    assert ratios[0] == pytest.approx(1.0, abs=1e-5)
    assert any(abs(ratio - 1.0) > 1e-3 for ratio in ratios[1:])


def test_a_resumed_run_goes_on_with_the_next_groups(tmp_path: Path, model_folder: Path) -> None:
    settings: dict[str, Any] = {"max_staleness": 0, "max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    whole = make_trainer(model_folder, tmp_path / "whole", **settings)
    whole.train()
    resumed = make_trainer(model_folder, tmp_path / "resumed", **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert resumed.state.global_step == 4
    parameters = dict(resumed.model.named_parameters())
    for name, parameter in whole.model.named_parameters():
        torch.testing.assert_close(parameters[name], parameter, atol=1e-6, rtol=0)


def test_a_run_that_is_stopped_leaves_a_checkpoint(tmp_path: Path, model_folder: Path) -> None:
    stop = StopIt()
    stop.trainer = make_trainer(model_folder, tmp_path / "async", [stop], max_staleness=1, save_strategy="steps")
    with pytest.raises(TrainingInterrupted, match="stopped before update 2"):
        stop.trainer.train()
    assert (tmp_path / "async" / "checkpoint-1").is_dir()
    assert not stop.trainer.rollout_worker.loop.loop.is_running()


def test_a_spent_budget_leaves_a_checkpoint(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, begun = EpisodeRunner.run, 0

    async def spending(self: EpisodeRunner, *arguments: Any, **more: Any) -> Episode:
        nonlocal begun
        begun += 1
        if begun > 12:  # two groups of four are an update
            raise BudgetSpentError("call_budget is spent: 12 calls are recorded. Give more.")
        return await run(self, *arguments, **more)

    monkeypatch.setattr(EpisodeRunner, "run", spending)
    trainer = make_trainer(model_folder, tmp_path / "async", max_staleness=0, save_strategy="steps")
    with pytest.raises(BudgetSpentError, match=r"stopped before update 2: call_budget is spent.*--resume continues"):
        trainer.train()
    assert (tmp_path / "async" / "checkpoint-1").is_dir()
    assert not trainer.rollout_worker.loop.loop.is_running()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"per_device_train_batch_size": 6}, "6 episodes per update .* no multiple of num_generations 4"),
        ({"per_device_train_batch_size": 28}, "6 tasks are fewer than the 7 groups"),
        ({"max_staleness": -1}, "max_staleness is -1: give 0"),
        ({"token_budget": None}, "token_budget is None: give at least 1"),
        ({"max_inflight_tasks": 0}, "max_inflight_tasks is 0: give at least 1, or -1"),
        ({"use_vllm": True, "vllm_server_base_url": ","}, "vllm_server_base_url is empty"),
    ],
)
def test_what_cannot_be_honoured_is_refused(
    tmp_path: Path, model_folder: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_trainer(model_folder, tmp_path / "async", **settings)


def test_evaluation_beside_training(tmp_path: Path, model_folder: Path) -> None:
    """Every second update, each held-out task twice."""
    settings: dict[str, Any] = {"eval_data": "held_out.jsonl", "eval_strategy": "steps", "eval_steps": 2}
    settings |= {"max_steps": 4, "max_staleness": 0}
    trained = make_trainer(
        model_folder,
        tmp_path / "async",
        held_out=make_tasks()[:3],
        eval_temperature=0.0,
        num_generations_eval=2,
        **settings,
    )
    trained.train()
    evaluated = [entry for entry in trained.state.log_history if "eval_em" in entry]
    assert [(entry["step"], entry["eval_episodes"], entry["eval_n"]) for entry in evaluated] == [(2, 6, 6), (4, 6, 6)]
    # Training does not notice it.
    plain = make_trainer(model_folder, tmp_path / "plain", max_steps=4, max_staleness=0)
    plain.train()
    parameters = dict(plain.model.named_parameters())
    for name, parameter in trained.model.named_parameters():
        torch.testing.assert_close(parameters[name], parameter, atol=1e-6, rtol=0)


def test_an_evaluation_that_breaks_ends_the_run(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: EpisodeRunner, *arguments: Any) -> Any:
        raise PolicyError("the server refused the request")

    monkeypatch.setattr(EpisodeRunner, "run_all", broken)
    settings: dict[str, Any] = {"eval_data": "held_out.jsonl", "eval_strategy": "steps", "eval_steps": 1}
    trainer = make_trainer(model_folder, tmp_path / "async", held_out=make_tasks()[:1], **settings)
    with pytest.raises(RolloutFailedError, match="the server refused the request"):
        trainer.train()
