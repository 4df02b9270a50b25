"""Peak memory of one process, by part: what torch's allocator gives out (on GPUs leave 10%).

Symbols: P parameters (T of them trained), L layers, h hidden, i intermediate, q and k widths of
queries and keys, V vocabulary, n tokens of a micro-batch, n_s of them scored, b bytes an element.
"""

from __future__ import annotations

from dataclasses import dataclass

from atommem.train.dry_run.shapes import GRADIENTS, OPTIMIZER, WEIGHTS, Launch, ModelShape
from atommem.train.dry_run.workload import Workload
from atommem.train.dry_run_config import Device

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
PHASES = ("rollout", "training")
CUDA_CONTEXT = 0.6e9
"""A process's CUDA context with loaded kernels."""
TILE_TOKENS, TILE_COLUMNS = 4096, 32768
"""A tile of TRL's fused LM head."""


@dataclass(frozen=True, slots=True)
class Precision:
    """Bytes of an element: of trained and frozen weights, of matrix products and hidden states, and
    of DeepSpeed's master copy of trained weights (0 elsewhere)."""

    trained: int
    frozen: int
    compute: int
    master: int = 0

    @classmethod
    def of(cls, dtype: str, bf16: bool, launch: Launch, lora: bool) -> Precision:
        """Return the precision of a run.

        FSDP2 keeps trained weights in float32 under mixed precision; DeepSpeed keeps bfloat16 and a
        float32 master copy; others keep what was loaded. Adapters are float32.
        """
        loaded = BYTES[dtype]
        compute = 2 if bf16 else loaded
        if launch.name.startswith("zero"):
            kept = 2 if bf16 else 4
            return cls(kept, kept, compute, master=4 if bf16 else 0)
        return cls(4 if lora or (bf16 and launch.name == "fsdp") else loaded, loaded, compute)


