"""Peak memory of one process, by part: what torch's allocator gives out, not what it holds back (on GPUs leave 10%).

Every part says its formula. Symbols: P parameters (T of them trained), L layers, h hidden, i intermediate, q and k
widths of queries and of keys, V vocabulary, n tokens of a micro-batch, n_s of them scored, b bytes of an element.
`scripts/bench_dry_run.py` holds them to real runs on CPUs.
"""

from __future__ import annotations

from dataclasses import dataclass

from atommem.train.dry_run.architecture import ModelShape
from atommem.train.dry_run.launcher import Launch
from atommem.train.dry_run.workload import Workload

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
PHASES = ("rollout", "reference", "training", "optimizer step")
CUDA_CONTEXT = 0.6e9
"""A process's CUDA context and the kernels that it has loaded."""
TOKEN_TILE, GPU_COLUMNS, CPU_COLUMNS = 4096, 32768, 512
"""Rows and columns of a tile of TRL's fused LM head; on CPU, `atommem.train.loops.models` makes it narrow."""


@dataclass(frozen=True, slots=True)
class Run:
    """What the settings say of a run.

    Attributes:
        stage: ``grpo``, ``async`` or ``sft``.
        rollout: Where episodes are sampled: ``local``, ``colocate``, ``server`` or ``none``.
        gradient_checkpointing, optim, beta: As trained.
        share_prefixes: Whether training computes what rows share once.
    """

    stage: str
    rollout: str
    gradient_checkpointing: bool
    optim: str
    beta: float
    share_prefixes: bool


@dataclass(frozen=True, slots=True)
class Precision:
    """Bytes of an element: of weights as they are kept (trained, frozen), of matrix products, of the hidden states
    between layers, and of the master copy that DeepSpeed's optimizer keeps of what is trained (0 elsewhere).
    """

    trained: int
    frozen: int
    compute: int
    stream: int
    master: int = 0


def precision_of(dtype: str, bf16: bool, launch: Launch, lora: bool) -> Precision:
    """How the weights are kept and computed with.

    FSDP2 keeps what is trained in float32 under mixed precision; DeepSpeed keeps bfloat16 with a float32 master copy; a
    single process and DDP keep what was loaded (`dtype`). Adapters are float32.
    """
    loaded = BYTES[dtype]
    compute = 2 if bf16 else loaded
    if launch.name.startswith("zero"):
        kept = 2 if bf16 else 4
        return Precision(kept, kept, compute, compute, master=4 if bf16 else 0)
    sharded = launch.name == "fsdp"
    # Under autocast the hidden states have the type of the weights; under FSDP2's policy, that of the products.
    return Precision(4 if lora or (bf16 and sharded) else loaded, loaded, compute, compute if sharded else loaded)


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


