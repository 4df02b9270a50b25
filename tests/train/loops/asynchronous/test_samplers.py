"""A copy in the process samples on where its new weights do not arrive."""

from __future__ import annotations

import asyncio

import pytest
import torch

from atommem.policy.contract import Sampling
from atommem.train.loops.asynchronous.samplers import CopyPolicy, CopyTransfer
from tests.train.toys import make_model, make_tokenizer

GREEDY = Sampling(temperature=0.0, max_tokens=4)


def test_a_transfer_that_broke_off_does_not_hold_up_sampling() -> None:
    policy = CopyPolicy(make_model(), make_tokenizer())
    transfer = CopyTransfer(policy)
    transfer.pause()
    with pytest.raises(KeyError, match="unknown"):
        transfer.send_weights(iter([("unknown", torch.zeros(1))]))
    transfer.destroy()
    assert asyncio.run(policy.complete([1, 2, 3], GREEDY)).token_ids
    transfer.destroy()  # nothing is held: nothing happens
