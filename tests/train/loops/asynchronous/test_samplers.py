"""How a copy in the process gets new weights: between two batches."""

from __future__ import annotations

import asyncio

import pytest
import torch

from atommem.policy.contract import Sampling
from atommem.train.loops.asynchronous.samplers import CopyPolicy, CopyTransfer
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
