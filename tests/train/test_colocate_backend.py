"""Weights into a colocated engine, its sleep and its waking, with a double of vLLM."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM
from trl.distributed import DistributedBackend

from atommem.embedding.embedder import HashingEmbedder
from atommem.errors import ConfigError
from atommem.policy.contract import Sampling
from atommem.train.rollout.colocate_backend import make_colocate_backend
from atommem.train.rollout.rollouts import Rollouts
from tests.train.harness import ENVIRONMENT, MEMORY, make_config
from tests.train.shipped import vllm_double
from tests.train.toys import make_model, make_tokenizer

pytestmark = pytest.mark.slow


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The double in vLLM's place, and its record.

    An engine makes this process rank 0 of 1 for whatever it starts later, hence the environment.
    """
    monkeypatch.setattr(vllm_double, "calls", [])
    with mock.patch.dict(os.environ), mock.patch.dict(sys.modules):
        vllm_double.install()
        yield vllm_double


def make_rollouts(tmp_path: Path) -> Rollouts:
    args = make_config(tmp_path / "out", use_vllm=True, vllm_enable_sleep_mode=True)
    return Rollouts(args, make_tokenizer(), HashingEmbedder(16), MEMORY, ENVIRONMENT)


FULL = ["empty", "wake weights", "load", "reset", "wake kv_cache", "generate", "sleep 2"]
ADAPTER = ["empty", "wake weights", "wake kv_cache", "generate", "sleep 1"]


@pytest.mark.parametrize(("adapts", "calls"), [(False, FULL), (True, ADAPTER)])
def test_engine_calls_have_the_order_of_trl(
    tmp_path: Path, double: Any, monkeypatch: pytest.MonkeyPatch, adapts: bool, calls: list[str]
) -> None:
    """Base weights of an adapter stay in the engine: sleep of level 2 would drop them."""
    clear = "atommem.train.rollout.colocate_backend.clear_device_cache"
    monkeypatch.setattr(clear, lambda: double.record("empty"))
    make_model().save_pretrained(tmp_path / "model")
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    if adapts:
        lora = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
        model = get_peft_model(model, lora)
    backend = make_colocate_backend(make_rollouts(tmp_path), model)
    accelerator = Accelerator(cpu=True)
    trainer: Any = SimpleNamespace(
        accelerator=accelerator, model=model, _dist=DistributedBackend(accelerator)
    )
    # Two updates with two rollouts each; the second needs the weights again.
    for _ in range(2):
        backend.publish(trainer)
        for _ in range(2):
            with backend.rollout(trainer):
                asyncio.run(backend.policy.complete([1, 2], Sampling(1.0, max_tokens=2)))
    assert double.calls == ["build", calls[-1], *4 * calls]


def test_full_weights_into_vllm_on_cpu_are_refused(tmp_path: Path, double: Any) -> None:
    double.install(on_cpu=True)
    with pytest.raises(ConfigError, match="use_peft: true"):
        make_colocate_backend(make_rollouts(tmp_path), make_model())
