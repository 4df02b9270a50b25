"""Puts a dry run together: settings -> shapes -> workload -> memory and time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atommem.config import EmbedderConfig, MemoryConfig
from atommem.description import TaskShape
from atommem.environment import make_environments
from atommem.errors import ConfigError
from atommem.memory.admission import make_admission
from atommem.memory.retention import make_retention
from atommem.train.dry_run.architecture import ModelShape, measure, parameters_of
from atommem.train.dry_run.compute import ComputeEstimate, estimate_compute
from atommem.train.dry_run.data_shape import PromptShape, data_shape, find_tokenizer, measure_prompt
from atommem.train.dry_run.devices import DEVICES, Device
from atommem.train.dry_run.dry_run_config import DryRunConfig, Setting, is_given, trace_settings
from atommem.train.dry_run.launcher import Launch, read_launch
from atommem.train.dry_run.memory_estimate import (
    BYTES,
    MemoryEstimate,
    Precision,
    estimate_memory,
    local_rollout_bytes,
    precision_of,
)
from atommem.train.dry_run.workload import Workload, grpo_workload, sft_workload

Parse = Callable[[Sequence[str], Callable[[type], type]], tuple[Any, ...]]
"""The stage's parser: gets the command line and what makes its config class one of many processes."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a dry run finds out. Estimates are of one process.

    Attributes:
        stage: ``grpo``, ``async`` or ``sft``.
        rollout: Where episodes are sampled: ``local``, ``colocate``, ``server`` or ``none``.
        assumptions: What the estimates rest on and no setting says.
        warnings: What will not work, or not as well as it could.
    """

    stage: str
    model: ModelShape
    launch: Launch
    device: Device
    precision: Precision
    data: TaskShape
    prompt: PromptShape
    workload: Workload
    rollout: str
    memory: MemoryEstimate
    compute: ComputeEstimate
    settings: list[Setting]
    assumptions: list[str]
    warnings: list[str]

    @property
    def fits(self) -> bool:
        """Whether the peak is below the device's memory."""
        return self.memory.peak <= self.device.memory


def of_processes(config_class: type, processes: int) -> type:
    """`config_class` as it is in one of `processes` processes: its checks divide by them."""
    return type(config_class.__name__, (config_class,), {"world_size": property(lambda self: processes)})


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
    # Nothing is put on a device here, so that the settings of one that this machine lacks can be checked.
    args, memory, embedder, environment, model_config = parse(
        [*argv, "--use_cpu", "true"], lambda config_class: of_processes(config_class, launch.processes)
    )
    found = trace_settings([args, memory, embedder, environment, model_config, settings], argv, stored)
    found = _use_device_defaults(args, argv, device, found)
    model = measure(model_config)
    dtype = getattr(model_config, "dtype", None) or getattr(args, "dtype", None) or "float32"
    dtype = model.dtype if dtype == "auto" else dtype
    precision = precision_of(dtype, bool(args.bf16), launch, model.lora)
    tokenizer, counted_by = find_tokenizer(model.name)
    make_admission(memory.admission), make_retention(memory.retention)
    environments = make_environments(environment, tokenizer)
    data = data_shape(None if stage == "sft" else args.data, environments, settings)
    prompt = measure_prompt(memory, environments, args.template_kwargs)
    rollout = _rollout(stage, args)
    load = _workload(stage, args, launch, data, prompt, settings)
    beta = float(getattr(args, "beta", 0.0))
    embedder_bytes = _embedder_bytes(embedder, device) if rollout != "none" else 0.0
    share_prefixes = stage == "async" or bool(getattr(args, "prefix_sharing", False))
    plan = Plan(
        stage=stage,
        model=model,
        launch=launch,
        device=device,
        precision=precision,
        data=data,
        prompt=prompt,
        workload=load,
        rollout=rollout,
        memory=estimate_memory(
            model,
            precision,
            launch,
            micro_batch=load.micro_batch,
            scored=round(load.rows * load.completion_tokens / load.micro_batches),
            gradient_checkpointing=bool(args.gradient_checkpointing),
            optim=str(getattr(args.optim, "value", args.optim)),
            beta=beta,
            embedder=embedder_bytes or 0.0,
            rollout=_rollout_bytes(rollout, args, model, precision, load, device),
            samples_itself=stage == "grpo" and rollout == "local",
            second_model=stage == "async" and rollout == "local",
            on_cpu=device.is_cpu,
        ),
        compute=estimate_compute(
            model,
            load,
            device,
            utilisation=settings.dry_run_utilisation,
            element=precision.compute,
            gradient_checkpointing=bool(args.gradient_checkpointing),
            beta=beta,
            share_prefixes=share_prefixes,
            cached_prefixes=rollout in ("colocate", "server"),
            local_rollout=rollout == "local",
            overlap=stage == "async",
        ),
        settings=found,
        assumptions=_assumptions(stage, settings, data, counted_by, load),
        warnings=[],
    )
    if embedder_bytes is None:
        plan.assumptions.append(
            f"the embedder {embedder.embedder_model} is not on this machine: its memory is left out"
        )
    plan.warnings.extend(_warnings(plan, args, dtype, memory, embedder))
    return plan


