"""Puts a dry run together: settings -> shapes -> workload -> memory, time and timeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from atommem.config import EmbedderConfig, MemoryConfig
from atommem.description import TaskShape
from atommem.environment import make_environments
from atommem.errors import ConfigError
from atommem.memory.admission import make_admission
from atommem.memory.retention import make_retention
from atommem.train.dry_run.architecture import ModelShape, measure, parameters_of
from atommem.train.dry_run.costs import Costs, estimate_costs
from atommem.train.dry_run.devices import DEVICES, Device
from atommem.train.dry_run.dry_run_config import DryRunConfig, trace_settings
from atommem.train.dry_run.launcher import Launch, read_launch
from atommem.train.dry_run.lengths import (
    CompletionShape,
    PromptShape,
    completion_shape,
    data_shape,
    find_tokenizer,
    measure_prompt,
)
from atommem.train.dry_run.memory_estimate import (
    BYTES,
    MemoryEstimate,
    Precision,
    Run,
    estimate_memory,
    local_rollout_bytes,
    precision_of,
)
from atommem.train.dry_run.timeline import Schedule, Timeline, schedules, simulate
from atommem.train.dry_run.workload import Workload, estimate_workload

Parse = Callable[[Sequence[str], Callable[[type], type]], tuple[Any, ...]]
"""The stage's parser: gets the command line and what makes its config class one of many processes."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a dry run finds out. Estimates are of one process.

    Attributes:
        timelines: The run's own, then others on its devices; none where nothing is sampled.
        hours: Of the run.
        settings: Every setting's value and source.
        assumptions: What the estimates rest on and no setting says.
        warnings: What will not work, or not as well as it could, and what to change.
    """

    run: Run
    model: ModelShape
    launch: Launch
    device: Device
    data: TaskShape
    prompt: PromptShape
    completion: CompletionShape
    workload: Workload
    memory: MemoryEstimate
    costs: Costs
    timelines: list[Timeline]
    hours: float
    settings: dict[str, dict[str, Any]]
    assumptions: list[str]
    warnings: list[str]

    @property
    def fits(self) -> bool:
        """Whether the peak is below the device's memory."""
        return self.memory.peak <= self.device.memory


def make_plan(stage: str, argv: Sequence[str], settings: DryRunConfig, parse: Parse, stored: dict[str, Any]) -> Plan:
    """Check all settings and estimate the run.

    Args:
        stage: Of ``atommem train``.
        argv: Its command line.
        settings: The dry run's own.
        parse: The stage's parser.
        stored: Settings that the model folder brings.

    Raises:
        AtomMemError: A setting is wrong.
    """
    launch = read_launch(settings.dry_run_launcher, settings.dry_run_processes)
    device = DEVICES[settings.dry_run_device]

    def adapt(config_class: type) -> type:
        """The class in one of so many processes, on that device: its checks divide by the one and ask for the other."""

        def defaults(self: Any) -> None:
            for name in ("bf16", "gradient_checkpointing"):
                setattr(self, name, not device.is_cpu if getattr(self, name) is None else getattr(self, name))
            config_class.__post_init__(self)  # type: ignore[attr-defined]

        members = {"world_size": property(lambda self: launch.processes), "__post_init__": defaults}
        return type(config_class.__name__, (config_class,), members)

    # Nothing is put on a device here, so that the settings of one that this machine lacks can be checked.
    args, memory, embedder, environment, model_config = parse([*argv, "--use_cpu", "true"], adapt)
    model = measure(model_config)
    dtype = getattr(model_config, "dtype", None) or getattr(args, "dtype", None) or "float32"
    dtype = model.dtype if dtype == "auto" else dtype
    precision = precision_of(dtype, bool(args.bf16), launch, model.lora)
    tokenizer, counted_by = find_tokenizer(model.name)
    make_admission(memory.admission), make_retention(memory.retention)
    environments = make_environments(environment, tokenizer)
    data = data_shape(None if stage == "sft" else args.data, environments, settings)
    prompt = measure_prompt(memory, environments, args.template_kwargs)
    completion = completion_shape(args, stage, settings, model.kind)
    rollout = "none" if stage == "sft" else "local" if not args.use_vllm else getattr(args, "vllm_mode", "server")
    run = Run(
        stage,
        rollout,
        bool(args.gradient_checkpointing),
        str(getattr(args.optim, "value", args.optim)),
        float(getattr(args, "beta", 0.0)),
        stage == "async" or bool(getattr(args, "prefix_sharing", False)),
    )
    load = estimate_workload(
        data,
        prompt,
        completion,
        processes=launch.processes,
        episodes=args.per_device_train_batch_size,
        group=getattr(args, "num_generations", 1),
        micro_batch_tokens=args.token_budget if stage == "async" else getattr(args, "micro_batch_tokens", 0),
        max_steps=args.max_steps,
        epochs=args.num_train_epochs,
        share_prefixes=run.share_prefixes,
        accumulation=args.gradient_accumulation_steps if stage == "sft" else 0,
    )
    embedder_bytes = _embedder_bytes(embedder, device) if rollout != "none" else 0.0
    costs = estimate_costs(
        model, load, device, run, utilisation=settings.dry_run_utilisation, element=precision.compute
    )
    timelines = _timelines(args, run, load, costs, completion) if rollout != "none" else []
    seconds = timelines[0].seconds if timelines else costs.training_seconds
    memory_estimate = estimate_memory(
        model,
        precision,
        launch,
        load,
        run,
        embedder=embedder_bytes or 0.0,
        rollout=_rollout_bytes(args, run, model, precision, load, device),
        on_cpu=device.is_cpu,
    )
    plan = Plan(
        run=run,
        model=model,
        launch=launch,
        device=device,
        data=data,
        prompt=prompt,
        completion=completion,
        workload=load,
        memory=memory_estimate,
        costs=costs,
        timelines=timelines,
        hours=load.updates * seconds / 3600,
        settings=trace_settings([args, memory, embedder, environment, model_config, settings], argv, stored),
        assumptions=[
            f"data: {data.source}",
            f"tokens: counted with {counted_by}",
            f"completions: {completion.mean:.0f} tokens on average ({completion.source}), one further read a question",
            f"speed: {settings.dry_run_utilisation:.0%} of peak FLOPs (--dry_run_utilisation), 60% of memory bandwidth",
        ],
        warnings=[],
    )
    if embedder_bytes is None:
        plan.assumptions.append(
            f"the embedder {embedder.embedder_model} is not on this machine: its memory is left out"
        )
    plan.warnings.extend(_warnings(plan, args, dtype, memory, embedder))
    return plan


