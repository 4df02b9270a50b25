"""Shapes that a dry run starts from: processes, a model without its weights, and an update."""

import json
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from trl import ModelConfig, get_peft_config

from atommem.actions import MEMORY_KINDS
from atommem.config import MemoryConfig
from atommem.dialects import get_dialect
from atommem.environment import EnvironmentFactory, TaskShape
from atommem.errors import ConfigError
from atommem.memory.log import MemoryView
from atommem.plugins import find_file
from atommem.prompts import PromptBuilder
from atommem.train.loops.models import base_model
from atommem.train.packing.tree_attention import tree_obstacle
from atommem.train.rollout.rollouts import TaskOrder
from atommem.train.train_config import check_parallelism

SHIPPED = Path(__file__).parent.parent / "architectures"  # models of our recipes, by hub name's end

NODE = 8  # most devices of a node, where the launcher does not say
OPTIMIZER, GRADIENTS, WEIGHTS = 1, 2, 3  # ZeRO's stages from which they are sharded


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes that memory and time depend on; parameters are counted with the adapter."""

    name: str
    config: Any  # transformers', of the language model
    parameters: int
    trainable: int
    layer: int  # mean parameters of a layer
    active: int  # and those that one token uses: not the experts of other tokens
    embedding: int  # parameters of the input embedding
    attention_layers: int  # those with keys and values of all tokens
    query_norm: bool
    obstacle: str | None  # why rows are padded: `tree_obstacle`
    dtype: str
    lora: bool


def find_config(name: str) -> Any:
    """Return the transformers config of a folder, a shipped architecture or the hub's cache."""
    from transformers import AutoConfig

    shipped = SHIPPED / f"{name.rsplit('/', 1)[-1].lower()}.json"
    if not Path(name).is_dir() and shipped.is_file():
        return AutoConfig.for_model(**json.loads(shipped.read_text(encoding="utf-8")))
    try:
        return AutoConfig.from_pretrained(name, local_files_only=True)
    except (OSError, ValueError) as error:
        known = ", ".join(sorted(path.stem for path in SHIPPED.glob("*.json")))
        raise ConfigError(
            f"model {name!r}: its architecture is not on this machine. Get it with `hf download "
            f"{name} config.json`, or give a folder with a config.json, or one of {known}."
        ) from error


def measure(config: ModelConfig) -> ModelShape:
    """Measure ``config.model_name_or_path`` with its adapter, on torch's meta device."""
    import torch
    from peft import PeftConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    name = str(config.model_name_or_path)
    base = base_model(config)
    adapter: Any = PeftConfig.from_pretrained(name) if base else get_peft_config(config)
    found = find_config(base or name)
    text = found.get_text_config()
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(found)
        layers = model.base_model.layers
        embedding = model.get_input_embeddings().weight.numel()
        layer = sum(weight.numel() for weight in layers.parameters()) // len(layers)
        kinds = getattr(text, "layer_types", None) or []
        obstacle = tree_obstacle(model)
        chosen = getattr(text, "num_experts_per_tok", None) or 0
        idle = sum(idle_parameters(layer, chosen) for layer in layers) // len(layers)
        if adapter is not None:
            adapter.inference_mode = False
            try:
                model = get_peft_model(model, adapter, low_cpu_mem_usage=True)
            except ValueError as error:
                raise ConfigError(f"the adapter does not fit {name}: {error}") from error
    return ModelShape(
        name=name,
        config=text,
        parameters=model.num_parameters(),
        trainable=model.num_parameters(only_trainable=True),
        layer=layer,
        active=layer - idle,
        embedding=embedding,
        attention_layers=len(layers) - kinds.count("linear_attention"),
        query_norm=any(name.endswith("q_norm.weight") for name, _ in layers.named_parameters()),
        obstacle=obstacle,
        dtype=str(found.dtype or torch.float32).removeprefix("torch."),
        lora=adapter is not None,
    )


