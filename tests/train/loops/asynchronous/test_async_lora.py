"""LoRA: a copy in the process gets merged weights, servers get an adapter for every version."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig

from atommem.embedding.hashing import HashingEmbedder
from atommem.environment import make_environments
from atommem.episode_runner import EpisodeRunner
from atommem.policy.contract import Sampling
from atommem.policy.server_pool import ServerPool
from atommem.session import Agent
from atommem.train.loops.asynchronous.samplers import Sampler
from atommem.train.loops.asynchronous.worker import LoopThread
from atommem.train.resume.faults import RolloutFailedError
from tests.fake_vllm import Cluster
from tests.train.loops.asynchronous.test_async_trainer import make_trainer, save_model
from tests.train.loops.test_end_to_end import ENVIRONMENT, MEMORY, make_element_tokenizer

pytestmark = pytest.mark.slow


def lora() -> LoraConfig:
    """A fresh one: peft notes in it which model it is of."""
    return LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")


def test_a_copy_samples_from_the_merged_weights(tmp_path: Path) -> None:
    trainer = make_trainer(save_model(tmp_path), tmp_path / "out", max_staleness=0, peft_config=lora())
    trainer.train()
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters() if "lora_B" in name}
    assert any(p.abs().max() > 0 for p in before.values())  # it has learned something
    copy = dict(trainer.rollout_worker.runner.agent.policy.model.named_parameters())
    merged = dict(trainer.model.merge_and_unload().named_parameters())
    assert copy.keys() == merged.keys()
    for name, parameter in merged.items():
        torch.testing.assert_close(copy[name], parameter, atol=1e-6, rtol=0)


def server_sampler(cluster: Cluster, patience: float = 5.0) -> Any:
    def make(device: Any) -> Sampler:
        loop, tokenizer = LoopThread(), make_element_tokenizer()
        pool = ServerPool(
            cluster.urls, tokenizer=tokenizer, patience=patience, backoff=0.01, transport=cluster.transport
        )
        runner = EpisodeRunner(
            Agent(
                policy=pool,
                embedder=HashingEmbedder(16),
                tokenizer=tokenizer,
                environments=make_environments(ENVIRONMENT, tokenizer),
                memory=MEMORY,
                sampling=Sampling(temperature=1.0, max_tokens=4),
            )
        )
        return Sampler(loop, runner, None)

    return make


def test_every_version_has_its_own_adapter_and_requests_name_it(tmp_path: Path) -> None:
    cluster = Cluster("a", "b")
    sampler = server_sampler(cluster)
    trainer = make_trainer(
        save_model(tmp_path), tmp_path / "out", sampler=sampler, peft_config=lora(), use_vllm=True, max_staleness=0
    )
    trainer.train()
    names = cluster["a"].loads
    assert cluster["b"].loads == names
    assert [name.rsplit("-", 1)[1] for name in names] == ["v1", "v2", "v3", "v4"]
    # Eight episodes of three steps for each update, all from the version that it was on.
    asked = Counter(cluster["a"].asked + cluster["b"].asked)
    assert asked == Counter(dict.fromkeys(names[:3], 24))
    for server in cluster.servers.values():
        assert [server.asked.index(name) for name in names[:3]] == sorted(
            server.asked.index(name) for name in names[:3]
        )
        assert set(server.models) == {"policy", *names[2:]}  # the older ones were unloaded
    folders = sorted(path.name for path in (tmp_path / "out" / "adapters").iterdir())
    assert folders == sorted(names[2:])


def test_a_lost_server_does_not_stop_publication_and_the_loss_of_all_ends_the_run(tmp_path: Path) -> None:
    cluster = Cluster("a", "b")
    cluster["a"].up = False
    model = save_model(tmp_path)
    settings: dict[str, Any] = {"peft_config": lora(), "use_vllm": True, "max_staleness": 0}
    make_trainer(model, tmp_path / "one", sampler=server_sampler(cluster), **settings).train()
    assert (len(cluster["a"].loads), len(cluster["b"].loads)) == (0, 4)
    cluster["b"].up = False
    trainer = make_trainer(model, tmp_path / "none", sampler=server_sampler(cluster, patience=0.2), **settings)
    with pytest.raises(RolloutFailedError, match="no server has answered"):
        trainer.train()
