"""Peak memory of one process, by part.

Every part is a pure function of the model's shape and the settings, and says its formula. Symbols: P parameters
(T of them trained), L layers, h hidden, i intermediate, q and k widths of queries and of keys, V vocabulary, n tokens
of a micro-batch, b bytes of an element. Not in it: what an allocator holds back (on GPUs, leave some 10%).
"""

from __future__ import annotations

from dataclasses import dataclass

from atommem.train.dry_run.architecture import ModelShape
from atommem.train.dry_run.launcher import Launch

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
PHASES = ("rollout", "reference", "training", "optimizer step")
CUDA_CONTEXT = 0.6e9
"""A process's CUDA context and the kernels that it has loaded."""
TOKEN_TILE, GPU_COLUMNS, CPU_COLUMNS = 4096, 32768, 512
"""Rows and columns of a tile of TRL's fused LM head; on CPU, `atommem.train.loops.models` makes it narrow."""


@dataclass(frozen=True, slots=True)
class Precision:
    """Bytes of an element.

    Attributes:
        trained, frozen: Of weights, as they are kept.
        compute: In matrix products.
        stream: Of the hidden states between layers.
        master: Of the copy that DeepSpeed's optimizer keeps of what is trained; 0 elsewhere.
    """

    trained: int
    frozen: int
    compute: int
    stream: int
    master: int = 0