def _timelines(args: Any, run: Run, load: Workload, costs: Costs, completion: CompletionShape) -> list[Timeline]:
    """Of the run as its settings say, then of what else its devices could do."""
    ahead = args.max_staleness if run.stage == "async" else 0
    replaced = "now" if getattr(args, "dynamic_sampling", 0) else "no"
    carried = bool(getattr(args, "carried_groups", 0))
    # An asynchronous run without servers samples from a second model beside the first process.
    samplers = len(args.vllm_server_urls) if run.rollout == "server" else int(run.stage == "async")
    devices = load.processes + samplers
    simulated = partial(
        simulate,
        costs=costs,
        devices=devices,
        processes=load.processes,
        groups=load.tasks,
        group=args.num_generations,
        tokens=load.steps * load.completion_tokens,
        spread=completion.spread,
    )
    return [
        simulated(Schedule("this run", samplers, ahead, replaced, carried)),
        *map(simulated, schedules(devices, ahead)),
    ]


def _rollout_bytes(
    args: Any, run: Run, model: ModelShape, precision: Precision, load: Workload, device: Device
) -> float:
    if run.rollout == "colocate":
        return float(args.vllm_gpu_memory_utilization) * device.memory
    if run.rollout != "local":
        return 0.0
    row = min(load.sampled_row, model.context)
    at_once = min(load.episodes, getattr(args, "max_in_flight", None) or load.episodes, args.rollout_batch_size)
    return local_rollout_bytes(model, precision, max(1, min(at_once, args.rollout_batch_tokens // row)), row)


def _embedder_bytes(config: EmbedderConfig, device: Device) -> float | None:
    """None for a model that is not known here: a run may still be able to load it."""
    if config.embedder != "sentence_transformer":
        return 0.0
    try:
        return parameters_of(config.embedder_model) * BYTES["float32" if device.is_cpu else "bfloat16"]
    except ConfigError:
        return None


def _warnings(plan: Plan, args: Any, dtype: str, memory: MemoryConfig, embedder: EmbedderConfig) -> list[str]:
    found = []
    longest, single = plan.workload.longest_row, plan.launch.name in ("single", "ddp")
    if not plan.model.lora and dtype != "float32" and single and plan.run.stage != "sft":
        found.append(
            f"weights are kept in {dtype}: at a learning rate of {args.learning_rate:g} most updates are smaller than "
            "its rounding and are lost. Set dtype: float32 (bf16 stays on), or start with FSDP2 or DeepSpeed."
        )
    if plan.launch.offload:
        found.append("weights and optimizer are offloaded to the host: their memory there is not estimated.")
    if longest > plan.model.context:
        found.append(
            f"the longest prompt and completion have {longest} tokens, the model's context is {plan.model.context}: "
            "lower chunk_tokens, scratchpad_tokens, entry_tokens, retrieve_k or max_completion_length."
        )
    files = [args.data, getattr(args, "eval_data", None)] if plan.run.stage != "sft" else []
    missing = [file for file in files if file is not None and not Path(file).is_file()]
    found += [f"{file} is not there yet: `atommem data build` makes it." for file in missing]
    if memory.dialect == "memagent" and embedder.embedder == "sentence_transformer":
        found.append("the dialect memagent never asks the embedder: embedder: random saves loading one.")
    if not plan.fits:
        found.append(_what_to_change(plan))
    return found


def _what_to_change(plan: Plan) -> str:
    """By the largest part of the phase that needs the most."""
    phase = max({phase for part in plan.memory.parts for phase in part.phases}, key=plan.memory.phase)
    part = max((part for part in plan.memory.parts if phase in part.phases), key=lambda part: part.bytes)
    remedies = {
        "rollout": "lower vllm_gpu_memory_utilization"
        if plan.run.rollout == "colocate"
        else "lower rollout_batch_tokens",
        "activations": "set gradient_checkpointing: true",
        "activations (checkpointed)": "lower micro_batch_tokens",
        "LM head": "lower micro_batch_tokens",
        "embedder": "take a smaller embedder_model, or an embedding server (embedder: http)",
        "reference model": "set beta: 0, or share it among more processes",
        "weights gathered for sampling": "sample with vLLM (use_vllm: true)",
        "sampling model": "sample on vLLM servers (use_vllm: true)",
    }
    share = "share the model among more processes (launcher fsdp2), or train an adapter (use_peft: true)"
    return (
        f"the peak of {plan.memory.peak / 1e9:.1f} GB ({phase}) exceeds the {plan.device.memory / 1e9:.0f} GB of "
        f"{plan.device.name}. Its largest part is {part.name} with {part.bytes / 1e9:.1f} GB: "
        f"{remedies.get(part.name, share)}."
    )
