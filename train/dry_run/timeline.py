"""How long an update takes, by formulas from a device's data sheet; nothing is measured.

A parameter costs 2 FLOPs a token in a forward pass and twice that in a backward pass; attention
costs ``4 q c L`` a token with c tokens of context (q: heads x head size, L: layers).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import NormalDist

from atommem.train.dry_run.memory import Run, key_value_bytes_per_token
from atommem.train.dry_run.shapes import ModelShape
from atommem.train.dry_run.workload import Workload

DECODE_BANDWIDTH = 0.6
"""Share of a device's memory bandwidth that decoding reaches."""
LOCAL_LAYER_SECONDS = 0.7e-3
"""Overhead of launching one layer's kernels in a decoding step outside of vLLM, on a GPU."""
SYNC_BANDWIDTH, WAKE_SECONDS = 20e9, 2.0
"""Bytes/s of new weights to an engine; for a colocated one to wake and sleep: assumed."""
WITHOUT_VARIANCE = 0.3
"""Share of groups without variance, where they are replaced: assumed."""
SPREAD = 0.3
"""Standard deviation over mean of the tokens of an episode, log-normal: assumed."""


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
    """Devices that only sample (0: all sample, then train), and `max_staleness`."""

    name: str
    samplers: int = 0
    staleness: int = 0


@dataclass(frozen=True, slots=True)
class Timeline:
    """Seconds of an update of a schedule, and of its sampling and training."""

    name: str
    seconds: float
    sampling: float
    training: float


def schedules(devices: int) -> list[Schedule]:
    """Return alternatives to compare: all devices colocated, or half of them sampling."""
    half = devices // 2
    apart = [
        Schedule(f"asynchronous, {half} sampling, staleness {steps}", half, steps)
        for steps in (0, 1)
    ]
    return [Schedule("colocated"), *(apart if half else [])]


def estimate_timeline(
    schedule: Schedule,
    costs: Costs,
    load: Workload,
    *,
    devices: int,
    processes: int,
    replaced: bool,
) -> Timeline:
    """Estimate an update on `devices`; `costs` and `load` are of one of `processes`.

    Episodes are sampled side by side: together they cost ``sequence`` a token each, and ``decode``
    a token of the longest. With a staleness, new episodes take the places of those that have ended,
    so that nothing waits for the longest, and sampling and training overlap.

    Args:
        replaced: Whether groups without variance are sampled again.
    """
    samplers, updates = schedule.samplers or devices, load.sharing * load.iterations
    episodes = load.episodes * load.sharing * processes / samplers
    tokens, wide = load.steps * load.completion_tokens, sqrt(log(1 + SPREAD**2))
    quantile = NormalDist().inv_cdf(1 - 0.5 / max(1.0, episodes * samplers))
    longest = 1.0 if schedule.staleness else max(1.0, exp(wide * quantile - wide**2 / 2))
    prompts = costs.prompts * episodes / load.episodes
    sampling = prompts + tokens * (costs.decode * longest + costs.sequence * episodes)
    sampling /= 1 - WITHOUT_VARIANCE * replaced
    trainers = devices - schedule.samplers
    training = updates * costs.training * processes / trainers + costs.sync
    training += 0.0 if schedule.samplers else costs.switch
    seconds = max(sampling, training) if schedule.staleness else sampling + training
    return Timeline(schedule.name, seconds / updates, sampling / updates, training / updates)
