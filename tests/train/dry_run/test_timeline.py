"""The simulated timeline: by hand where lengths are equal, and in its order where they are not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atommem.train.dry_run.timeline import (
    Costs,
    Schedule,
    Timeline,
    estimate_costs,
    forward_flops,
    schedules,
    simulate,
)
from atommem.train.dry_run_config import Device
from tests.train.dry_run.test_memory_estimate import LOAD, LORA, MODEL, RUN

COSTS = Costs(prompts=0.0, decode=0.01, sequence=0.001, training=5.0, sync=1.0, switch=2.0)
# Four groups of five episodes of 1,000 tokens, on four processes.
SAMPLED = replace(LOAD, tasks=4, episodes=5, steps=10, completion_tokens=100)


def run(schedule: Schedule, costs: Costs = COSTS, **changes: Any) -> Timeline:
    return simulate(schedule, costs, replace(SAMPLED, **changes), devices=4, processes=4)


def test_colocated_episodes_of_one_length_by_hand() -> None:
    # A group of 5 on each device: 1,000 tokens of 10 ms + 5 x 1 ms; then training 5 s, weights 1 s, waking 2 s.
    line = run(Schedule("s"))
    assert line.seconds == pytest.approx(15 + 8)
    assert (line.overlap, line.idle) == (0, pytest.approx(0, abs=1e-9))


def test_updates_that_share_a_rollout_by_hand() -> None:
    # As above, in four updates: two shares of its episodes, twice.
    shared = replace(SAMPLED, tasks=8, sharing=2, iterations=2)
    line = simulate(Schedule("s"), COSTS, shared, devices=4, processes=4)
    assert line.seconds == pytest.approx(
        (20 + 4 * 5 + 1 + 2) / 4
    )  # two groups of 5 on each device at once


def test_samplers_apart_by_hand() -> None:
    # Two samplers with 2 groups each: 1,000 x (10 + 10 x 1) ms; two trainers: twice 5 s, and the weights.
    waiting = run(Schedule("s", samplers=2))
    assert waiting.seconds == pytest.approx(20 + 11)
    assert waiting.overlap == 0
    ahead = run(Schedule("s", samplers=2, ahead=1))
    assert ahead.overlap > 0.3
    assert ahead.seconds < waiting.seconds
    assert ahead.idle < waiting.idle


def test_rounds_wait_where_streaming_does_not() -> None:
    lines = [run(schedule, tasks=8, episodes=10, spread=0.4) for schedule in schedules(4, 2)]
    rounds, streaming, carried, on_policy, stale = lines
    assert rounds.seconds > streaming.seconds > carried.seconds
    assert rounds.idle > streaming.idle > carried.idle
    assert rounds.overlap == streaming.overlap == on_policy.overlap == 0 < stale.overlap


SIZES = {
    "prompt_tokens": 600,
    "completion_tokens": 20,
    "raw_tokens": 30_000,
    "unique_tokens": 11_000,
}
UPDATE = replace(LOAD, episodes=8, rows=56, **SIZES)


def costs(bandwidth: float, flops: float, **changes: Any) -> Costs:
    device = Device("test", flops=flops, memory=1, bandwidth=bandwidth)
    return estimate_costs(replace(RUN, device=device, **changes), UPDATE, utilisation=0.5)


def test_decoding_reads_weights_and_caches() -> None:
    slow = costs(bandwidth=1000, flops=1e30)
    assert slow.decode == pytest.approx(1000 * 4 / 600)
    assert slow.sequence == pytest.approx((600 + 10) * 160 / 600)
    busy = costs(bandwidth=1e30, flops=1000)
    assert busy.sequence == pytest.approx(forward_flops(MODEL, 1, 1, 610) / 500)
    assert busy.prompts == pytest.approx(forward_flops(MODEL, 11_000 - 56 * 20, 56, 310) / 500)


def test_passes_of_training() -> None:
    forward = forward_flops(MODEL, 11_000, 56 * 20, 310) / 0.5e9
    for passes, changes in (
        (4, {}),
        (3, {"checkpointing": False}),
        (5, {"beta": 0.1}),
        (3, {"model": LORA}),
    ):
        assert costs(1e9, 1e9, **changes).training == pytest.approx(passes * forward), changes
    assert costs(1e9, 1e9, share_prefixes=False).training > 2 * 4 * forward
    local = costs(1e9, 1e9, rollout="local")
    assert local.prompts > costs(1e9, 1e9).prompts  # no prefix cache
    assert local.sync == local.switch == 0
