"""Memory and time of an update by formulas, from shapes and a device's data sheet.

Memory is what torch's allocator gives out at the peak (on GPUs leave 10%). Symbols: L layers, h
hidden, i intermediate, q and k widths of queries and keys, V vocabulary, n tokens of a micro-batch,
n_s of them scored, b bytes an element. A parameter costs 2 FLOPs a token in a forward pass and
twice that in a backward pass; attention costs ``4 q c L`` a token with c tokens of context. Layers
with a recurrent state (DeltaNet) count as ones of attention, but have no cache and no context.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import NormalDist

from atommem.train.devices import Device
from atommem.train.dry_run.shapes import GRADIENTS, OPTIMIZER, WEIGHTS, Launch, ModelShape, Workload
from atommem.train.packing.micro_batch import widths

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
PHASES = ("rollout", "training")
CUDA_CONTEXT = 0.6e9  # a process's CUDA context with loaded kernels
TILE_TOKENS, TILE_COLUMNS = 4096, 32768  # a tile of TRL's fused LM head
UTILISATION, DECODE_BANDWIDTH = 0.4, 0.6  # assumed shares of peak FLOPs, and of bandwidth
LOCAL_LAYER_SECONDS = 0.7e-3  # launching a layer's kernels in a decoding step outside of vLLM
ENGINE_BYTES, SERVER_SHARE = 2e9, 0.92  # vLLM's graphs and workspace (assumed), default share
EXCHANGE_SECONDS = 20e-6  # an all-reduce of a decoding step in a tensor-parallel engine: assumed
SYNC_BANDWIDTH, WAKE_SECONDS = 20e9, 2.0  # new weights to an engine, bytes/s; its waking: assumed
SPREAD = 0.3  # standard deviation over mean of the tokens of an episode, log-normal: assumed


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
        """Return the precision of a run; frozen weights keep what was loaded."""
        loaded = BYTES[dtype]
        compute = 2 if bf16 else loaded if lora else 4
        if launch.name.startswith("zero"):
            kept = 2 if bf16 else 4
            return cls(kept, kept, compute, master=4 if bf16 else 0)
        return cls(4, loaded, compute)


@dataclass(frozen=True, slots=True)
class Run:
    """A run: model, devices, precision and backend."""

    stage: str  # grpo or async
    rollout: str  # local, colocate or server
    model: ModelShape
    launch: Launch
    device: Device
    precision: Precision
    checkpointing: bool
    optim: str
    beta: float
    share_prefixes: bool
    sleeps: bool = True  # a colocated engine frees its memory during training
    cast_head: bool = False  # to float32

    @property
    def has_second_model(self) -> bool:
        return self.stage == "async" and self.rollout == "local"


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of one part, and the phases of an update that have it."""

    name: str
    bytes: float
    phases: tuple[str, ...] = PHASES


def estimate_memory(run: Run, load: Workload, *, embedder: float, rollout: float) -> list[Part]:
    """Return all parts, for an update that is not the first (the optimizer has its states)."""
    model, launch, p = run.model, run.launch, run.precision
    gradients = model.trainable * p.trained
    weights = gradients + (model.parameters - model.trainable) * p.frozen
    # AdamW has two states, of a byte each where they have 8 bits.
    state = p.master + (2 if "8bit" in run.optim else 2 * (p.master or p.trained))
    # LoRA's reference is the model without its adapter.
    reference = model.parameters * p.frozen if run.beta and not model.lora else 0
    gathers = launch.stage >= WEIGHTS
    whole = gathers and run.rollout == "local" and not run.has_second_model
    # FSDP2 gathers the layer that computes, the next one, a layer's gradient and the embeddings;
    # DeepSpeed at most 1e9 parameters.
    embeddings = (1 if model.config.tie_word_embeddings else 2) * model.embedding
    at_once = 1e9 if launch.name == "zero3" else 3 * model.layer + embeddings
    layers = gathers * min(model.parameters, at_once) * p.compute
    # Float32 weights under autocast are cast once per forward pass, and the copies are kept.
    is_cast = p.compute < p.frozen and not gathers
    scored = round(load.rows * load.completion_tokens / load.micro_batches)
    training, rollouts = ("training",), ("rollout",)
    sampling = PHASES if run.has_second_model or not run.sleeps else rollouts
    parts = [
        Part("weights", weights * launch.share(WEIGHTS)),
        Part("optimizer", model.trainable * state * launch.share(OPTIMIZER)),
        Part("reference model", reference * launch.share(WEIGHTS)),
        Part("embedder", embedder),
        Part("CUDA context", 0.0 if run.device.is_cpu else CUDA_CONTEXT),
        Part("gradients", gradients * launch.share(GRADIENTS), training),
        Part("buckets of DDP", gradients if launch.name == "ddp" else 0.0),
        Part("activations", activation_bytes(run, load.micro_batch), training),
        Part("LM head", head_bytes(run, scored), training),
        Part("gathered layers", layers, training),
        Part("LM head in float32", run.cast_head * model.lora * model.embedding * (4 - p.frozen)),
        Part("cast weights", is_cast * model.parameters * p.compute, training),
        Part("gathered weights", whole * model.parameters * p.compute, rollouts),
        Part("sampling model", run.has_second_model * model.parameters * p.frozen),
        Part("rollout", rollout, sampling),
    ]
    return [part for part in parts if part.bytes]