def idle_parameters(layer: Any, chosen: int) -> int:
    """Count the parameters of the experts that are not among the `chosen` ones of a token."""
    experts = [weight for name, weight in layer.named_parameters() if ".experts." in name]
    # The first dimension of their weights is the expert.
    return sum(weight.numel() // len(weight) * (len(weight) - chosen) for weight in experts)


def parameters_of(name: str) -> int:
    """Count the parameters of the (embedding) model `name`; ConfigError if it is unknown."""
    import torch
    from transformers import AutoModel

    with torch.device("meta"):
        return int(AutoModel.from_config(find_config(name)).num_parameters())


@dataclass(frozen=True, slots=True)
class Launch:
    """Processes, and what each of them holds a share of."""

    name: str  # single, ddp, fsdp, zero1, zero2 or zero3
    processes: int
    shards: int = 1
    stage: int = 0  # ZeRO's; FSDP2's is 3, or 2 if weights stay gathered after the forward pass
    nodes: int = 1

    def share(self, stage: int) -> float:
        """Return the fraction that one process holds of what is sharded from `stage` on."""
        return 1 / self.shards if self.stage >= stage else 1.0


def read_launch(path: str | None, processes: int | None) -> Launch:
    """Read an accelerate config, a file or a shipped one's name; None is DDP on one node.

    `processes` overrides the file, as ``accelerate launch --num_processes`` does.
    """
    from accelerate.commands.config.config_args import load_config_from_file

    if path is None:
        return Launch("ddp" if (processes or 1) > 1 else "single", processes or 1)
    try:
        config: Any = load_config_from_file(str(find_file("dry_run_launcher", path, "accelerate")))
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"dry_run_launcher={path}: not an accelerate config. {error}") from error
    check_parallelism(config.parallelism_config)
    count = processes or config.num_processes
    nodes = max(config.num_machines, ceil(count / NODE))
    kind = str(getattr(config.distributed_type, "value", config.distributed_type))
    if kind in ("NO", "MULTI_GPU", "MULTI_CPU"):
        return Launch("ddp" if count > 1 else "single", count, nodes=nodes)
    if kind == "DEEPSPEED":
        stage = int(config.deepspeed_config.get("zero_stage", 2))
        return Launch(f"zero{stage}" if stage else "ddp", count, count, stage, nodes)
    settings = config.fsdp_config
    if kind != "FSDP" or str(settings.get("fsdp_version", 1)) != "2":
        raise ConfigError(
            f"dry_run_launcher={path}: {kind} is not supported. Use NO, MULTI_GPU, DEEPSPEED, or "
            "FSDP with fsdp_version: 2."
        )
    shards = int(config.parallelism_config.get("parallelism_config_dp_shard_size", count))
    stage = WEIGHTS if settings.get("fsdp_reshard_after_forward", True) else GRADIENTS
    return Launch("fsdp", count, shards, stage, nodes)


ENTRY_TOKENS, QUERY_TOKENS, SCRATCHPAD_SHARE = 50, 15, 0.25  # expected; the last is a fill


class PromptShape(NamedTuple):
    """Tokens of a prompt's parts."""

    reading: float  # all but question, stream and memory, in the first phase
    answering: float  # and in the last one
    memory: float  # scratchpad, query and entries as expected
    longest_memory: float  # and at their limits
    is_chunk_first: bool  # layout prefix: the episodes of a group share the chunk


def measure_prompt(
    memory: MemoryConfig, factory: EnvironmentFactory, chat_template_kwargs: dict[str, Any]
) -> PromptShape:
    """Build empty prompts, and count their tokens."""
    dialect = get_dialect(memory.dialect, memory.templates)
    builder = PromptBuilder.of(factory.tokenizer, dialect, memory, factory, chat_template_kwargs)
    nothing = MemoryView(capacity=memory.capacity)
    phases = factory.phases[0], factory.phases[-1]
    reading, answering = (len(builder.build(factory.blank(phase), nothing)) for phase in phases)
    kinds = {*filter(dialect.can_write, MEMORY_KINDS)} - {*memory.disabled_actions}
    longest = memory.scratchpad_tokens if "scratchpad" in kinds else 0
    expected = longest * SCRATCHPAD_SHARE
    if {"create", "read"} <= kinds:
        shown = min(memory.retrieve_k, memory.capacity or memory.retrieve_k)
        expected += shown * min(ENTRY_TOKENS, memory.entry_tokens)
        expected += min(QUERY_TOKENS, memory.query_tokens)
        longest += shown * memory.entry_tokens + memory.query_tokens
    return PromptShape(reading, answering, expected, longest, memory.layout == "prefix")


