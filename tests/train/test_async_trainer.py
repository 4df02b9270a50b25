"""Asynchronous training: the rollout worker on written outcomes, and the trainer whole."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig

from atommem.errors import OutageError
from atommem.policy.contract import Completion, Sampling
from atommem.policy.server_pool import ServerPool
from atommem.train.console import ASYNC_COLUMNS, METRICS_FILE, read_metrics, use_console
from atommem.train.errors import TrainingInterrupted
from atommem.train.loops.async_trainer import AsyncMemoryGRPOTrainer, CopyBackend, make_runner
from atommem.train.loops.rollout_worker import Group, RolloutWorker
from atommem.train.rollout.rollouts import TaskOrder
from atommem.train.train_config import AsyncTrainConfig
from tests.fake_vllm import Cluster
from tests.serve.servers import until
from tests.train.harness import (
    BARE,
    at,
    make_action_tokenizer,
    make_real_trainer,
    make_rollouts,
    make_tasks,
    save_model,
    terminate,
)
from tests.train.toys import Closable

SHARED: dict[str, Any] = {"max_completion_length": 4, "max_grad_norm": 1.0}
SHARED |= {"seed": 3, "max_steps": 3}


def make_trainer(model: Path, out: Path, runner: Any = None, **given: Any) -> Any:
    defaults = {"num_generations": 4, "token_budget": 64, "shuffle_dataset": False}
    arguments = {name: given.pop(name) for name in ("peft_config", "held_out") if name in given}
    args = AsyncTrainConfig(str(out), **{**BARE, **defaults, **SHARED, **given})
    tokenizer = make_action_tokenizer()
    make = runner or partial(make_runner, make_rollouts(args, tokenizer), str(model))
    trainer = AsyncMemoryGRPOTrainer(str(model), args, make_tasks(), tokenizer, make, **arguments)
    use_console(trainer, ASYNC_COLUMNS)
    return trainer


def assert_same_weights(trainer: Any, other: Any, tolerance: float) -> None:
    weights, expected = (dict(one.model.state_dict()) for one in (trainer, other))
    torch.testing.assert_close(weights, expected, atol=tolerance, rtol=0)


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [entry for entry in read_metrics(folder / METRICS_FILE) if "loss" in entry]


def evaluations(folder: Path) -> list[dict[str, Any]]:
    entries = [entry for entry in read_metrics(folder / METRICS_FILE) if "eval_em" in entry]
    kept = [name for name in entries[0] if name == "step" or name.startswith("eval_")]
    return [{name: entry[name] for name in kept if name != "eval_seconds"} for entry in entries]


@pytest.mark.slow
def test_async_without_staleness_equals_on_policy_training_and_resumes(tmp_path):
    model = save_model(tmp_path)
    shared: dict[str, Any] = {"normalization": "trajectory", "temperature": 0.7}
    shared |= {"max_steps": 4, "lr_scheduler_type": "constant"}
    shared |= {"held_out": make_tasks(), "eval_data": "file"}
    shared |= {"eval_strategy": "steps", "eval_steps": 2, "eval_on_start": True}
    on_policy = make_real_trainer(tmp_path / "on_policy", str(model), **SHARED | shared)
    on_policy.train()
    on_policy.close()
    shared |= {"max_staleness": 0, "save_strategy": "steps", "save_steps": 2}
    with make_trainer(model, tmp_path / "async", **shared) as trainer:
        trainer.train()

    expected, found = metrics(tmp_path / "on_policy"), metrics(tmp_path / "async")
    assert [entry["em"] for entry in found] == [entry["em"] for entry in expected]
    assert any(entry["loss"] for entry in expected)
    for a, b in zip(expected, found, strict=True):
        assert b["loss"] == pytest.approx(a["loss"], rel=1e-4, abs=1e-7)
        assert b["grad_norm"] == pytest.approx(a["grad_norm"], rel=1e-4)
        assert b["sample/staleness_max"] == 0
    assert_same_weights(trainer, on_policy, 1e-5)
    expected, found = (evaluations(tmp_path / name) for name in ("on_policy", "async"))
    assert [entry["step"] for entry in found] == [0, 2, 4]
    for a, b in zip(expected, found, strict=True):
        assert b == pytest.approx(a, rel=1e-4)

    with make_trainer(model, tmp_path / "resumed", **shared) as resumed:
        assert resumed.evaluate(resumed.held_out[:1])["eval_episodes"] == 1  # starts no training
        resumed.train(resume_from_checkpoint=str(tmp_path / "async" / "checkpoint-2"))
        last = resumed.evaluate()
    assert last["eval_em"] == found[-1]["eval_em"]
    assert resumed.state.global_step == 4
    assert_same_weights(resumed, trainer, 1e-6)


@pytest.mark.slow
def test_async_stopped_while_it_waits_for_groups_saves_a_checkpoint(tmp_path):
    settings = {"max_staleness": 1, "save_strategy": "steps", "bf16": True}
    trainer = make_trainer(save_model(tmp_path), tmp_path, **settings)
    assert trainer.runner.agent.policy.autocast  # it samples as it trains
    trainer.add_callback(at("on_step_begin", 1, terminate))
    message = r"stopped before update 2.*--resume continues"
    with trainer, pytest.raises(TrainingInterrupted, match=message):
        trainer.train()
    assert (tmp_path / "checkpoint-1").is_dir()


@pytest.mark.slow
def test_async_lora_requests_name_the_adapter_of_their_version(tmp_path):
    model = save_model(tmp_path)
    cluster = Cluster("a", "b")
    tokenizer = make_action_tokenizer()
    pool = ServerPool(cluster.urls, tokenizer=tokenizer, transport=cluster.transport)
    runner = make_rollouts(AsyncTrainConfig(**BARE, **SHARED), tokenizer).runner(pool)
    lora = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    settings: dict[str, Any] = {"peft_config": lora, "use_vllm": True, "max_staleness": 0}
    trainer = make_trainer(model, tmp_path / "out", lambda _: runner, **settings)
    folder = tmp_path / "out" / "adapters"
    kept: list[set[str]] = []

    def look() -> None:
        kept.append(set(cluster["a"].models))
        for weights in folder.glob("*/*.safetensors"):  # a server may be another user's
            assert weights.stat().st_mode == weights.with_name("adapter_config.json").stat().st_mode

    trainer.add_callback(at("on_step_end", 3, look))
    with trainer:
        trainer.train()
    assert cluster["b"].loads == cluster["a"].loads
    names = [name for name in cluster["a"].loads if not name.endswith("_proj")]
    assert [name.rsplit("-", 1)[1] for name in names] == ["v1", "v2", "v3"]
    # Eight episodes of three steps for each update, all from the version that it was on.
    checks = [names[0], f"{names[0]}-q_proj", f"{names[0]}-v_proj"]  # `check_adapter`, on each
    asked = Counter(cluster["a"].asked + cluster["b"].asked)
    assert asked == Counter(dict.fromkeys(names, 24)) + Counter(2 * checks)
    assert kept == [{"policy", *names[1:]}]  # the older one was unloaded
    assert [set(server.models) for server in cluster.servers.values()] == [{"policy"}] * 2
    assert not list(folder.iterdir())
    before = [p.data.normal_().clone() for p in trainer.model.bfloat16().parameters()]
    CopyBackend(None).publish(trainer)
    assert all(map(torch.equal, trainer.model.parameters(), before)), "rounded"


class FakePolicy(Closable):
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        if self.error:
            raise self.error
        await asyncio.sleep(0)
        return Completion([1], [-0.5], "c0", "stop")


@contextmanager
def running_worker(policy: FakePolicy, **settings: Any) -> Iterator[RolloutWorker]:
    """Start a worker with weights of version 1: 3 groups of 2, one a version, no staleness."""
    numbers = settings.pop("numbers", range(3))
    defaults = {"group_size": 2, "groups_per_version": 1, "max_staleness": 0}
    args = AsyncTrainConfig(**BARE, **SHARED)
    worker = RolloutWorker(
        runner=make_rollouts(args, make_action_tokenizer()).runner(policy),
        tasks=make_tasks(8),
        order=TaskOrder(8, 1, shuffle=False, seed=0),
        close=policy.close,
        **{**defaults, **settings},
    )
    worker.update_model_version(1)
    worker.start(numbers)
    try:
        yield worker
    finally:
        worker.stop()


def take(worker: RolloutWorker, *numbers: int, stops: bool = False) -> list[Group]:
    return worker.take(numbers, 10.0, lambda: stops)


@pytest.mark.parametrize(
    ("staleness", "first", "ends"), [(0, 0, (2, 4, 6)), (1, 3, (6, 8, 9))], ids=["0", "resumed"]
)
def test_worker_with_a_staleness_runs_ahead_by_it(staleness, first, ends):
    settings = {"groups_per_version": 2, "max_staleness": staleness, "numbers": range(first, 9)}
    with running_worker(FakePolicy(), **settings) as worker:
        for version, (start, end) in enumerate(pairwise((first, *ends)), start=1):
            # Two documents and the question.
            versions = [group.versions for group in take(worker, *range(start, end))]
            assert versions == [2 * ([version] * 3,)] * (end - start)
            assert not take(worker, end, stops=True)
            worker.update_model_version(version + 1)


def test_take_without_completions_ends_the_run():
    message = r"no completion for .* s .*heartbeat_stale_after_s"
    with running_worker(FakePolicy()) as worker, pytest.raises(OutageError, match=message):
        worker.take([0, 1], 0.05, lambda: False)


def test_check_health_raises_the_error_of_the_thread():
    policy = FakePolicy(ZeroDivisionError("a bug"))
    with running_worker(policy) as worker, pytest.raises(ZeroDivisionError, match="a bug"):
        until(lambda: worker.check_health(60.0))
