"""Weight synchronisation with vLLM servers: adapters by name, full weights by a client each. The servers are fakes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file

from atommem.errors import ConfigError, OutageError
from atommem.policy.server_pool import ServerPool
from atommem.train.loops.grpo_trainer import MemoryGRPOTrainer
from atommem.train.resume.faults import RolloutFailedError
from atommem.train.rollout.adapters import AdapterPublisher
from atommem.train.rollout.full_weights import FullWeights, Servers, check_devices, vllm_name
from atommem.train.rollout.server_backend import (
    AdapterSync,
    ServerBackend,
    WeightSync,
    counter_growth,
    rollout_metrics,
)
from tests.fake_vllm import Cluster
from tests.fakes import WordTokenizer
from tests.train.harness import make_config, make_trainer
from tests.train.toys import WrittenRunner, make_model, mixed_episode

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


def train(*of: Any, **settings: Any) -> MemoryGRPOTrainer:
    trainer = make_server_trainer(*of, **settings)
    trainer.train()
    return trainer


def adapters(folder: Path) -> AdapterSync:
    return AdapterSync(AdapterPublisher(folder / "adapters"))


def test_every_update_has_its_own_adapter_on_all_servers_and_old_ones_go(tmp_path: Path) -> None:
    """Without the server that is gone."""
    cluster = Cluster("a", "b", "gone")
    cluster["gone"].up = False
    seen: list[dict[str, torch.Tensor]] = []
    publisher = AdapterPublisher(tmp_path / "adapters")
    save = publisher.save

    def watched(trainer: MemoryGRPOTrainer) -> Any:
        saved = save(trainer)
        seen.append(load_file(Path(saved[0].path) / "adapter_model.safetensors"))
        return saved

    publisher.save = watched  # type: ignore[method-assign]
    trainer = train(tmp_path, cluster, AdapterSync(publisher), updates=4, peft_config=LORA)
    loads = cluster["a"].loads
    assert len(set(loads)) == 4
    assert (cluster["b"].loads, cluster["gone"].loads) == (loads, [])
    logged = trainer.state.log_history[0]
    assert (logged["servers/serving"], logged["servers/lost"]) == (2.0, 1.0)
    assert list(cluster["a"].models) == ["policy", *loads[-2:]]
    assert sorted(path.name for path in (tmp_path / "adapters").iterdir()) == sorted(loads[-2:])
    # What was saved is the adapter of its update: the first changes nothing (B is 0), each later one differs.
    assert not any(weight.any() for name, weight in seen[0].items() if "lora_B" in name)
    for before, after in pairwise(seen):
        assert any(not torch.equal(before[name], after[name]) for name in before)
    trainer.close()
    assert list(cluster["a"].models) == ["policy"]
    assert not any((tmp_path / "adapters").iterdir())


def test_without_any_server_the_run_ends(tmp_path: Path) -> None:
    cluster = Cluster("a")
    cluster["a"].up = False
    with pytest.raises(RolloutFailedError, match="No server answered"):
        train(tmp_path, cluster, adapters(tmp_path), peft_config=LORA)
    with pytest.raises(
        RolloutFailedError, match=r"could be given weights \(http://a\): none of them answers"
    ):
        train(tmp_path, cluster, FullWeights(1.0, FakeTransfer))  # type: ignore[arg-type]


def test_an_adapter_that_cannot_be_written_or_served_is_refused(tmp_path: Path) -> None:
    (tmp_path / "adapters").write_text("a file where the folder should be")
    with pytest.raises(
        RolloutFailedError, match=r"the adapter could not be written to .+adapters/atommem-.+-v1: "
    ):
        train(tmp_path, Cluster("a"), adapters(tmp_path), peft_config=LORA)
    dora = LoraConfig(r=2, target_modules=["q_proj"], use_dora=True, task_type="CAUSAL_LM")
    with pytest.raises(ConfigError, match="vLLM cannot serve this adapter"):
        train(tmp_path, Cluster("a"), adapters(tmp_path), peft_config=dora)


class FakeTransfer:
    """Takes weights as TRL's `WeightTransferClient` does, one `among` others; keeps what it was asked and got."""

    def __init__(
        self, urls: Sequence[str], describe: Any, timeout: float = 0.0, among: Any = None
    ) -> None:
        if among is not None:
            among.append(self)
        self.urls, self.description = ",".join(urls), describe("bfloat16")
        self.calls: list[str] = []
        self.weights: dict[str, torch.Tensor] = {}
        self.pause, self.resume, self.destroy = (
            partial(self.calls.append, name) for name in ("pause", "resume", "destroy")
        )

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        self.calls.append("send")
        self.weights = {name: weight.clone() for name, weight in iterator}


def test_full_weights_go_to_every_server_that_is_up(tmp_path: Path) -> None:
    cluster = Cluster("a", "b", "c")
    cluster["b"].up = False
    clients: list[FakeTransfer] = []

    def connect(*of: Any) -> FakeTransfer:
        if cluster["c"].up:
            cluster["c"].up = False
            raise OutageError("http://c went away")  # between two questions
        return FakeTransfer(*of, among=clients)

    trainer = train(tmp_path, cluster, FullWeights(1.0, connect), updates=2)
    (client,), state = clients, dict(trainer.model.named_parameters())
    assert client.urls == "http://a"
    assert client.calls == ["pause", "send", "resume"] * 2
    assert client.description["names"] == list(client.weights) == list(state)
    assert client.description["shapes"] == [
        list(weight.shape) for weight in client.weights.values()
    ]
    assert set(client.description["dtype_names"]) == {"bfloat16"}
    # The second update got the weights after one step: not those of the end.
    assert any(not torch.equal(client.weights[name], state[name]) for name in state)
    pool = trainer.backend.pool  # type: ignore[attr-defined]
    assert [server.url for server in pool.serving] == ["http://a"]
    trainer.close()
    assert client.calls[-1] == "destroy"


