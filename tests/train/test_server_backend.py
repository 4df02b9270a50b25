"""Weights to vLLM servers, which are fakes: adapters by name, full weights by a client."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig

from atommem.policy.server_pool import ServerPool
from atommem.train.errors import RolloutFailedError
from atommem.train.loops.grpo_trainer import MemoryGRPOTrainer
from atommem.train.rollout.server_backend import FullWeightSync, ServerBackend, WeightSync
from atommem.train.rollout.weight_sync import describe_weights
from tests.fake_vllm import Cluster
from tests.fakes import WordTokenizer
from tests.train.harness import make_config, make_trainer
from tests.train.toys import WrittenRunner, make_model, mixed_episode

pytestmark = pytest.mark.slow

LORA = LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")


def make_server_trainer(
    folder: Path,
    cluster: Cluster,
    sync: WeightSync,
    updates: int = 1,
    episodes: int = 8,
    **arguments: Any,
) -> MemoryGRPOTrainer:
    """A trainer whose weights go to the servers of `cluster`, and whose episodes are written."""
    pool = ServerPool(
        cluster.urls,
        tokenizer=WordTokenizer(),
        patience=0.2,
        backoff=0.01,
        transport=cluster.transport,
    )
    runner: Any = WrittenRunner(mixed_episode)
    runner.agent.policy = pool
    settings = {
        "max_steps": updates,
        "per_device_train_batch_size": episodes,
        "use_vllm": True,
        "vllm_mode": "server",
    }
    backend = ServerBackend(runner, pool, sync)
    return make_trainer(
        make_model(), make_config(folder, **settings), mixed_episode, backend=backend, **arguments
    )[0]


class FakeTransfer:
    """Takes weights as TRL's `WeightTransferClient` does, and records calls."""

    def __init__(self, url: str, trainer: Any, timeout: float = 0.0) -> None:
        self.url, self.description = url, describe_weights(trainer, "bfloat16")
        self.calls: list[str] = []
        self.weights: dict[str, torch.Tensor] = {}
        self.pause, self.resume, self.destroy = (
            partial(self.calls.append, name) for name in ("pause", "resume", "destroy")
        )

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        self.calls.append("send")
        self.weights = {name: weight.clone() for name, weight in iterator}


def test_full_weights_go_to_the_server_and_a_lost_one_is_joined_again(tmp_path: Path) -> None:
    clients: list[FakeTransfer] = []

    def lose_it(update: int, episodes: object) -> None:
        trainer.backend.pool.servers[0].serving = update != 1  # type: ignore[attr-defined]

    def connect(*arguments: Any) -> FakeTransfer:
        clients.append(FakeTransfer(*arguments))
        return clients[-1]

    sync = FullWeightSync(1.0, connect)
    trainer = make_server_trainer(tmp_path, Cluster("a"), sync, updates=3, on_episodes=lose_it)
    trainer.train()
    trainer.close()
    first, second = clients
    assert (first.url, second.url) == ("http://a", "http://a")
    assert first.calls == [*["pause", "send", "resume"] * 2, "destroy"]
    assert second.calls == ["pause", "send", "resume", "destroy"]
    state = dict(trainer.model.named_parameters())
    assert first.description["names"] == list(first.weights) == list(state)
    # The last update got the weights after two steps: not those of the end.
    assert any(not torch.equal(second.weights[name], state[name]) for name in state)


def test_broken_transfer_ends_the_run_after_all_gathers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other ranks take part in the gathering of every parameter: it goes on to the last one."""
    given: list[str] = []

    def gathered(trainer: Any) -> Iterator[tuple[str, torch.Tensor]]:
        for name in ("first", "second", "third"):
            given.append(name)
            yield name, torch.zeros(1)

    class Breaks(FakeTransfer):
        def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
            next(iterator)
            raise RuntimeError("NCCL went away")

    monkeypatch.setattr("atommem.train.rollout.server_backend.named_weights", gathered)
    trainer = make_server_trainer(tmp_path, Cluster("a"), FullWeightSync(1.0, Breaks))
    with pytest.raises(RolloutFailedError, match=r"broke during a weight transfer: .*NCCL"):
        trainer.train()
    assert given == ["first", "second", "third"]