def _use_device_defaults(args: Any, argv: Sequence[str], device: Device, found: list[Setting]) -> list[Setting]:
    """Where nobody says otherwise, bfloat16 and gradient checkpointing are on with a GPU, and here stands for one."""
    changed = {name: not device.is_cpu for name in ("bf16", "gradient_checkpointing") if not is_given(name, argv)}
    for name, value in changed.items():
        setattr(args, name, value)
    return [
        Setting(item.name, changed[item.name], "device") if item.name in changed else item
        for item in found
        if item.name != "use_cpu"
    ]


def _rollout(stage: str, args: Any) -> str:
    if stage == "sft":
        return "none"
    if not args.use_vllm:
        return "local"
    return str(getattr(args, "vllm_mode", "server"))


def _workload(
    stage: str,
    args: Any,
    launch: Launch,
    data: TaskShape,
    prompt: PromptShape,
    settings: DryRunConfig,
) -> Workload:
    longest = int(args.max_completion_length or 1024)
    expected = min(longest, settings.dry_run_completion_tokens or max(1, longest // 4))
    if stage == "sft":
        return sft_workload(
            data,
            prompt,
            processes=launch.processes,
            rows=args.per_device_train_batch_size,
            accumulation=args.gradient_accumulation_steps,
            completion_tokens=expected,
            max_completion_tokens=longest,
            max_steps=args.max_steps,
            epochs=args.num_train_epochs,
        )
    return grpo_workload(
        data,
        prompt,
        processes=launch.processes,
        episodes=args.per_device_train_batch_size,
        group=args.num_generations,
        completion_tokens=expected,
        max_completion_tokens=longest,
        micro_batch_tokens=args.token_budget if stage == "async" else args.micro_batch_tokens,
        share_prefixes=stage == "async" or args.prefix_sharing,
        max_steps=args.max_steps,
        epochs=args.num_train_epochs,
    )


def _rollout_bytes(
    rollout: str, args: Any, model: ModelShape, precision: Precision, load: Workload, device: Device
) -> float:
    if rollout == "colocate":
        return float(args.vllm_gpu_memory_utilization) * device.memory
    if rollout != "local":
        return 0.0
    return local_rollout_bytes(
        model,
        precision,
        batch_tokens=args.rollout_batch_tokens,
        batch_size=args.rollout_batch_size,
        row=min(load.sampled_row, model.context),
        episodes=min(load.episodes, getattr(args, "max_in_flight", None) or load.episodes),
    )


def _embedder_bytes(config: EmbedderConfig, device: Device) -> float | None:
    """None for a model that is not known here: a run may still be able to load it."""
    if config.embedder != "sentence_transformer":
        return 0.0
    try:
        return parameters_of(config.embedder_model) * BYTES["float32" if device.is_cpu else "bfloat16"]
    except ConfigError:
        return None


def _assumptions(stage: str, settings: DryRunConfig, data: TaskShape, counted_by: str, load: Workload) -> list[str]:
    found = [
        f"data: {data.source}",
        f"tokens: counted with {counted_by}",
        f"completions: {load.completion_tokens:.0f} tokens on average (--dry_run_completion_tokens)",
        f"speed: {settings.dry_run_utilisation:.0%} of peak FLOPs (--dry_run_utilisation), 60% of memory bandwidth",
    ]
    if stage != "sft":
        found += ["a question is answered after one further read, where reads are allowed"]
        found += ["every group has variance, so that all rows are trained on and none is sampled again"]
    if stage == "async":
        found += ["sampling and training overlap fully: an update takes as long as the slower of them"]
    return found


def _is_missing(file: str | None) -> bool:
    return file is not None and not Path(file).is_file()


def _warnings(plan: Plan, args: Any, dtype: str, memory: MemoryConfig, embedder: EmbedderConfig) -> list[str]:
    found = []
    if plan.memory.peak > plan.device.memory:
        found.append(
            f"the peak of {plan.memory.peak / 1e9:.1f} GB exceeds the {plan.device.memory / 1e9:.0f} GB of "
            f"{plan.device.name}: share the model among more processes (the launcher fsdp2), use LoRA "
            "(use_peft), or lower micro_batch_tokens, rollout_batch_tokens or vllm_gpu_memory_utilization, whichever "
            "part is the largest."
        )
    if not plan.model.lora and dtype != "float32" and plan.launch.name in ("single", "ddp") and plan.stage != "sft":
        found.append(
            f"weights are kept in {dtype}: at a learning rate of {args.learning_rate:g} most updates are smaller than "
            "its rounding and are lost. Set dtype: float32 (bf16 stays on), or start with FSDP2 or DeepSpeed."
        )
    if plan.launch.offload:
        found.append("weights and optimizer are offloaded to the host: their memory there is not estimated.")
    if plan.workload.longest_row > plan.model.context:
        found.append(
            f"the longest prompt and completion have {plan.workload.longest_row} tokens, the model's context is "
            f"{plan.model.context}: lower chunk_tokens, scratchpad_tokens or max_completion_length."
        )
    files = [args.data, getattr(args, "eval_data", None)] if plan.stage != "sft" else []
    found += [f"{file} is not there yet: `atommem data build` makes it." for file in files if _is_missing(file)]
    if memory.dialect == "memagent" and embedder.embedder == "sentence_transformer":
        found.append("the dialect memagent never asks the embedder: embedder: random saves loading one.")
    return found