def precision_of(dtype: str, bf16: bool, launch: Launch, lora: bool) -> Precision:
    """How the weights are kept and computed with.

    Args:
        dtype: What the weights are loaded as.
        bf16: Mixed precision.
        launch: FSDP2 keeps what is trained in float32 under mixed precision; DeepSpeed keeps bfloat16 with a float32
            master copy in the optimizer; a single process and DDP keep what was loaded.
        lora: Adapters are float32.
    """
    loaded = BYTES[dtype]
    compute = 2 if bf16 else loaded
    if launch.name.startswith("zero"):
        kept = 2 if bf16 else 4
        return Precision(kept, kept, compute, compute, master=4 if bf16 else 0)
    trained = 4 if lora or (bf16 and launch.name == "fsdp") else loaded
    # Under autocast the hidden states have the type of the weights; under FSDP2's policy, that of the products.
    return Precision(trained, loaded, compute, compute if launch.name == "fsdp" else loaded)


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of one part, and the phases of an update in which it is there."""

    name: str
    bytes: float
    phases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """All parts of one process."""

    parts: tuple[Part, ...]

    def phase(self, name: str) -> float:
        """Bytes in one phase."""
        return sum(part.bytes for part in self.parts if name in part.phases)

    @property
    def peak(self) -> float:
        """Bytes in the phase that needs the most."""
        return max(self.phase(name) for name in PHASES)


def weight_bytes(model: ModelShape, precision: Precision, launch: Launch) -> float:
    """``T b_trained + (P - T) b_frozen``, divided by the processes that share it."""
    frozen = model.parameters - model.trainable
    return (model.trainable * precision.trained + frozen * precision.frozen) * launch.share(launch.weights)


def gradient_bytes(model: ModelShape, precision: Precision, launch: Launch) -> float:
    """``T b_trained``; DDP has them twice, in its buckets as well."""
    copies = 2 if launch.name == "ddp" else 1
    return copies * model.trainable * precision.trained * launch.share(launch.gradients)


def optimizer_bytes(model: ModelShape, precision: Precision, launch: Launch, optim: str) -> float:
    """AdamW: ``2 T b`` with b of the trained weights, or of DeepSpeed's float32 master copy, which is added.

    8-bit optimizers keep two bytes a parameter, Lion one state, SGD and Adafactor next to nothing.
    """
    width = precision.master or precision.trained
    if "8bit" in optim:
        state = 2
    elif "sgd" in optim or "adafactor" in optim:
        state = 0
    else:
        state = width if "lion" in optim else 2 * width
    return model.trainable * (state + precision.master) * launch.share(launch.optimizer)


def layer_bytes_per_token(model: ModelShape, stream: int) -> float:
    """What a layer without gradient checkpointing keeps of a token for its backward pass (bytes)::

        2 h b                residual before attention and before the MLP
        2 * 8 h              both norms: normalised, and scaled (in half precision, the float32 copy too)
        (q + k) * (8 + b)    with query and key norm: likewise, and rotated; without it: (q + k) b
        k b + 2 q b          values; attention's output as it comes, and in the order of the tokens
        4 i b                gate, its activation, up, and their product

    With LoRA a norm's weights are frozen, so that what they scaled is not kept: 4 instead of 8.
    """
    h, i, q, k, b = model.hidden, model.intermediate, model.query, model.key_value, stream
    norm = 4 if model.lora else 8
    rotated = (q + k) * (norm + b if model.query_norm else b)
    return 2 * h * b + 2 * norm * h + rotated + k * b + 2 * q * b + 4 * i * b


def activation_bytes(model: ModelShape, tokens: int, stream: int, gradient_checkpointing: bool) -> float:
    """Of one micro-batch, at the beginning of its backward pass.

    Without gradient checkpointing ``n L layer``, with it ``n (L h b + layer)``: the input of every layer, and all
    of the one that is computed again. To it add gradients on their way through a layer ``n (2 i + 2 h) b``, and
    embedding and last norm ``n (2 h b + 8 h)``.
    """
    h, b = model.hidden, stream
    layer = layer_bytes_per_token(model, b)
    kept = model.layers * h * b + layer if gradient_checkpointing else model.layers * layer
    return tokens * (kept + (2 * model.intermediate + 2 * h) * b + 2 * h * b + 8 * h)


def head_bytes(model: ModelShape, scored: int, precision: Precision, launch: Launch, on_cpu: bool) -> float:
    """TRL's fused LM head, which never holds logits of all tokens.

    ``tile + 2 n_s h 4 + V h 4``: one tile of logits, the hidden states of the n_s scored tokens and their gradient in
    float32, and, where the head is trained, its gradient in float32. FSDP2 gathers the head's weights for it.
    """
    columns = CPU_COLUMNS if on_cpu else GPU_COLUMNS
    tile = min(scored, TOKEN_TILE) * min(columns, model.vocabulary) * precision.compute
    head = model.vocabulary * model.hidden
    gradient = 0 if model.lora else head * 4
    gathered = head * (precision.frozen if model.lora else precision.trained) if launch.weights else 0
    return tile + 2 * scored * model.hidden * 4 + gradient + gathered


def gathered_bytes(model: ModelShape, precision: Precision, launch: Launch) -> float:
    """Weights that a process has whole for a moment: ``(2 layer + 2 V h) b_compute``, or DeepSpeed's 1e9 parameters."""
    if not launch.weights:
        return 0.0
    if launch.name == "zero3":
        return min(model.parameters, 1e9) * precision.compute
    return (2 * model.layer + (1 if model.tied else 2) * model.embedding) * precision.compute


def autocast_bytes(model: ModelShape, precision: Precision, launch: Launch) -> float:
    """``2 P``: float32 weights under autocast are cast once in a forward pass, and the copies are kept for it."""
    cast = precision.compute < precision.frozen and not launch.weights and not launch.name.startswith("zero")
    return model.parameters * precision.compute if cast else 0.0


def reference_bytes(model: ModelShape, precision: Precision, launch: Launch, beta: float) -> tuple[float, float]:
    """The copy of the model that a KL term needs, and what is gathered of it while it runs.

    ``P b_frozen``, divided by the processes that share it; none with LoRA, whose reference is the model without its
    adapter. TRL makes it one FSDP2 unit: all of it is gathered at once.
    """
    if beta == 0 or model.lora:
        return 0.0, 0.0
    gathered = model.parameters * precision.compute if launch.weights and launch.name == "fsdp" else 0.0
    return model.parameters * precision.frozen * launch.share(launch.weights), gathered