def test_servers_that_come_and_go_make_the_group_anew(tmp_path: Path) -> None:
    """b is gone at the first update, there at the second and third, and started anew before the fourth."""
    cluster = Cluster("a", "b")
    cluster["b"].up = False
    groups: list[FakeTransfer] = []

    def between(update: int, episodes: object) -> None:
        cluster["b"].up = True
        if update == 2:
            trainer.backend.pool.servers[1].serving = False  # type: ignore[attr-defined]  # a request has failed there

    sync = FullWeights(1.0, lambda *of: FakeTransfer(*of, among=groups))
    trainer = make_server_trainer(tmp_path, cluster, sync, updates=4, on_episodes=between)
    trainer.train()
    trainer.close()
    assert [group.urls for group in groups] == [
        "http://a",
        "http://a,http://b",
        "http://a,http://b",
    ]
    assert [group.calls.count("send") for group in groups] == [1, 2, 1]
    assert all(group.calls[-1] == "destroy" for group in groups)


class FakeServer:
    """TRL's client of one server, with three workers."""

    def __init__(self, url: str, dtype: str = "torch.bfloat16") -> None:
        self.server_url, self.dtype = url, dtype
        self.info: dict[str, Any] = {}
        self.meeting: Barrier | None = None

    def get_dtype(self) -> str:
        return self.dtype

    def get_world_size(self) -> int:
        return 3

    def init_weight_transfer_engine(self, info: dict[str, Any], timeout: int) -> None:
        self.info = info
        if self.meeting is not None:
            self.meeting.wait(5)

    def update_weights(self, update: dict[str, Any], timeout: int) -> None:
        if self.server_url == "http://b":
            raise RuntimeError("b is gone")
        Event().wait(20)  # for a broadcast that never comes


def test_workers_of_all_servers_are_ranks_of_one_group() -> None:
    clients = [FakeServer("http://a"), FakeServer("http://b")]
    servers = Servers(clients)
    assert (servers.get_world_size(), servers.get_dtype()) == (6, "torch.bfloat16")
    for client, meeting in zip(clients, [Barrier(2)] * 2, strict=True):
        client.meeting = (
            meeting  # a server answers when all have joined: they must be asked at the same time
        )
    servers.init_weight_transfer_engine({"rank_offset": 1, "world_size": 7}, timeout=1)
    assert [client.info["rank_offset"] for client in clients] == [1, 4]
    # One that fails while another waits for it ends the wait.
    with pytest.raises(RuntimeError, match="b is gone"):
        servers.update_weights({}, timeout=1)
    with pytest.raises(
        ConfigError, match=r"http://a, http://b serve in .*start all with the same --dtype"
    ):
        Servers([FakeServer("http://a"), FakeServer("http://b", "torch.float16")]).get_dtype()


def test_a_server_that_breaks_while_it_is_given_weights_ends_the_run_on_all_ranks(
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

    monkeypatch.setattr("atommem.train.rollout.full_weights.named_weights", gathered)
    with pytest.raises(
        RolloutFailedError,
        match=r"while they were given weights; http://a: RuntimeError\('NCCL went away'\)",
    ):
        train(tmp_path, Cluster("a"), FullWeights(1.0, Breaks))  # type: ignore[arg-type]
    assert given == ["first", "second", "third"]


def test_a_server_on_cpu_says_to_use_lora() -> None:
    with pytest.raises(ConfigError, match=r"http://a runs on CPU.*use_peft: true"):
        check_devices("http://a", {"device_config": {"device": "cpu"}})
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="this process has no GPU"):
            check_devices("http://a", {"device_config": {"device": "cuda"}})


def test_counters_of_a_restarted_server_count_from_zero() -> None:
    hits, queries, prompts = (
        f"vllm:{name}_total"
        for name in ("prefix_cache_hits", "prefix_cache_queries", "prompt_tokens")
    )
    before = {
        "a": {hits: 10.0, queries: 100.0, prompts: 100.0},
        "gone": {hits: 1.0, queries: 1.0, prompts: 1.0},
    }
    after = {
        "a": {hits: 60.0, queries: 200.0, prompts: 200.0},
        "new": {hits: 25.0, queries: 50.0, prompts: 50.0},
    }
    assert rollout_metrics(counter_growth(before, after)) == {
        "vllm/prompt_tokens": 150.0,
        "vllm/prefix_cache_hits": 75.0,
        "vllm/prefix_cache_hit_rate": 0.5,
    }
    restarted = counter_growth(after, {"a": {hits: 5.0, queries: 10.0, prompts: 10.0}})
    assert rollout_metrics(restarted)["vllm/prompt_tokens"] == 10.0
    assert rollout_metrics({}) == {}


def test_names_are_those_of_the_checkpoint() -> None:
    assert vllm_name("module.model.layers.0._checkpoint_wrapped_module.mlp.up_proj.weight") == (
        "model.layers.0.mlp.up_proj.weight"
    )
