"""A simulated timeline of several devices: how long an update takes, and what waits for what.

Episodes are sampled side by side, a token of all of them at a time; they differ in length, so that the last ones run
alone. The schedules differ in what happens meanwhile. Times come from `costs.Costs`; nothing here is measured.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field
from math import exp, inf, log, sqrt

from atommem.train.dry_run.costs import Costs

UPDATES, WITHOUT_VARIANCE = 12, 0.3
"""Updates that are simulated; the share of groups that teach nothing, where such groups are replaced: supposed."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Who samples when.

    Attributes:
        name: As printed.
        samplers: Devices that only sample; 0: all of them sample, then train.
        ahead: Updates' worth of groups that may be started before the current update is trained (`max_staleness`).
        replaced: Groups without variance are replaced: ``no``, ``rounds`` (after all others) or ``now`` (as they end).
        carried: An update is trained as soon as its groups are there; running episodes go on after it.
    """

    name: str
    samplers: int = 0
    ahead: int = 0
    replaced: str = "no"
    carried: bool = False


@dataclass(frozen=True, slots=True)
class Timeline:
    """Seconds of an update; shares of time: sampling and training at once, a device doing neither (mean of all)."""

    name: str
    seconds: float
    overlap: float
    idle: float


@dataclass(slots=True)
class _Sampler:
    """One device. `clock` counts tokens that every running episode has got; the heap holds when each ends."""

    clock: float = 0.0
    running: list[tuple[float, int]] = field(default_factory=list)


def schedules(devices: int, ahead: int) -> list[Schedule]:
    """What is worth comparing on so many devices: colocated ones, and half of the devices sampling all the time."""
    colocated = [
        Schedule("colocated, groups without variance replaced in rounds", replaced="rounds"),
        Schedule("colocated, replaced as they end", replaced="now"),
        Schedule("colocated, as they end, episodes carried over updates", replaced="now", carried=True),
    ]
    half = devices // 2
    apart = [
        Schedule(f"asynchronous, {half} sampling, staleness {steps}", half, steps, replaced="now")
        for steps in (0, max(1, ahead))
    ]
    return colocated + apart if half else colocated


def simulate(
    schedule: Schedule,
    costs: Costs,
    *,
    devices: int,
    processes: int,
    groups: int,
    group: int,
    tokens: float,
    spread: float,
) -> Timeline:
    """Run `UPDATES` updates.

    Args:
        schedule: Who does what.
        costs: What that takes: of one of `processes`, among which the work is shared when all of them do all of it.
        devices, processes: That there are, and that `costs` is for.
        groups, group: Of an update, and episodes of each.
        tokens, spread: What an episode samples in the mean, and its standard deviation over that (log-normal).
    """
    rng, wide = random.Random(0), sqrt(log(1 + spread**2))
    samplers = [_Sampler() for _ in range(schedule.samplers or devices)]
    alone, trainers = not schedule.samplers, devices - schedule.samplers
    training = costs.training_seconds * processes / trainers + costs.sync_seconds + costs.switch_seconds * alone
    prompt_seconds = costs.prompt_seconds * processes / (groups * group * tokens)
    left: dict[int, int] = {}
    started = done = ready = useless = released = 0
    now = busy = both = 0.0
    until = inf
    while done < UPDATES:
        is_training = until < inf
        if schedule.replaced == "now" or not left:
            released = useless
        allowed = (done + schedule.ahead + 1 + schedule.carried) * groups + released
        while started < allowed and not (alone and is_training):
            lightest = min(samplers, key=lambda sampler: len(sampler.running))
            for _ in range(group):
                length = tokens * exp(rng.gauss(-(wide**2) / 2, wide))
                heapq.heappush(lightest.running, (lightest.clock + length, started))
            left[started], started = group, started + 1
        if not is_training and ready >= groups:
            ready, until, is_training = ready - groups, now + training, True
        active = [] if alone and is_training else [sampler for sampler in samplers if sampler.running]
        rates = [
            costs.decode_seconds + len(sampler.running) * (costs.sequence_seconds + prompt_seconds)
            for sampler in active
        ]
        ends = [(s.running[0][0] - s.clock) * rate for s, rate in zip(active, rates, strict=True)]
        step = min([*ends, until - now])
        now, busy = now + step, busy + step * (len(active) + trainers * is_training)
        both += step if active and is_training else 0.0
        for sampler, rate in zip(active, rates, strict=True):
            sampler.clock += step / rate
            while sampler.running and sampler.running[0][0] <= sampler.clock * (1 + 1e-12):
                number = heapq.heappop(sampler.running)[1]
                left[number] -= 1
                if not left[number]:
                    del left[number]
                    is_useless = schedule.replaced != "no" and rng.random() < WITHOUT_VARIANCE
                    ready, useless = ready + (not is_useless), useless + is_useless
        if now >= until:
            done, until = done + 1, inf
    return Timeline(schedule.name, now / UPDATES, both / now, 1 - busy / (now * devices))