def key_value_bytes_per_token(model: ModelShape, element: int) -> int:
    """``2 L k b``: keys and values of all layers."""
    return 2 * model.layers * model.key_value * element


def local_rollout_bytes(
    model: ModelShape, precision: Precision, *, batch_tokens: int, batch_size: int, row: int, episodes: int
) -> float:
    """Sampling from the training model (`atommem.policy.local`): cache, pass over the prompts, logits.

    ``R T (2 L k b)`` for R rows of T tokens in a batch, a copy of one layer's cache while it grows,
    ``R T (4 h + 3 i) b`` for one layer of the pass over the prompts, ``R T^2 (1 + b)`` for its mask, and 32 bytes for
    each of R V logits.
    """
    b = precision.compute
    rows = max(1, min(batch_size, episodes, batch_tokens // row))
    tokens = rows * row
    cache = tokens * key_value_bytes_per_token(model, b) * (1 + 1 / model.layers)
    prompts = tokens * (4 * model.hidden + 3 * model.intermediate) * b + rows * row**2 * (1 + b)
    return cache + max(prompts, rows * model.vocabulary * 32)


def estimate_memory(
    model: ModelShape,
    precision: Precision,
    launch: Launch,
    *,
    micro_batch: int,
    scored: int,
    gradient_checkpointing: bool,
    optim: str,
    beta: float,
    embedder: float,
    rollout: float,
    on_cpu: bool,
    samples_itself: bool = False,
    second_model: bool = False,
) -> MemoryEstimate:
    """All parts, for an update that is not the first (the optimizer has its states).

    Args:
        model, precision, launch: What is trained, and how.
        micro_batch: Tokens of a micro-batch.
        scored: Of them, those whose log-probability is taken.
        gradient_checkpointing: Compute layers again instead of keeping what they made.
        optim: Name of the optimizer.
        beta: Coefficient of the KL term.
        embedder: Bytes of the embedding model on this device.
        rollout: Bytes that sampling takes on this device while it runs.
        on_cpu: No CUDA context; narrow tiles.
        samples_itself: Episodes are sampled from the training model.
        second_model: Sampling goes on all the time, from a copy of the weights.
    """
    reference, gathered_reference = reference_bytes(model, precision, launch, beta)
    resident = 0.0 if launch.offload else 1.0
    # Processes sample different numbers of tokens, so that none can wait for others to gather a layer.
    whole = model.parameters * precision.compute if samples_itself and launch.weights else 0.0
    parts = (
        Part("weights", resident * weight_bytes(model, precision, launch), PHASES),
        Part("optimizer", resident * optimizer_bytes(model, precision, launch, optim), PHASES),
        Part("reference model", reference, PHASES),
        Part("embedder", embedder, PHASES),
        Part("CUDA context", 0.0 if on_cpu else CUDA_CONTEXT, PHASES),
        Part("gradients", gradient_bytes(model, precision, launch), ("reference", "training", "optimizer step")),
        Part(
            "activations" + (" (checkpointed)" if gradient_checkpointing else ""),
            activation_bytes(model, micro_batch, precision.stream, gradient_checkpointing),
            ("training",),
        ),
        Part("LM head", head_bytes(model, scored, precision, launch, on_cpu), ("training",)),
        Part("gathered weights", gathered_bytes(model, precision, launch), ("training",)),
        Part("weights gathered for sampling", whole, ("rollout",)),
        Part("weights cast for autocast", autocast_bytes(model, precision, launch), ("training",)),
        Part("gathered reference model", gathered_reference, ("reference",)),
        Part("sampling model", model.parameters * precision.frozen if second_model else 0.0, PHASES),
        Part("rollout", rollout, PHASES if second_model else ("rollout",)),
    )
    return MemoryEstimate(tuple(part for part in parts if part.bytes))
