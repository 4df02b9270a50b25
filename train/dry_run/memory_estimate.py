"""Peak memory of one process, by part: what torch's allocator gives out, not what it holds back (on GPUs leave 10%).

Every part says its formula. Symbols: P parameters (T of them trained), L layers, h hidden, i intermediate, q and k
widths of queries and of keys, V vocabulary, n tokens of a micro-batch, n_s of them scored, b bytes of an element.
`scripts/bench_dry_run.py` holds them to real runs on CPUs.
"""

from __future__ import annotations

from dataclasses import dataclass

from atommem.train.dry_run.architecture import ModelShape
from atommem.train.dry_run.launcher import GRADIENTS, OPTIMIZER, WEIGHTS, Launch
from atommem.train.dry_run.workload import Workload
from atommem.train.dry_run_config import Device

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
PHASES = ("rollout", "reference", "training", "optimizer step")
CUDA_CONTEXT = 0.6e9
"""A process's CUDA context and the kernels that it has loaded."""
CHECKPOINT, USE_VLLM = "set gradient_checkpointing: true", "sample with vLLM (use_vllm: true)"
NO_KL = "set beta: 0, or share it among more processes"
TOKEN_TILE, GPU_COLUMNS, CPU_COLUMNS = 4096, 32768, 512
"""Rows and columns of a tile of TRL's fused LM head; on CPU, `atommem.train.loops.models` makes it narrow."""


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

    @classmethod
    def of(cls, dtype: str, bf16: bool, launch: Launch, lora: bool) -> Precision:
        """FSDP2 keeps what is trained in float32 under mixed precision; DeepSpeed keeps bfloat16 with a float32 master
        copy; a single process and DDP keep what was loaded (`dtype`). Adapters are float32.
        """
        loaded, sharded = BYTES[dtype], launch.name == "fsdp"
        compute = 2 if bf16 else loaded
        if launch.name.startswith("zero"):
            kept = 2 if bf16 else 4
            return cls(kept, kept, compute, compute, master=4 if bf16 else 0)
        # Under autocast the hidden states have the type of the weights; under FSDP2's policy, that of the products.
        return cls(
            4 if lora or (bf16 and sharded) else loaded,
            loaded,
            compute,
            compute if sharded else loaded,
        )