def optimizer_bytes(model: ModelShape, precision: Precision, launch: Launch, optim: str) -> float:
    """AdamW: ``2 T b`` with b of the trained weights, or of DeepSpeed's float32 master copy, which is added.

    8-bit optimizers keep two bytes a parameter, Lion one state, SGD and Adafactor next to nothing.
    """
    width = precision.master or precision.trained
    states = {"8bit": 2, "sgd": 0, "adafactor": 0, "lion": width}
    state = next((size for name, size in states.items() if name in optim), 2 * width)
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

    Without gradient checkpointing ``n L layer``, with it ``n (L h b + layer)``: the input of every layer, and all of
    the one that is computed again. To it add gradients on their way through a layer ``n (2 i + 2 h) b``, and embedding
    and last norm ``n (2 h b + 8 h)``.
    """
    h, b = model.hidden, stream
    layer = layer_bytes_per_token(model, b)
    kept = model.layers * h * b + layer if gradient_checkpointing else model.layers * layer
    return tokens * (kept + (2 * model.intermediate + 2 * h) * b + 2 * h * b + 8 * h)


def head_bytes(model: ModelShape, scored: int, precision: Precision, on_cpu: bool) -> float:
    """TRL's fused LM head, which never holds logits of all tokens: ``tile + 2 n_s h 4 + V h 4``.

    One tile of logits, the hidden states of the scored tokens and their gradient in float32, and, where the head is
    trained, its gradient in float32.
    """
    columns = CPU_COLUMNS if on_cpu else GPU_COLUMNS
    tile = min(scored, TOKEN_TILE) * min(columns, model.vocabulary) * precision.compute
    return tile + 2 * scored * model.hidden * 4 + (0 if model.lora else model.vocabulary * model.hidden * 4)


def gathered_bytes(model: ModelShape, precision: Precision, launch: Launch, backward: bool = True) -> float:
    """Weights that a process has whole for a moment, or DeepSpeed's 1e9 parameters.

    FSDP2 gathers layer by layer, the next one while one computes, and the embeddings for the whole of the pass:
    ``(2 layer + V h + head) b_compute``; in a backward pass the gradient of a whole layer, too.
    """
    if not launch.weights:
        return 0.0
    if launch.name == "zero3":
        return min(model.parameters, 1e9) * precision.compute
    return ((2 + backward) * model.layer + (1 if model.tied else 2) * model.embedding) * precision.compute


def autocast_bytes(model: ModelShape, precision: Precision, launch: Launch) -> float:
    """``2 P``: float32 weights under autocast are cast once in a forward pass, and the copies are kept for it."""
    cast = precision.compute < precision.frozen and not launch.weights and not launch.name.startswith("zero")
    return model.parameters * precision.compute if cast else 0.0


def reference_bytes(model: ModelShape, precision: Precision, launch: Launch, beta: float) -> tuple[float, float]:
    """The copy of the model that a KL term needs, ``P b_frozen`` shared out, and what is gathered of it while it runs.

    None with LoRA, whose reference is the model without its adapter.
    """
    if beta == 0 or model.lora:
        return 0.0, 0.0
    shared = model.parameters * precision.frozen * launch.share(launch.weights)
    return shared, gathered_bytes(model, precision, launch, backward=False)


def key_value_bytes_per_token(model: ModelShape, element: int) -> int:
    """``2 L k b``: keys and values of all layers."""
    return 2 * model.layers * model.key_value * element


def local_rollout_bytes(model: ModelShape, precision: Precision, rows: int, row: int) -> float:
    """Sampling from the training model (`atommem.policy.local`): cache, pass over the prompts, logits.

    ``R T (2 L k b)`` for R rows of T tokens in a batch; beside it either a layer of the pass over the prompts, its MLP
    ``R T (2 h + 3 i) b`` or its attention ``R T ((2 h + 3 q + 2 k) b + T (1 + b))`` with the mask, or, token by token,
    a copy of one layer's cache while it grows and 32 bytes for each of R V logits.
    """
    b, tokens = precision.compute, rows * row
    cache = tokens * key_value_bytes_per_token(model, b)
    attention = (2 * model.hidden + 3 * model.query + 2 * model.key_value) * b + row * (1 + b)
    prompts = tokens * max((2 * model.hidden + 3 * model.intermediate) * b, attention)
    return cache + max(prompts, cache / model.layers + rows * model.vocabulary * 32)


def estimate_memory(
    model: ModelShape,
    precision: Precision,
    launch: Launch,
    load: Workload,
    run: Run,
    *,
    embedder: float,
    rollout: float,
    on_cpu: bool,
) -> MemoryEstimate:
    """All parts, for an update that is not the first (the optimizer has its states).

    Args:
        model, precision, launch, load, run: What is trained, and how.
        embedder, rollout: Bytes of the embedding model, and of sampling while it runs, on this device.
        on_cpu: No CUDA context; narrow tiles.
    """
    scored = round(load.rows * load.completion_tokens / load.micro_batches)
    second_model = run.stage == "async" and run.rollout == "local"
    reference, gathered_reference = reference_bytes(model, precision, launch, run.beta)
    resident = 0.0 if launch.offload else 1.0
    frozen = (model.parameters - model.trainable) * precision.frozen
    weights = (model.trainable * precision.trained + frozen) * launch.share(launch.weights)
    gradients = model.trainable * precision.trained
    # Processes sample different numbers of tokens, so that none can wait for others to gather a layer.
    samples_itself = run.rollout == "local" and not second_model
    whole = model.parameters * precision.compute if samples_itself and launch.weights else 0.0
    trained = ("reference", "training", "optimizer step")
    parts = (
        Part("weights", resident * weights, PHASES),
        Part("optimizer", resident * optimizer_bytes(model, precision, launch, run.optim), PHASES),
        Part("reference model", reference, PHASES),
        Part("embedder", embedder, PHASES),
        Part("CUDA context", 0.0 if on_cpu else CUDA_CONTEXT, PHASES),
        Part("gradients", gradients * launch.share(launch.gradients), trained),
        Part("buckets of DDP", gradients if launch.name == "ddp" else 0.0, PHASES),
        Part(
            "activations" + (" (checkpointed)" if run.gradient_checkpointing else ""),
            activation_bytes(model, load.micro_batch, precision.stream, run.gradient_checkpointing),
            ("training",),
        ),
        Part("LM head", head_bytes(model, scored, precision, on_cpu), ("training",)),
        Part("gathered weights", gathered_bytes(model, precision, launch), ("training",)),
        Part("weights gathered for sampling", whole, ("rollout",)),
        Part("weights cast for autocast", autocast_bytes(model, precision, launch), ("training",)),
        Part("gathered reference model", gathered_reference, ("reference",)),
        Part("sampling model", model.parameters * precision.frozen if second_model else 0.0, PHASES),
        Part("rollout", rollout, PHASES if second_model else ("rollout",)),
    )
    return MemoryEstimate(tuple(part for part in parts if part.bytes))
