"""Weights to vLLM: to servers, which are fakes, and into a colocated engine, which is a double."""

import asyncio
import os
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from atommem.errors import ConfigError, OutageError
from atommem.policy.contract import Sampling
from atommem.policy.server_pool import ServerPool
from atommem.train.errors import RolloutFailedError
from atommem.train.loops.grpo_trainer import MemoryGRPOTrainer
from atommem.train.rollout.colocate_backend import make_colocate_backend
from atommem.train.rollout.rollouts import Rollouts
from atommem.train.rollout.server_backend import AdapterBackend, FullWeightBackend
from atommem.train.rollout.weight_sync import AdapterPublisher, describe_weights
from tests.fake_vllm import Cluster
from tests.fakes import WordTokenizer
from tests.train.harness import make_config, make_rollouts, make_trainer
from tests.train.shipped import vllm_double
from tests.train.toys import WrittenRunner, make_model, make_tokenizer, mixed_episode

LORA = LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")


def make_server_trainer(
    folder: Path,
    cluster: Cluster,
    make_backend: Any,
    updates: int = 1,
    episodes: int = 8,
    **arguments: Any,
) -> MemoryGRPOTrainer:
    waits = {"patience": 0.2, "backoff": 0.01, "transport": cluster.transport}
    pool = ServerPool(cluster.urls, tokenizer=WordTokenizer(), **waits)
    runner: Any = WrittenRunner(mixed_episode)
    runner.agent.policy = pool
    settings = {"max_steps": updates, "per_device_train_batch_size": episodes}
    config = make_config(folder, use_vllm=True, vllm_mode="server", **settings)
    arguments["backend"] = make_backend(runner)
    return make_trainer(make_model(), config, mixed_episode, **arguments)[0]


