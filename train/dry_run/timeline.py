"""How long an update takes: costs of a device as formulas, and a simulated timeline of several.

A parameter costs 2 FLOPs a token in a forward pass and twice that in a backward pass; attention
costs ``4 q c L`` a token with c tokens of context (q: heads x head size, L: layers). Episodes are
sampled side by side and differ in length, so that the last ones run alone. Nothing is measured.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field
from math import exp, inf, log, sqrt

from atommem.train.dry_run.memory import Run, key_value_bytes_per_token
from atommem.train.dry_run.shapes import ModelShape
from atommem.train.dry_run.workload import Workload

DECODE_BANDWIDTH = 0.6
"""Share of a device's memory bandwidth that decoding reaches."""
LOCAL_LAYER_SECONDS = 0.7e-3
"""Overhead of launching one layer's kernels in a decoding step outside of vLLM, on a GPU."""
SYNC_BANDWIDTH = 20e9
"""Bytes/s at which new weights reach an engine: assumed."""
WAKE_SECONDS = 2.0
"""For a colocated engine to wake and sleep in an update: assumed."""
UPDATES, WITHOUT_VARIANCE = 12, 0.3
"""Simulated rollouts; share of groups without variance, where they are replaced: assumed."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of one process.

    Attributes:
        prompts: To read the prompts of its episodes.
        decode: For one token of every running episode.
        sequence: Added for each of them.
        training: For its share of an update, with the reference.
        sync: Until new weights can be sampled from.
        switch: Between sampling and training on the same device.
    """

    prompts: float
    decode: float
    sequence: float
    training: float
    sync: float
    switch: float


def forward_flops(model: ModelShape, tokens: float, scored: float, context: float) -> float:
    """Return ``2 L P_layer n + 4 q c L n + 2 h V n_s``."""
    hidden, _, query, _ = model.widths
    body = model.config.num_hidden_layers * (2 * model.layer + 4 * query * context)
    return tokens * body + scored * 2 * hidden * model.config.vocab_size


def estimate_costs(run: Run, load: Workload, utilisation: float) -> Costs:
    """Estimate costs at a share `utilisation` of the device's peak FLOPs.

    Training costs three forward passes; one more with gradient checkpointing and one with a
    reference, one less with LoRA. Decoding a token reads the weights once and a cache for each
    running episode, or computes ``2 P`` FLOPs for each, whichever takes longer.
    """
    model, element = run.model, run.precision.compute
    speed, bandwidth = run.device.flops * utilisation, run.device.bandwidth * DECODE_BANDWIDTH
    context = (load.prompt_tokens + load.completion_tokens) / 2
    reached = load.prompt_tokens + load.completion_tokens / 2
    trained = load.unique_tokens if run.share_prefixes else load.raw_tokens
    passes = 3 + run.checkpointing - model.lora + (run.beta != 0)
    is_local = run.rollout == "local"
    read = (load.raw_tokens if is_local else load.unique_tokens) - load.scored_tokens
    cache = reached * key_value_bytes_per_token(model, element)
    launching = 0.0
    if is_local and not run.device.is_cpu:
        launching = model.config.num_hidden_layers * LOCAL_LAYER_SECONDS
    return Costs(
        prompts=forward_flops(model, read, load.rows, context) / speed,
        decode=model.parameters * element / bandwidth + launching,
        sequence=max(cache / bandwidth, forward_flops(model, 1, 1, reached) / speed),
        training=passes * forward_flops(model, trained, load.scored_tokens, context) / speed,
        sync=0.0 if is_local else model.trainable * element / SYNC_BANDWIDTH,
        switch=WAKE_SECONDS if run.rollout == "colocate" and run.sleeps else 0.0,
    )


@dataclass(frozen=True, slots=True)
class Schedule:
    """An order of sampling and training.

    Attributes:
        samplers: Devices that only sample; 0: all sample, then train.
        ahead: Updates' worth of groups that may start early (`max_staleness`).
        replaced: Whether groups without variance are replaced: no, in rounds (after all others), or
            now (as they end).
        carried: Whether running episodes continue after an update (`carried_groups`).
    """

    name: str
    samplers: int = 0
    ahead: int = 0
    replaced: str = "no"
    carried: bool = False


@dataclass(frozen=True, slots=True)
class Timeline:
    """Seconds of an update; shares of overlapping sampling and training, and of idle devices."""

    name: str
    seconds: float
    overlap: float
    idle: float


@dataclass(slots=True)
class _Sampler:
    """One device: tokens that every running episode has sampled, and a heap of their ends."""

    clock: float = 0.0
    running: list[tuple[float, int]] = field(default_factory=list)


def schedules(devices: int, ahead: int) -> list[Schedule]:
    """Return alternatives to compare: all devices colocated, or half of them sampling."""
    rounds = Schedule("colocated, groups without variance replaced in rounds", replaced="rounds")
    now = Schedule("colocated, replaced as they end", replaced="now")
    carried = Schedule("colocated, replaced, episodes carried over", replaced="now", carried=True)
    half = devices // 2
    apart = [
        Schedule(f"asynchronous, {half} sampling, staleness {steps}", half, steps, replaced="now")
        for steps in (0, max(1, ahead))
    ]
    return [rounds, now, carried, *(apart if half else [])]


def simulate(
    schedule: Schedule, costs: Costs, load: Workload, *, devices: int, processes: int
) -> Timeline:
    """Simulate `UPDATES` rollouts on `devices`; `costs` and `load` are of one of `processes`.

    The length of an episode is log-normal.
    """
    rng, wide = random.Random(0), sqrt(log(1 + load.spread**2))
    samplers = [_Sampler() for _ in range(schedule.samplers or devices)]
    alone, trainers = not schedule.samplers, devices - schedule.samplers
    updates, episodes = load.sharing * load.iterations, load.episodes * load.sharing * processes
    training = updates * costs.training * processes / trainers + costs.sync + costs.switch * alone
    groups, group, tokens = load.tasks, episodes // load.tasks, load.steps * load.completion_tokens
    prompt_seconds = costs.prompts / (load.episodes * tokens)
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
        active = (
            [] if alone and is_training else [sampler for sampler in samplers if sampler.running]
        )
        rates = [
            costs.decode + len(sampler.running) * (costs.sequence + prompt_seconds)
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
    return Timeline(schedule.name, now / UPDATES / updates, both / now, 1 - busy / (now * devices))
