"""The simulated timeline: by hand where lengths are equal, and in its order where they are not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atommem.train.dry_run.costs import Costs
from atommem.train.dry_run.timeline import UPDATES, Schedule, Timeline, schedules, simulate

COSTS = Costs(
    rollout_flops=0, training_flops=0, reference_flops=0, prompt_seconds=0.0, decode_seconds=0.01,
    sequence_seconds=0.001, training_seconds=5.0, sync_seconds=1.0, switch_seconds=2.0,
)  # fmt: skip


def run(schedule: Schedule, costs: Costs = COSTS, **changes: Any) -> Timeline:
    shape = {"devices": 4, "processes": 4, "groups": 4, "group": 5, "tokens": 1000, "spread": 0.0}
    return simulate(schedule, costs, **{**shape, **changes})


def test_colocated_episodes_of_one_length_by_hand() -> None:
    # A group of 5 on each device: 1,000 tokens of 10 ms + 5 x 1 ms; then training 5 s, weights 1 s, waking 2 s.
    line = run(Schedule("s"))
    assert line.seconds == pytest.approx(15 + 8)
    assert (line.overlap, line.idle) == (0, pytest.approx(0, abs=1e-9))


def test_prompts_are_read_beside_the_decoding() -> None:
    assert run(Schedule("s"), replace(COSTS, prompt_seconds=3.0)).seconds == pytest.approx(15 + 8 + 3)


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
    lines = [run(schedule, groups=8, spread=0.4) for schedule in schedules(4, 2)]
    rounds, streaming, carried, on_policy, stale = lines
    assert rounds.seconds > streaming.seconds > carried.seconds
    assert rounds.idle > streaming.idle > carried.idle
    assert rounds.overlap == streaming.overlap == on_policy.overlap == 0 < stale.overlap


def test_nothing_is_compared_where_there_is_one_device() -> None:
    assert [schedule.samplers for schedule in schedules(1, 0)] == [0, 0, 0]
    assert UPDATES > 1
