"""Weights into a colocated engine, its sleep and its waking, with a fake engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig

from atommem.errors import ConfigError
from atommem.policy.server_pool import Adapter
from atommem.train.loops.grpo_trainer import MemoryGRPOTrainer
from atommem.train.rollout.adapters import AdapterPublisher
from atommem.train.rollout.colocate_backend import ColocateBackend, colocate_backend
from atommem.train.rollout.episodes import Rollouts
from tests.train.harness import make_config
from tests.train.toys import Closable, ToyTask, WrittenRunner, make_model, make_tokenizer, mixed_episode


class FakeEngine:
    """Writes down what it is asked; holds the weights that it was given, and loses them as it sleeps."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.weights: dict[str, torch.Tensor] = {}

    def wake_up(self, tags: list[str]) -> None:
        self.calls.append(f"wake {tags[0]}")

    def sleep(self, level: int) -> None:
        self.calls.append(f"sleep {level}")
        if level == 2:
            self.weights = {}

    def apply_model(self, work: Callable[[Any], Any]) -> None:
        if not self.weights:
            self.calls.append("load")
        work(SimpleNamespace(load_weights=self._load))

    def _load(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        self.weights |= {name: weight.clone() for name, weight in weights}

    def reset_prefix_cache(self) -> None:
        self.calls.append("reset")


class FakePolicy(Closable):
    """An engine's policy that samples nothing."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.adapters: list[Adapter] = []

    def use_adapter(self, adapter: Adapter) -> None:
        assert (Path(adapter.path) / "adapter_model.safetensors").is_file()
        self.adapters.append(adapter)

    def take_counts(self) -> dict[str, float]:
        return {"vllm/prompt_tokens": 7.0}


def train(tmp_path: Path, lora: bool, sleeps: bool) -> tuple[MemoryGRPOTrainer, FakePolicy]:
    policy = FakePolicy(FakeEngine())
    backend = ColocateBackend(
        WrittenRunner(mixed_episode),  # type: ignore[arg-type]
        policy,  # type: ignore[arg-type]
        AdapterPublisher(tmp_path / "adapters") if lora else None,
        sleeps,
    )
    settings = {"peft_config": LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")} if lora else {}
    trainer = MemoryGRPOTrainer(
        model=make_model(),
        args=make_config(tmp_path, max_steps=2, use_vllm=True),
        tasks=[ToyTask(f"t{index}") for index in range(4)],
        processing_class=make_tokenizer(),
        make_backend=lambda _: backend,
        **settings,
    )
    trainer.train()
    return trainer, policy


@pytest.mark.parametrize("sleeps", [False, True])
def test_full_weights_are_loaded_before_every_update(tmp_path: Path, sleeps: bool) -> None:
    trainer, policy = train(tmp_path, lora=False, sleeps=sleeps)
    calls = policy.engine.calls
    if sleeps:
        once = ["reset", "wake kv_cache", "sleep 2"]
        assert calls == ["load", "reset", "sleep 2", "wake weights", "load", *once]
        with trainer.backend.rollout(trainer):  # a second rollout of the same update: sleep has lost the weights
            assert calls[-4:] == ["wake weights", "load", "reset", "wake kv_cache"]
            assert set(policy.engine.weights) == {name for name, _ in trainer.model.named_parameters()}
    else:
        assert calls == ["load", "reset", "reset"]
    assert trainer.state.log_history[0]["vllm/prompt_tokens"] == 7.0
    trainer.close()


def test_full_weights_on_cpu_say_to_use_lora(tmp_path: Path) -> None:
    rollouts = Rollouts(make_config(tmp_path, use_vllm=True), None, None, None, None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="use_peft: true"):
        colocate_backend(rollouts)(make_model())


def test_an_adapter_gets_a_new_name_every_update_and_base_weights_outlive_sleep(tmp_path: Path) -> None:
    trainer, policy = train(tmp_path, lora=True, sleeps=True)
    assert policy.engine.calls == ["sleep 1", "wake weights", "wake kv_cache", "sleep 1"]
    assert len({adapter.name for adapter in policy.adapters}) == 2
    trainer.close()
    assert not any((tmp_path / "adapters").iterdir())
