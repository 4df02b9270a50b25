"""Weights into a colocated engine, its sleep and its waking, with a double of vLLM."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM
from trl.distributed import DistributedBackend

from atommem.config import MemoryConfig
from atommem.embedding.embedder import HashingEmbedder
from atommem.environment import environment_config
from atommem.errors import ConfigError
from atommem.policy.contract import Sampling
from atommem.train.rollout.colocate_backend import ColocateBackend, make_colocate_backend
from atommem.train.rollout.rollouts import Rollouts
from tests.train.harness import make_config
from tests.train.shipped import vllm_double
from tests.train.toys import make_model, make_tokenizer

pytestmark = pytest.mark.slow


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The double in vLLM's place, and its record."""
    for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    before = dict(os.environ)
    with monkeypatch.context() as context:
        context.setattr(vllm_double, "calls", [])
        vllm_double.install()
        yield vllm_double
    # An engine makes this process rank 0 of 1 for whatever it starts later.
    os.environ.clear()
    os.environ.update(before)
    for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
        del sys.modules[name]


def make_rollouts(tmp_path: Path, **settings: Any) -> Rollouts:
    environment = environment_config("longdoc", chunking="documents", max_reads=0)
    args = make_config(
        tmp_path / "out", **{"use_vllm": True, "vllm_enable_sleep_mode": True, **settings}
    )
    return Rollouts(args, make_tokenizer(), HashingEmbedder(16), MemoryConfig(), environment)


def saved_model(tmp_path: Path) -> Any:
    make_model().save_pretrained(tmp_path / "model")
    return AutoModelForCausalLM.from_pretrained(tmp_path / "model")


def test_full_weights_into_vllm_on_cpu_are_refused(tmp_path: Path, double: Any) -> None:
    double.install(on_cpu=True)
    with pytest.raises(ConfigError, match="use_peft: true"):
        make_colocate_backend(make_rollouts(tmp_path), saved_model(tmp_path))


def two_updates(backend: ColocateBackend, model: Any) -> None:
    """Run two updates with two rollouts each; the second needs the weights again."""
    accelerator = Accelerator(cpu=True)
    trainer: Any = SimpleNamespace(
        accelerator=accelerator, model=model, _dist=DistributedBackend(accelerator)
    )
    for _ in range(2):
        backend.publish(trainer)
        for _ in range(2):
            with backend.rollout(trainer):
                asyncio.run(backend.policy.complete([1, 2], Sampling(1.0, max_tokens=2)))


def test_engine_with_adapter_keeps_base_weights_asleep(tmp_path: Path, double: Any) -> None:
    model = get_peft_model(
        saved_model(tmp_path), LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    )
    backend = make_colocate_backend(make_rollouts(tmp_path), model)
    two_updates(backend, model)
    assert double.calls == [
        "build",
        "sleep 1",
        *4 * ["wake weights", "wake kv_cache", "generate", "sleep 1"],
    ]
    adapters = tmp_path / "out" / "adapters"
    assert len(list(adapters.iterdir())) == 2
    asyncio.run(backend.close())
    assert not any(adapters.iterdir())


def test_engine_calls_have_the_order_of_trl(
    tmp_path: Path, double: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = saved_model(tmp_path)
    monkeypatch.setattr(
        "atommem.train.rollout.colocate_backend.clear_device_cache", lambda: double.record("empty")
    )
    two_updates(make_colocate_backend(make_rollouts(tmp_path), model), model)
    rollout = ["empty", "wake weights", "load", "reset", "wake kv_cache", "generate", "sleep 2"]
    assert double.calls == ["build", "sleep 2", *4 * rollout]
