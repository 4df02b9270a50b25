"""FLOPs and seconds of an update, as formulas.

A parameter costs 2 FLOPs a token in a forward pass and twice that in a backward pass; attention costs ``4 q c L`` a
token with c tokens of context (q: heads x head size, L: layers). All devices are alike.
"""

from __future__ import annotations

from dataclasses import dataclass

from atommem.train.dry_run.architecture import ModelShape
from atommem.train.dry_run.devices import Device
from atommem.train.dry_run.memory_estimate import Run, key_value_bytes_per_token
from atommem.train.dry_run.workload import Workload

DECODE_BANDWIDTH = 0.6
"""Share of a device's memory bandwidth that decoding reaches."""
LOCAL_LAYER_SECONDS = 0.7e-3
"""Overhead of one layer of one decoding step outside vLLM: launching its kernels, on a GPU."""
SYNC_BANDWIDTH = 20e9
"""Bytes/s at which new weights reach an engine, gathering included: supposed."""
WAKE_SECONDS = 2.0
"""For an engine to wake and to go to sleep again, an update: supposed."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What one device takes.

    Attributes:
        rollout_flops, training_flops, reference_flops: Of its share of an update.
        prompt_seconds: To read the prompts of its episodes.
        decode_seconds, sequence_seconds: For one token of every running episode: once, and for each of them more.
        training_seconds: For its share of an update, the reference included.
        sync_seconds: Until new weights can be sampled from.
        switch_seconds: Between sampling and training on the same device.
    """

    rollout_flops: float
    training_flops: float
    reference_flops: float
    prompt_seconds: float
    decode_seconds: float
    sequence_seconds: float
    training_seconds: float
    sync_seconds: float
    switch_seconds: float


def forward_flops(model: ModelShape, tokens: float, scored: float, context: float) -> float:
    """``2 L P_layer n + 4 q c L n + 2 h V n_s``: the LM head only where a log-probability is taken."""
    body = 2 * model.layers * model.layer + 4 * model.query * context * model.layers
    return tokens * body + scored * 2 * model.hidden * model.vocabulary


def training_flops(model: ModelShape, tokens: float, scored: float, context: float, checkpointing: bool) -> float:
    """Three forward passes' worth; one more with gradient checkpointing, one less with LoRA (no weight gradients)."""
    passes = 3 + checkpointing - model.lora
    return passes * forward_flops(model, tokens, scored, context)


def estimate_costs(
    model: ModelShape, load: Workload, device: Device, run: Run, *, utilisation: float, element: int
) -> Costs:
    """FLOPs and seconds of one process.

    Decoding a token reads the weights once and a cache for each running episode, or computes ``2 P`` FLOPs for each,
    whichever takes longer. vLLM's prefix cache reads what a group shares once, as training does.

    Args:
        model, load, device, run: What, how much, on what.
        utilisation: Share of the peak FLOPs.
        element: Bytes of a weight in a matrix product.
    """
    context = (load.prompt_tokens + load.completion_tokens) / 2
    completions = load.rows * load.completion_tokens
    trained = load.unique_tokens if run.share_prefixes else load.raw_tokens
    training = training_flops(model, trained, completions, context, run.gradient_checkpointing)
    reference = forward_flops(model, trained, completions, context) if run.beta else 0.0
    speed, bandwidth = device.flops * utilisation, device.bandwidth * DECODE_BANDWIDTH
    read = (load.raw_tokens if run.rollout == "local" else load.unique_tokens) - completions
    prompts = forward_flops(model, read, load.rows, context) if load.episodes else 0.0
    cache = (load.prompt_tokens + load.completion_tokens / 2) * key_value_bytes_per_token(model, element)
    one = forward_flops(model, 1, 1, load.prompt_tokens + load.completion_tokens / 2)
    sampled = completions * one if load.episodes else 0.0
    launching = model.layers * LOCAL_LAYER_SECONDS if run.rollout == "local" and not device.is_cpu else 0.0
    return Costs(
        rollout_flops=prompts + sampled,
        training_flops=training,
        reference_flops=reference,
        prompt_seconds=prompts / speed,
        decode_seconds=model.parameters * element / bandwidth + launching,
        sequence_seconds=max(cache / bandwidth, one / speed),
        training_seconds=(training + reference) / speed,
        sync_seconds=0.0 if run.rollout == "local" else model.trainable * element / SYNC_BANDWIDTH,
        switch_seconds=WAKE_SECONDS if run.rollout == "colocate" else 0.0,
    )
