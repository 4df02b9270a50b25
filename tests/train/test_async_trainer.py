"""The asynchronous trainer with everything real but the size, on a copy or on servers."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig

from atommem.embedding.embedder import HashingEmbedder
from atommem.policy.server_pool import ServerPool
from atommem.train.async_config import AsyncTrainConfig
from atommem.train.console import ASYNC_COLUMNS, METRICS_FILE, read_metrics, use_console
from atommem.train.errors import TrainingInterrupted
from atommem.train.loops.async_trainer import AsyncMemoryGRPOTrainer, make_runner
from atommem.train.rollout.rollouts import Rollouts
from tests.fake_vllm import Cluster
from tests.train.harness import (
    BARE,
    ENVIRONMENT,
    MEMORY,
    at,
    make_element_tokenizer,
    make_real_trainer,
    make_tasks,
    save_model,
    terminate,
)

pytestmark = pytest.mark.slow

EMBEDDER = HashingEmbedder(16)
SHARED: dict[str, Any] = {
    "max_completion_length": 4,
    "max_grad_norm": 1.0,
    "seed": 3,
    "max_steps": 3,
}


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    return save_model(tmp_path)


def make_trainer(
    model: Path, out: Path, runner: Any = None, **given: Any
) -> AsyncMemoryGRPOTrainer:
    defaults = {"num_generations": 4, "token_budget": 64, "shuffle_dataset": False}
    arguments = {
        name: given.pop(name) for name in ("callbacks", "peft_config", "held_out") if name in given
    }
    args = AsyncTrainConfig(str(out), **{**BARE, **defaults, **SHARED, **given})
    tokenizer = make_element_tokenizer()
    rollouts = Rollouts(args, tokenizer, EMBEDDER, MEMORY, ENVIRONMENT)
    make = runner or partial(make_runner, rollouts, str(model))
    trainer = AsyncMemoryGRPOTrainer(str(model), args, make_tasks(), tokenizer, make, **arguments)
    use_console(trainer, ASYNC_COLUMNS)
    return trainer


def assert_same_weights(trainer: Any, other: Any, tolerance: float) -> None:
    weights, expected = (dict(one.model.state_dict()) for one in (trainer, other))
    torch.testing.assert_close(weights, expected, atol=tolerance, rtol=0)


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [entry for entry in read_metrics(folder / METRICS_FILE) if "loss" in entry]


def test_async_without_staleness_equals_on_policy_training_and_resumes(
    tmp_path: Path, model_folder: Path
) -> None:
    """Evaluation beside training changes nothing."""
    shared: dict[str, Any] = {"normalization": "trajectory", "beta": 0.5, "temperature": 0.7}
    shared |= {"max_steps": 4, "lr_scheduler_type": "constant"}
    on_policy, _ = make_real_trainer(tmp_path / "on_policy", str(model_folder), **SHARED | shared)
    on_policy.train()
    on_policy.close()
    shared |= {"max_staleness": 0, "save_strategy": "steps", "save_steps": 2}
    held: dict[str, Any] = {"held_out": make_tasks()[:3], "num_generations_eval": 2}
    held |= {"eval_data": "held_out.jsonl", "eval_strategy": "steps", "eval_steps": 2}
    trainer = make_trainer(model_folder, tmp_path / "async", **shared, **held)
    trainer.train()

    expected, found = metrics(tmp_path / "on_policy"), metrics(tmp_path / "async")
    assert [entry["em"] for entry in found] == [entry["em"] for entry in expected]
    assert any(entry["loss"] for entry in expected)
    for a, b in zip(expected, found, strict=True):
        assert b["loss"] == pytest.approx(a["loss"], rel=1e-4, abs=1e-7)
        assert b["grad_norm"] == pytest.approx(a["grad_norm"], rel=1e-4)
        assert b["sample/staleness_max"] == 0
    assert_same_weights(trainer, on_policy, 1e-5)
    evaluated = [entry for entry in trainer.state.log_history if "eval_em" in entry]
    assert [(entry["step"], entry["eval_n"]) for entry in evaluated] == [(2, 6), (4, 6)]

    resumed = make_trainer(model_folder, tmp_path / "resumed", **shared)
    resumed.train(resume_from_checkpoint=str(tmp_path / "async" / "checkpoint-2"))
    assert resumed.state.global_step == 4
    assert_same_weights(resumed, trainer, 1e-6)


def test_async_stopped_while_it_waits_for_groups_saves_a_checkpoint(
    tmp_path: Path, model_folder: Path
) -> None:
    trainer = make_trainer(model_folder, tmp_path, max_staleness=1, save_strategy="steps")
    trainer.add_callback(at("on_step_begin", 1, terminate))
    with pytest.raises(TrainingInterrupted, match=r"stopped before update 2.*--resume continues"):
        trainer.train()
    assert (tmp_path / "checkpoint-1").is_dir()


def test_async_lora_requests_name_the_adapter_of_their_version(
    tmp_path: Path, model_folder: Path
) -> None:
    cluster = Cluster("a", "b")
    tokenizer = make_element_tokenizer()
    pool = ServerPool(cluster.urls, tokenizer=tokenizer, transport=cluster.transport)
    args = AsyncTrainConfig(**BARE, **SHARED)
    runner = Rollouts(args, tokenizer, EMBEDDER, MEMORY, ENVIRONMENT).runner(pool)
    lora = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    settings: dict[str, Any] = {"peft_config": lora, "use_vllm": True, "max_staleness": 0}
    trainer = make_trainer(model_folder, tmp_path / "out", lambda _: runner, **settings)
    trainer.train()
    names = cluster["a"].loads
    assert cluster["b"].loads == names
    assert [name.rsplit("-", 1)[1] for name in names] == ["v1", "v2", "v3", "v4"]
    # Eight episodes of three steps for each update, all from the version that it was on.
    asked = Counter(cluster["a"].asked + cluster["b"].asked)
    assert asked == Counter(dict.fromkeys(names[:3], 24))
    assert set(cluster["a"].models) == {"policy", *names[2:]}  # the older ones were unloaded