class FakeTransfer:
    def __init__(self, url: str, trainer: Any, timeout: float = 0.0) -> None:
        self.url, self.description = url, describe_weights(trainer)
        self.calls: list[str] = []
        self.weights: dict[str, torch.Tensor] = {}
        self.close = partial(self.calls.append, "close")

    def send(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        self.calls.append("send")
        self.weights = {name: weight.clone() for name, weight in iterator}


@pytest.mark.slow
def test_full_weights_go_to_the_server_and_a_lost_one_is_joined_again(tmp_path):
    clients: list[FakeTransfer] = []

    def lose_it(update: int, episodes: object) -> None:
        trainer.backend.policy.servers[0].serving = update != 1

    def connect(*arguments: Any) -> FakeTransfer:
        clients.append(FakeTransfer(*arguments))
        return clients[-1]

    make = partial(FullWeightBackend, timeout=1.0, connect=connect)
    trainer = make_server_trainer(tmp_path, Cluster("a"), make, updates=3, on_episodes=lose_it)
    trainer.train()
    trainer.close()
    first, second = clients
    assert (first.url, second.url) == ("http://a", "http://a")
    assert first.calls == ["send", "send", "close"]
    assert second.calls == ["send", "close"]
    state = dict(trainer.model.named_parameters())
    assert [weight.name for weight in first.description] == list(first.weights) == list(state)
    # The last update got the weights after two steps: not those of the end.
    assert any(not torch.equal(second.weights[name], state[name]) for name in state)


def test_broken_transfer_is_an_outage_after_all_gathers(monkeypatch):
    """A thread still sends when the server answers an error; other ranks gather to the last one."""
    gathering, sent = threading.Event(), list[Any]()

    def gathered(trainer: Any) -> Iterator[tuple[str, torch.Tensor]]:
        for number in range(3):
            gathering.set()
            time.sleep(0.1)
            yield f"weight {number}", torch.zeros(1)

    def send(iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        sent.append(iterator)
        threading.Thread(target=next, args=(iterator,)).start()
        gathering.wait()
        raise RuntimeError("500")

    monkeypatch.setattr("atommem.train.rollout.server_backend.named_weights", gathered)
    trainer = SimpleNamespace(accelerator=SimpleNamespace(is_main_process=True))
    client = mock.Mock(send=send)
    runner: Any = WrittenRunner(mixed_episode)
    runner.agent.policy = ServerPool(["http://a"], tokenizer=WordTokenizer())
    with pytest.raises(OutageError, match=r"broke during a weight transfer: .*500"):
        FullWeightBackend(runner, 1.0, lambda *arguments: client).publish(trainer)
    assert next(sent[0], None) is None


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The double in vLLM's place, and its record.

    An engine makes this process rank 0 of 1 for whatever it starts later, hence the environment.
    """
    monkeypatch.setattr(vllm_double, "calls", [])
    with mock.patch.dict(os.environ), mock.patch.dict(sys.modules):
        vllm_double.install()
        yield vllm_double


def sleeping_rollouts(tmp_path: Path, **settings: Any) -> Rollouts:
    engine = {"use_vllm": True, "vllm_enable_sleep_mode": True}
    return make_rollouts(make_config(tmp_path / "out", **engine, **settings), make_tokenizer())


FULL = ["empty", "wake weights", "load", "reset", "wake kv_cache", "generate", "sleep 2"]
ADAPTER = ["empty", "wake weights", "wake kv_cache", "generate", "sleep 1"]


@pytest.mark.slow
@pytest.mark.parametrize(("adapts", "calls"), [(False, FULL), (True, ADAPTER)])
def test_engine_calls_have_the_order_of_trl(tmp_path, double, monkeypatch, adapts, calls):
    """Base weights of an adapter stay in the engine: sleep of level 2 would drop them."""
    clear = "atommem.train.rollout.colocate_backend.clear_device_cache"
    monkeypatch.setattr(clear, lambda: double.record("empty"))
    checked: list[Any] = []

    async def check(adapter: Any, policy: Any, load: Any) -> None:
        await load(adapter)
        checked.append(await policy.complete([1], Sampling(max_completion_length=1)))

    monkeypatch.setattr("atommem.train.rollout.colocate_backend.check_adapter", check)
    make_model().save_pretrained(tmp_path / "model")
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    if adapts:
        lora = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
        model = get_peft_model(model, lora)
    backend = make_colocate_backend(sleeping_rollouts(tmp_path), model)
    accelerator = Accelerator(cpu=True)
    trainer: Any = SimpleNamespace(accelerator=accelerator, model=model)
    # Two updates with two rollouts each; the second needs the weights again.
    for _ in range(2):
        backend.publish(trainer)
        for _ in range(2):
            with backend.rollout(trainer):
                asyncio.run(backend.policy.complete([1, 2], Sampling(1.0, max_completion_length=2)))
    assert double.calls == ["build", calls[-1], *4 * calls]
    assert len(checked) == adapts  # the first adapter, once


@pytest.mark.slow
def test_engine_has_bfloat16_and_room_for_all_episodes(tmp_path, double):
    make_model().save_pretrained(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    settings: dict[str, Any] = {"per_device_train_batch_size": 256, "cast_lm_head_to_fp32": True}
    settings |= {"bf16": True, "vllm_mode": "colocate"}
    settings["vllm_engine_kwargs"] = {"hf_overrides": {"x": 1}}
    engine = make_colocate_backend(sleeping_rollouts(tmp_path, **settings), model).policy.engine
    assert engine.args.dtype == "bfloat16"
    assert engine.args.max_num_seqs == 256
    assert engine.args.hf_overrides == {"head_dtype": "float32", "x": 1}


@pytest.mark.slow
def test_full_weights_into_vllm_on_cpu_are_refused(tmp_path, double):
    double.install(on_cpu=True)
    with pytest.raises(ConfigError, match="use_peft: true"):
        make_colocate_backend(sleeping_rollouts(tmp_path), make_model())


@pytest.mark.slow
def test_adapter_that_a_server_ignores_ends_the_run(tmp_path):
    """An adapter is 0 at first, so that its copies with random weights show what it can do."""
    cluster = Cluster("a", "b")
    cluster["b"].ignored = "q_proj"
    make = partial(AdapterBackend, publisher=AdapterPublisher(tmp_path / "adapters"))
    trainer = make_server_trainer(tmp_path, cluster, make, updates=2, peft_config=LORA)
    message = r"vLLM ignores 2 of the adapter's weights, such as base_model.*q_proj\.lora_B\.weight"
    with trainer, pytest.raises(RolloutFailedError, match=message):
        trainer.train()
    for server in cluster.servers.values():
        assert list(server.models) == ["policy"]
        assert server.asked[0] == server.loads[0] == server.asked[-1].removesuffix("-v_proj")
        names = {name.removeprefix(server.loads[0]) for name in server.asked}
        assert names == {"", "-q_proj", "-v_proj"}