@dataclass(frozen=True, slots=True)
class Workload:
    """One update of one process; expected values."""

    updates: int  # of the run
    episodes: int
    group: int  # episodes of a task on this process, which share prefixes
    steps: float  # of an episode
    prompt_tokens: float  # mean of a step
    completion_tokens: float  # mean of a step
    sampled_row: int  # longest step with the expected memory
    longest_row: int  # and with memory at its limits
    rows: int  # steps of all episodes
    raw_tokens: int  # of all rows
    unique_tokens: int  # counting shared prefixes once
    micro_batch: int  # tokens
    micro_batches: int
    sharing: int = 1  # updates that share a rollout
    iterations: int = 1  # and how often they repeat it
    epochs: float = 1.0  # of the run


def estimate_workload(
    args: Any, processes: int, data: TaskShape, prompt: PromptShape, sampled: float, shares: bool
) -> Workload:
    """Estimate the workload of an update, with `sampled` tokens a completion.

    At a step, a group of g episodes with prompts ``s + o`` (s: instructions, questions and, in the
    layout ``prefix``, the chunk; o: memory, and the chunk otherwise) costs
    ``g (s + o + completion)`` raw and ``s + g (o + completion)`` unique tokens, one read each.
    """
    batch, generations = args.per_device_train_batch_size, args.num_generations
    sharing = getattr(args, "steps_per_generation", None) or 1
    iterations = getattr(args, "updates_per_rollout", sharing) // sharing
    tasks, left = divmod(batch * processes * sharing, generations)
    if left:
        raise ConfigError(
            f"num_generations={generations}: it does not divide the episodes of a rollout, "
            f"{processes} processes x {batch} x steps_per_generation {sharing}. Change one."
        )
    group, questions = min(generations, batch), data.questions * data.question_tokens
    shares_chunk = prompt.is_chunk_first and data.same_stream
    before, after = (data.stream_tokens, 0.0) if shares_chunk else (0.0, data.stream_tokens)
    answering_steps = data.questions * (1 + min(1, data.reads))
    # Reading and answering steps: their number, shared and own tokens of a prompt.
    kinds = (
        (data.stream_steps, prompt.reading + questions + before, prompt.memory + after),
        (answering_steps, prompt.answering + data.question_tokens, prompt.memory),
    )
    steps = sum(count for count, _, _ in kinds)
    raw = sum(count * (shared + own + sampled) for count, shared, own in kinds)
    unique = sum(count * (shared / group + own + sampled) for count, shared, own in kinds)
    longest = max(shared + own for _, shared, own in kinds) + (args.max_completion_length or 1024)
    counted, budget = batch * (unique if shares else raw), args.token_budget
    micro_batches = max(1, ceil(counted / budget))
    # The rows of a group in one step stay together.
    together = shares * max(shared + group * (own + sampled) for _, shared, own in kinds)
    epoch = TaskOrder(data.tasks, tasks, False, 0).updates_per_epoch * sharing * iterations
    updates = args.max_steps if args.max_steps > 0 else ceil(args.num_train_epochs * epoch)
    return Workload(
        updates=updates,
        episodes=batch,
        group=group,
        steps=steps,
        prompt_tokens=raw / steps - sampled,
        completion_tokens=sampled,
        sampled_row=ceil(longest),
        longest_row=ceil(longest + prompt.longest_memory - prompt.memory),
        rows=round(batch * steps),
        raw_tokens=round(batch * raw),
        unique_tokens=round(batch * unique),
        micro_batch=ceil(min(budget, max(counted / micro_batches, together))),
        micro_batches=micro_batches,
        sharing=sharing,
        iterations=iterations,
        epochs=updates / epoch,
    )