@dataclass(frozen=True, slots=True)
class Run:
    """A run: model, devices, precision and backend.

    Attributes:
        stage: grpo or async.
        rollout: Where episodes are sampled: local, colocate or server.
        checkpointing: Of activations.
        share_prefixes: Whether training computes shared prefixes once.
        sleeps: Whether a colocated engine frees its memory during training.
    """

    stage: str
    rollout: str
    model: ModelShape
    launch: Launch
    device: Device
    precision: Precision
    checkpointing: bool
    optim: str
    beta: float
    share_prefixes: bool
    sleeps: bool = True

    @property
    def has_second_model(self) -> bool:
        """Whether another copy of the model samples while this one is trained."""
        return self.stage == "async" and self.rollout == "local"


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of one part, the phases of an update that have it, and what makes it smaller."""

    name: str
    bytes: float
    phases: tuple[str, ...] = PHASES
    remedy: str = "share the model among more processes (fsdp2), or train an adapter (use_peft)"


def estimate_memory(run: Run, load: Workload, *, embedder: float, rollout: float) -> list[Part]:
    """Return all parts, for an update that is not the first (the optimizer has its states).

    `embedder` and `rollout` are bytes of the embedding model, and of sampling.
    """
    model, launch, p = run.model, run.launch, run.precision
    resident = 0.0 if launch.offload else 1.0
    gradients = model.trainable * p.trained
    weights = gradients + (model.parameters - model.trainable) * p.frozen
    # AdamW has two states; 8-bit ones two bytes; Lion one state; SGD and Adafactor almost none.
    width = p.master or p.trained
    states = {"8bit": 2, "sgd": 0, "adafactor": 0, "lion": width}
    state = p.master + next((size for name, size in states.items() if name in run.optim), 2 * width)
    has_reference = run.beta != 0 and not model.lora  # LoRA's is the model without its adapter
    reference = has_reference * model.parameters * p.frozen * launch.share(WEIGHTS)
    gathers = launch.stage >= WEIGHTS
    whole = gathers and run.rollout == "local" and not run.has_second_model
    # Float32 weights under autocast are cast once per forward pass, and the copies are kept.
    is_cast = p.compute < p.frozen and not gathers
    scored = round(load.scored_tokens / load.micro_batches)
    training, rollouts = ("training",), ("rollout",)
    sampling_phases = PHASES if run.has_second_model or not run.sleeps else rollouts
    budget, vllm = "lower micro_batch_tokens", "sample with vLLM (use_vllm: true)"
    activations = budget if run.checkpointing else "set gradient_checkpointing: true"
    sampling = "lower vllm_gpu_memory_utilization, or rollout_batch_tokens without vLLM"
    parts = [
        Part("weights", resident * weights * launch.share(WEIGHTS)),
        Part("optimizer", resident * model.trainable * state * launch.share(OPTIMIZER)),
        Part("reference model", reference, remedy="set beta: 0"),
        Part("embedder", embedder, remedy="use an embedding server (embedder: http)"),
        Part("CUDA context", 0.0 if run.device.is_cpu else CUDA_CONTEXT),
        Part("gradients", gradients * launch.share(GRADIENTS), training),
        Part("buckets of DDP", gradients if launch.name == "ddp" else 0.0),
        Part("activations", activation_bytes(run, load.micro_batch), training, activations),
        Part("LM head", head_bytes(run, scored), training, budget),
        Part("gathered layers", gathers * gathered_bytes(run), training),
        Part("cast weights", is_cast * model.parameters * p.compute, training),
        Part("gathered weights", whole * model.parameters * p.compute, rollouts, vllm),
        Part("sampling model", run.has_second_model * model.parameters * p.frozen, remedy=vllm),
        Part("rollout", rollout, sampling_phases, sampling),
    ]
    return [part for part in parts if part.bytes]


def activation_bytes(run: Run, tokens: int) -> float:
    """Return the activations of one micro-batch at the start of its backward pass.

    A layer keeps, of a token: residuals ``2 h b``; norms ``16 h`` (half with LoRA, whose norms are
    frozen); queries and keys ``(q + k) b``, normalized ``(q + k) (8 + b)``; values and attention
    output ``k b + 2 q b``; MLP ``4 i b``. Without gradient checkpointing L are kept; with it
    the input of each layer and one whole layer. Then come a layer's gradients, and the last norm.
    """
    (h, i, q, k), b = run.model.widths, run.precision.compute
    layers, norm = run.model.config.num_hidden_layers, 4 if run.model.lora else 8
    rotated = (q + k) * (norm + b if run.model.query_norm else b)
    layer = 2 * h * b + 2 * norm * h + rotated + k * b + 2 * q * b + 4 * i * b
    kept = layers * h * b + layer if run.checkpointing else layers * layer
    return tokens * (kept + (2 * i + 2 * h) * b + 2 * h * b + 8 * h)


def head_bytes(run: Run, scored: int) -> float:
    """Return the memory of TRL's fused LM head: ``tile + 2 n_s h 4``, and ``V h 4`` if trained."""
    hidden, vocabulary = run.model.config.hidden_size, run.model.config.vocab_size
    tile = min(scored, TILE_TOKENS) * min(TILE_COLUMNS, vocabulary) * run.precision.compute
    return tile + 2 * scored * hidden * 4 + (0 if run.model.lora else vocabulary * hidden * 4)


def gathered_bytes(run: Run) -> float:
    """Return what is gathered of sharded weights at a time.

    FSDP2: the layer that computes, the next one, a layer's gradient and the embeddings; DeepSpeed:
    at most 1e9 parameters.
    """
    model = run.model
    embeddings = (1 if model.config.tie_word_embeddings else 2) * model.embedding
    whole = 1e9 if run.launch.name == "zero3" else 3 * model.layer + embeddings
    return min(model.parameters, whole) * run.precision.compute


def key_value_bytes_per_token(model: ModelShape, element: int) -> int:
    """Return ``2 L k b``: keys and values of all layers."""
    return 2 * model.config.num_hidden_layers * model.widths[-1] * element


def local_rollout_bytes(run: Run, rows: int, row: int) -> float:
    """Return the memory of sampling `rows` x `row` tokens from the training model.

    The cache, and one layer of the pass over the prompts with its mask, or the logits.
    """
    (h, i, q, k), b, tokens = run.model.widths, run.precision.compute, rows * row
    attention = (2 * h + 3 * q + 2 * k) * b + row * (1 + b)
    prompts = tokens * max((2 * h + 3 * i) * b, attention)
    cache = tokens * key_value_bytes_per_token(run.model, b)
    return cache + max(prompts, rows * run.model.config.vocab_size * 32)