def engine_bytes(run: Run, context: int) -> float:
    """Return the least memory that vLLM starts with: weights, and one sequence of `context`."""
    weights = run.model.parameters * run.precision.compute
    return weights + context * cache_bytes(run) + ENGINE_BYTES


def host_bytes(run: Run) -> float:
    """Return the memory of a node's processes while models are loaded, or engines sleep.

    Under FSDP2 one process of a node holds what is trained in float32, and the reference; without
    sharding every process loads its own. An engine of an adapter keeps its weights while it sleeps.
    """
    model, launch, p = run.model, run.launch, run.precision
    processes = launch.processes // launch.nodes
    copies = 1 if launch.stage >= WEIGHTS else processes
    reference = model.parameters * p.frozen if run.beta and not model.lora else 0
    frozen = (model.parameters - model.trainable) * p.frozen
    loading = copies * (model.trainable * p.trained + frozen + reference)
    sleeps = run.rollout == "colocate" and run.sleeps and model.lora
    return loading + sleeps * processes * model.parameters * p.compute


def activation_bytes(run: Run, tokens: int) -> float:
    """Return the activations of one micro-batch at the start of its backward pass.

    A layer keeps, of a token: residuals ``2 h b``; norms ``16 h`` (half with LoRA, whose norms are
    frozen); queries and keys ``(q + k) b``, normalized ``(q + k) (8 + b)``; values and attention
    output ``k b + 2 q b``; MLP ``4 i b``. LoRA keeps a copy of each module's input, and casts one
    to float32. Without gradient checkpointing L are kept; with it the input of each layer and one
    whole layer. Then come a layer's gradients, and the last norm.
    """
    (h, i, q, k), b = widths(run.model.config), run.precision.compute
    layers, norm = run.model.config.num_hidden_layers, 4 if run.model.lora else 8
    rotated = (q + k) * (norm + b if run.model.query_norm else b)
    layer = 2 * h * b + 2 * norm * h + rotated + k * b + 2 * q * b + 4 * i * b
    layer += run.model.lora * (5 * h + q + i) * b
    kept = layers * h * b + layer if run.checkpointing else layers * layer
    cast = 4 * i if run.model.lora and b < 4 else 0
    return tokens * (kept + cast + (2 * i + 2 * h) * b + 2 * h * b + 8 * h)


def head_bytes(run: Run, scored: int) -> float:
    """Return the memory of TRL's fused LM head: ``tile + 2 n_s h 4``, and ``V h 4`` if trained."""
    hidden, vocabulary = run.model.config.hidden_size, run.model.config.vocab_size
    width = 4 if run.cast_head else run.precision.compute
    tile = min(scored, TILE_TOKENS) * min(TILE_COLUMNS, vocabulary) * width
    return tile + 2 * scored * hidden * 4 + (0 if run.model.lora else vocabulary * hidden * 4)


def cache_bytes(run: Run) -> int:
    """Return the keys and values of a token in all layers of attention: ``2 L k b``."""
    *_, key = widths(run.model.config)
    return 2 * run.model.attention_layers * key * run.precision.compute


