"""How the sampling side gets new weights: a copy that is exchanged between batches, adapters under versioned names."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from atommem.policy.contract import Sampling
from atommem.policy.server_pool import Adapter
from atommem.train.loops.asynchronous.samplers import AdapterTransfer, CopyPolicy, CopyTransfer
from atommem.train.loops.asynchronous.worker import LoopThread
from tests.train.toys import make_model, make_tokenizer

GREEDY = Sampling(temperature=0.0, max_tokens=4)


def test_a_copy_gets_the_weights_between_two_batches() -> None:
    trained = make_model(seed=1)
    policy = CopyPolicy(make_model(seed=2), make_tokenizer())
    transfer = CopyTransfer(policy)

    async def scenario() -> tuple[list[int], list[int]]:
        before = (await policy.complete([1, 2, 3], GREEDY)).token_ids
        transfer.pause()
        waiting = asyncio.ensure_future(policy.complete([1, 2, 3], GREEDY))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        transfer.send_weights((name, p.detach()) for name, p in trained.named_parameters())
        transfer.resume()
        return before, (await waiting).token_ids

    before, after = asyncio.run(scenario())
    expected = asyncio.run(CopyPolicy(trained, make_tokenizer()).complete([1, 2, 3], GREEDY)).token_ids
    assert after == expected != before
    copied = dict(policy.model.named_parameters())
    assert all(torch.equal(copied[name], p) for name, p in trained.named_parameters())
    assert all(copied[name].data_ptr() != p.data_ptr() for name, p in trained.named_parameters())


def test_a_transfer_that_broke_off_does_not_hold_up_sampling() -> None:
    policy = CopyPolicy(make_model(), make_tokenizer())
    transfer = CopyTransfer(policy)
    transfer.pause()
    with pytest.raises(KeyError, match="unknown"):
        transfer.send_weights(iter([("unknown", torch.zeros(1))]))
    transfer.destroy()
    assert asyncio.run(policy.complete([1, 2, 3], GREEDY)).token_ids
    transfer.destroy()  # nothing is held: nothing happens


class FakePool:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.used: list[Adapter] = []
        self.unloaded: list[str] = []
        self.serving = [SimpleNamespace(control=self)]

    async def use_adapter(self, adapter: Adapter) -> None:
        self.used.append(adapter)

    async def unload_adapter(self, name: str) -> None:
        self.unloaded.append(name)


def test_adapters_that_no_request_may_name_are_removed(tmp_path: Path) -> None:
    loop, pool = LoopThread(), FakePool()
    publisher: Any = AdapterTransfer(loop, pool, kept=2)  # type: ignore[arg-type]
    for version in (1, 2, 3):
        (tmp_path / f"v{version}").mkdir()
        publisher.publish(f"v{version}", tmp_path / f"v{version}")
    loop.close()
    assert pool.used == [Adapter(f"v{version}", str(tmp_path / f"v{version}")) for version in (1, 2, 3)]
    assert pool.unloaded == ["v1"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v2", "v3"]
