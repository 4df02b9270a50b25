"""FLOPs and hours of a run, as formulas.

A parameter costs 2 FLOPs a token in a forward pass and twice that in a backward pass; attention costs ``4 q c L`` a
token with c tokens of context (q: heads x head size, L: layers).
"""

from __future__ import annotations

from dataclasses import dataclass

from atommem.train.dry_run.architecture import ModelShape
from atommem.train.dry_run.devices import Device
from atommem.train.dry_run.memory_estimate import key_value_bytes_per_token
from atommem.train.dry_run.workload import Workload

DECODE_BANDWIDTH = 0.6
"""Share of a device's memory bandwidth that decoding reaches."""
LOCAL_LAYER_SECONDS = 0.7e-3
"""Overhead of one layer of one decoding step outside vLLM: launching its kernels, on a GPU."""


@dataclass(frozen=True, slots=True)
class ComputeEstimate:
    """One process.

    Attributes:
        rollout_flops, training_flops, reference_flops: Of an update.
        rollout_seconds, training_seconds, reference_seconds: Of an update.
        hours: Of the run.
    """

    rollout_flops: float
    training_flops: float
    reference_flops: float
    rollout_seconds: float
    training_seconds: float
    reference_seconds: float
    hours: float


def forward_flops(model: ModelShape, tokens: float, scored: float, context: float) -> float:
    """``2 L P_layer n + 4 q c L n + 2 h V n_s``: the LM head only where a log-probability is taken."""
    body = 2 * model.layers * model.layer + 4 * model.query * context * model.layers
    return tokens * body + scored * 2 * model.hidden * model.vocabulary


def training_flops(model: ModelShape, tokens: float, scored: float, context: float, checkpointing: bool) -> float:
    """Three forward passes' worth; one more with gradient checkpointing, one less with LoRA (no weight gradients)."""
    passes = 3 + checkpointing - model.lora
    return passes * forward_flops(model, tokens, scored, context)


def decode_seconds(model: ModelShape, load: Workload, device: Device, utilisation: float, element: int) -> float:
    """Seconds that an update's completions take to be sampled, all episodes of the process side by side.

    One token for each of E episodes reads the weights once and E caches, or computes ``2 P E`` FLOPs, whichever takes
    longer; an episode of S steps with completions of C tokens does that ``S C`` times.
    """
    context = load.prompt_tokens + load.completion_tokens / 2
    read = model.parameters * element + load.episodes * context * key_value_bytes_per_token(model, element)
    flops = load.episodes * forward_flops(model, 1, 1, context)
    once = max(read / (device.bandwidth * DECODE_BANDWIDTH), flops / (device.flops * utilisation))
    return load.steps * load.completion_tokens * once


def estimate_compute(
    model: ModelShape,
    load: Workload,
    device: Device,
    *,
    utilisation: float,
    element: int,
    gradient_checkpointing: bool,
    beta: float,
    share_prefixes: bool,
    cached_prefixes: bool,
    local_rollout: bool,
    overlap: bool = False,
) -> ComputeEstimate:
    """FLOPs and time of one process.

    Args:
        model, load, device: What, how much, on what.
        utilisation: Share of the peak FLOPs.
        element: Bytes of a weight in a matrix product.
        gradient_checkpointing: As trained.
        beta: Coefficient of the KL term: above 0, the reference reads everything once.
        share_prefixes: Whether training computes shared tokens once.
        cached_prefixes: Whether sampling does (vLLM's prefix cache).
        local_rollout: Sampling outside vLLM, which has the launching of kernels on top.
        overlap: Sampling goes on while the model is trained.
    """
    context = (load.prompt_tokens + load.completion_tokens) / 2
    completions = load.rows * load.completion_tokens
    trained = load.unique_tokens if share_prefixes else load.raw_tokens
    training = training_flops(model, trained, completions, context, gradient_checkpointing)
    reference = forward_flops(model, trained, completions, context) if beta else 0.0
    rollout = rollout_seconds = 0.0
    if load.episodes:
        read = (load.unique_tokens if cached_prefixes else load.raw_tokens) - completions
        prompts = forward_flops(model, read, load.rows, context)
        rollout = prompts + forward_flops(model, completions, completions, load.prompt_tokens)
        rollout_seconds = prompts / (device.flops * utilisation)
        rollout_seconds += decode_seconds(model, load, device, utilisation, element)
        if local_rollout and not device.is_cpu:
            rollout_seconds += load.steps * load.completion_tokens * model.layers * LOCAL_LAYER_SECONDS
    training_seconds = training / (device.flops * utilisation)
    reference_seconds = reference / (device.flops * utilisation)
    trained_seconds = training_seconds + reference_seconds
    seconds = max(rollout_seconds, trained_seconds) if overlap else rollout_seconds + trained_seconds
    return ComputeEstimate(
        rollout,
        training,
        reference,
        rollout_seconds,
        training_seconds,
        reference_seconds,
        load.updates * seconds / 3600,
    )