def local_rollout_bytes(run: Run, rows: int, row: int) -> float:
    """Return the cache of `rows` x `row` tokens, with a layer of their prompts' pass, or logits."""
    (h, i, q, k), b, tokens = widths(run.model.config), run.precision.compute, rows * row
    attention = (2 * h + 3 * q + 2 * k) * b + row * (1 + b)
    prompts = tokens * max((2 * h + 3 * i) * b, attention)
    return tokens * cache_bytes(run) + max(prompts, rows * run.model.config.vocab_size * 32)


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of one process."""

    prompts: float  # to read the prompts of its episodes
    decode: float  # for one token of every running episode
    sequence: float  # added for each of them
    exchange: float  # added for every token where several devices decode together
    training: float  # for its share of an update, with the reference
    sync: float  # until new weights can be sampled from
    switch: float  # between sampling and training on the same device


def forward_flops(model: ModelShape, tokens: float, scored: float, context: float) -> float:
    """Return ``2 L P_layer n + 4 q c L n + 2 h V n_s``."""
    hidden, _, query, _ = widths(model.config)
    body = 2 * model.config.num_hidden_layers * model.active
    body += 4 * query * context * model.attention_layers
    return tokens * body + scored * 2 * hidden * model.config.vocab_size


def estimate_costs(run: Run, load: Workload) -> Costs:
    """Estimate the costs of a process.

    Training costs three forward passes; one more with gradient checkpointing and one with a
    reference, one less with LoRA. Decoding a token reads the weights once and a cache for each
    running episode, or computes ``2 P`` FLOPs for each, whichever takes longer. A token uses the
    active parameters of a mixture of experts alone, but a batch reads those of many tokens.
    """
    model, element = run.model, run.precision.compute
    speed, bandwidth = run.device.flops * UTILISATION, run.device.bandwidth * DECODE_BANDWIDTH
    context = (load.prompt_tokens + load.completion_tokens) / 2
    reached = load.prompt_tokens + load.completion_tokens / 2
    scored = load.rows * load.completion_tokens
    trained = load.unique_tokens if run.share_prefixes else load.raw_tokens
    passes = 3 + run.checkpointing - model.lora + (run.beta != 0)
    is_local = run.rollout == "local"
    read = (load.raw_tokens if is_local else load.unique_tokens) - scored
    launches = model.config.num_hidden_layers if is_local and not run.device.is_cpu else 0
    idle = model.config.num_hidden_layers * (model.layer - model.active)
    weights = min(model.parameters, load.episodes * (model.parameters - idle)) * element / bandwidth
    cache = reached * cache_bytes(run) / bandwidth
    return Costs(
        prompts=forward_flops(model, read, load.rows, context) / speed,
        decode=weights + launches * LOCAL_LAYER_SECONDS,
        sequence=max(cache, forward_flops(model, 1, 1, reached) / speed),
        exchange=2 * model.config.num_hidden_layers * EXCHANGE_SECONDS,
        training=passes * forward_flops(model, trained, scored, context) / speed,
        sync=0.0 if is_local else model.trainable * element / SYNC_BANDWIDTH,
        switch=WAKE_SECONDS if run.rollout == "colocate" and run.sleeps else 0.0,
    )


@dataclass(frozen=True, slots=True)
class Timeline:
    """Seconds of an update, and of its sampling and training."""

    name: str
    seconds: float
    sampling: float
    training: float


def estimate_timeline(
    costs: Costs,
    load: Workload,
    devices: int,
    processes: int,
    name: str,
    samplers: int = 0,
    staleness: int = 0,
    parallel: int = 1,
) -> Timeline:
    """Estimate an update on `devices`; `costs` and `load` are of one of `processes`.

    Episodes are sampled side by side: together they cost ``sequence`` a token each, and ``decode``
    a token of the longest. With a staleness, new episodes take the places of those that have ended,
    so that nothing waits for the longest, and sampling and training overlap. `samplers` are devices
    that only sample; 0: all sample, then train. In engines of `parallel` of them each reads its
    part of the weights, and they exchange a layer's results.
    """
    updates, at = load.sharing * load.iterations, samplers or devices
    episodes = load.episodes * load.sharing * processes / at
    tokens, wide = load.steps * load.completion_tokens, sqrt(log(1 + SPREAD**2))
    quantile = NormalDist().inv_cdf(1 - 0.5 / max(1.0, episodes * at))
    longest = 1.0 if staleness else max(1.0, exp(wide * quantile - wide**2 / 2))
    sampling = costs.prompts * episodes / load.episodes
    decode = costs.decode / parallel + (parallel > 1) * costs.exchange
    sampling += tokens * (decode * longest + costs.sequence * episodes)
    training = updates * costs.training * processes / (devices - samplers) + costs.sync
    training += 0.0 if samplers else costs.switch
    seconds = max(sampling, training) if staleness else sampling + training
    return Timeline(name, seconds / updates, sampling / updates, training / updates)