@dataclass(frozen=True, slots=True)
class Run:
    """What is trained, on what and how."""

    stage: str  # grpo, async, sft
    rollout: str  # where episodes are sampled: local, colocate, server, none
    model: ModelShape
    launch: Launch
    device: Device
    precision: Precision
    checkpointing: bool  # of activations
    optim: str
    beta: float
    share_prefixes: bool  # training computes what rows share once
    sleeps: bool = True  # a colocated engine gives its memory back while the model is trained

    @property
    def has_second_model(self) -> bool:
        """Whether another copy of the model samples while this one is trained."""
        return self.stage == "async" and self.rollout == "local"


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of one part, the phases of an update in which it is there, and what makes it smaller."""

    name: str
    bytes: float
    phases: tuple[str, ...] = PHASES
    remedy: str = "share the model among more processes (launcher fsdp2), or train an adapter (use_peft: true)"


def estimate_memory(run: Run, load: Workload, *, embedder: float, rollout: float) -> list[Part]:
    """All parts, for an update that is not the first (the optimizer has its states).

    `embedder` and `rollout` are bytes of the embedding model, and of sampling while it runs, on this device.
    """
    model, launch, p = run.model, run.launch, run.precision
    resident = 0.0 if launch.offload else 1.0
    gradients = model.trainable * p.trained
    weights = gradients + (model.parameters - model.trainable) * p.frozen
    # AdamW has two states; 8-bit optimizers keep two bytes a parameter, Lion one state, SGD and Adafactor next to none.
    width = p.master or p.trained
    states = {"8bit": 2, "sgd": 0, "adafactor": 0, "lion": width}
    state = p.master + next((size for name, size in states.items() if name in run.optim), 2 * width)
    # The reference of LoRA is the model without its adapter.
    has_reference = run.beta != 0 and not model.lora
    # Processes sample different numbers of tokens, so that none can wait for others to gather a layer.
    samples_whole = run.rollout == "local" and not run.has_second_model and launch.stage >= WEIGHTS
    # Float32 weights under autocast are cast once in a forward pass, and the copies are kept for it.
    is_cast = p.compute < p.frozen and launch.name in ("single", "ddp")
    kept, less = (
        ("checkpointed", "lower micro_batch_tokens") if run.checkpointing else ("all", CHECKPOINT)
    )
    training, updating = ("training",), ("reference", "training", "optimizer step")
    sampling = (
        "vllm_gpu_memory_utilization" if run.rollout == "colocate" else "rollout_batch_tokens"
    )
    stays, wake = (
        run.has_second_model or not run.sleeps,
        "" if run.sleeps else "set vllm_enable_sleep_mode: true, or ",
    )
    scored = round(load.scored_tokens / load.micro_batches)
    parts = [
        Part("weights", resident * weights * launch.share(WEIGHTS)),
        Part("optimizer", resident * model.trainable * state * launch.share(OPTIMIZER)),
        Part(
            "reference model",
            has_reference * model.parameters * p.frozen * launch.share(WEIGHTS),
            remedy=NO_KL,
        ),
        Part(
            "embedder",
            embedder,
            remedy="take a smaller embedder_model, or an embedding server (embedder: http)",
        ),
        Part("CUDA context", 0.0 if run.device.is_cpu else CUDA_CONTEXT),
        Part("gradients", gradients * launch.share(GRADIENTS), updating),
        Part("buckets of DDP", gradients if launch.name == "ddp" else 0.0),
        Part(f"activations ({kept})", activation_bytes(run, load.micro_batch), training, less),
        Part("LM head", head_bytes(run, scored), training, "lower micro_batch_tokens"),
        Part("gathered weights", gathered_bytes(run), training),
        Part(
            "weights gathered for sampling",
            samples_whole * model.parameters * p.compute,
            ("rollout",),
            USE_VLLM,
        ),
        Part("weights cast for autocast", is_cast * model.parameters * p.compute, training),
        Part(
            "gathered reference model",
            has_reference * gathered_bytes(run, backward=False),
            ("reference",),
        ),
        Part("sampling model", run.has_second_model * model.parameters * p.frozen, remedy=USE_VLLM),
        Part("rollout", rollout, PHASES if stays else ("rollout",), f"{wake}lower {sampling}"),
    ]
    return [part for part in parts if part.bytes]


def layer_bytes_per_token(model: ModelShape, stream: int) -> float:
    """What a layer without gradient checkpointing keeps of a token for its backward pass (bytes)::

        2 h b                residual before attention and before the MLP
        2 * 8 h              both norms: normalised, and scaled (in half precision, the float32 copy too)
        (q + k) * (8 + b)    with query and key norm: likewise, and rotated; without it: (q + k) b
        k b + 2 q b          values; attention's output as it comes, and in the order of the tokens
        4 i b                gate, its activation, up, and their product

    With LoRA a norm's weights are frozen, so that what they scaled is not kept: 4 instead of 8.
    """
    (h, i, q, k), b = model.widths, stream
    norm = 4 if model.lora else 8
    rotated = (q + k) * (norm + b if model.query_norm else b)
    return 2 * h * b + 2 * norm * h + rotated + k * b + 2 * q * b + 4 * i * b


def activation_bytes(run: Run, tokens: int) -> float:
    """Of one micro-batch, at the beginning of its backward pass.

    Without gradient checkpointing ``n L layer``, with it ``n (L h b + layer)``: the input of every layer, and all of
    the one that is computed again. To it add gradients on their way through a layer ``n (2 i + 2 h) b``, and embedding
    and last norm ``n (2 h b + 8 h)``.
    """
    (h, i, _, _), layers, b = (
        run.model.widths,
        run.model.config.num_hidden_layers,
        run.precision.stream,
    )
    layer = layer_bytes_per_token(run.model, b)
    kept = layers * h * b + layer if run.checkpointing else layers * layer
    return tokens * (kept + (2 * i + 2 * h) * b + 2 * h * b + 8 * h)


def head_bytes(run: Run, scored: int) -> float:
    """TRL's fused LM head, which never holds logits of all tokens: ``tile + 2 n_s h 4 + V h 4``.

    One tile of logits, the hidden states of the scored tokens and their gradient in float32, and, where the head is
    trained, its gradient in float32.
    """
    columns, hidden = (
        CPU_COLUMNS if run.device.is_cpu else GPU_COLUMNS,
        run.model.config.hidden_size,
    )
    vocabulary = run.model.config.vocab_size
    tile = min(scored, TOKEN_TILE) * min(columns, vocabulary) * run.precision.compute
    return tile + 2 * scored * hidden * 4 + (0 if run.model.lora else vocabulary * hidden * 4)


def gathered_bytes(run: Run, backward: bool = True) -> float:
    """Weights that a process has whole for a moment, or DeepSpeed's 1e9 parameters.

    FSDP2 gathers layer by layer, the next one while one computes, and the embeddings for the whole of the pass:
    ``(2 layer + V h + head) b_compute``; in a backward pass the gradient of a whole layer, too.
    """
    model, compute = run.model, run.precision.compute
    if run.launch.stage < WEIGHTS:
        return 0.0
    if run.launch.name == "zero3":
        return min(model.parameters, 1e9) * compute
    return (
        (2 + backward) * model.layer
        + (1 if model.config.tie_word_embeddings else 2) * model.embedding
    ) * compute


def key_value_bytes_per_token(model: ModelShape, element: int) -> int:
    """``2 L k b``: keys and values of all layers."""
    return 2 * model.config.num_hidden_layers * model.widths[-1] * element


def local_rollout_bytes(run: Run, rows: int, row: int) -> float:
    """Sampling from the training model (`atommem.policy.local`): cache, pass over the prompts, logits.

    ``R T (2 L k b)`` for R rows of T tokens in a batch; beside it either a layer of the pass over the prompts, its MLP
    ``R T (2 h + 3 i) b`` or its attention ``R T ((2 h + 3 q + 2 k) b + T (1 + b))`` with the mask, or, token by token,
    a copy of one layer's cache while it grows and 32 bytes for each of R V logits.
    """
    (h, i, q, k), b, tokens = run.model.widths, run.precision.compute, rows * row
    cache = tokens * key_value_bytes_per_token(run.model, b)
    attention = (2 * h + 3 * q + 2 * k) * b + row * (1 + b)
    prompts = tokens * max((2 * h + 3 * i) * b, attention)
    one_layer, logits = (
        cache / run.model.config.num_hidden_layers,
        rows * run.model.config.vocab_size * 32,
    )
    return cache + max(prompts, one_layer + logits)
