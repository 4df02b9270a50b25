"""Puts a dry run together: settings -> shapes -> workload -> memory, time and timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atommem.config import EmbedderConfig, MemoryConfig
from atommem.description import TaskShape
from atommem.environment import EnvironmentFactory, make_environments
from atommem.envs.checkpoint_settings import read_ahead
from atommem.errors import ConfigError
from atommem.hub import hub_name
from atommem.memory.rules import RuleSet
from atommem.train.dry_run.architecture import measure, parameters_of
from atommem.train.dry_run.launcher import read_launch
from atommem.train.dry_run.memory_estimate import (
    BYTES,
    PHASES,
    Part,
    Precision,
    Run,
    estimate_memory,
    local_rollout_bytes,
)
from atommem.train.dry_run.timeline import (
    Costs,
    Schedule,
    Timeline,
    estimate_costs,
    schedules,
    simulate,
)
from atommem.train.dry_run.workload import (
    Workload,
    completion_shape,
    estimate_workload,
    find_tokenizer,
    measure_prompt,
)
from atommem.train.dry_run_config import DEVICES, DryRunConfig, trace_settings
from atommem.train.settings import folder_defaults, parse


@dataclass
class Plan:
    """Everything that a dry run finds out. Estimates are of one process."""

    run: Run
    workload: Workload
    parts: list[Part]  # of its memory
    costs: Costs
    timelines: list[
        Timeline
    ]  # the run's own, then others on its devices; none where nothing is sampled
    settings: dict[str, dict[str, Any]]  # every setting's value and source
    assumptions: list[str]  # what the estimates rest on and no setting says
    warnings: list[str] = field(
        default_factory=list
    )  # what will not work, or could work better, and what to change

    @property
    def phases(self) -> dict[str, float]:
        """Bytes of memory in every phase of an update."""
        return {
            phase: sum(part.bytes for part in self.parts if phase in part.phases)
            for phase in PHASES
        }

    @property
    def fits(self) -> bool:
        """Whether the peak is below the device's memory."""
        return max(self.phases.values()) <= self.run.device.memory

    @property
    def seconds(self) -> float:
        """Of an update."""
        return self.timelines[0].seconds if self.timelines else self.costs.training

    @property
    def hours(self) -> float:
        """Of the run."""
        return self.workload.updates * self.seconds / 3600


def make_plan(stage: str, argv: Sequence[str], settings: DryRunConfig) -> Plan:
    """Check all settings of ``atommem train STAGE`` and estimate the run.

    Raises:
        AtomMemError: A setting is wrong.
    """
    launch = read_launch(settings.dry_run_launcher, settings.dry_run_processes)
    device, is_cold_start = DEVICES[settings.dry_run_device], stage == "sft"

    def adapt(config_class: type) -> type:
        """The class in one of so many processes, on that device: its checks divide by the one and ask for the other."""

        def defaults(self: Any) -> None:
            for name in ("bf16", "gradient_checkpointing"):
                setattr(
                    self,
                    name,
                    not device.is_cpu if getattr(self, name) is None else getattr(self, name),
                )
            config_class.__post_init__(self)  # type: ignore[attr-defined]

        members = {"world_size": property(lambda self: launch.processes), "__post_init__": defaults}
        return type(config_class.__name__, (config_class,), members)

    # Nothing is put on a device here, so that the settings of one that this machine lacks can be checked.
    args, memory, embedder, environment, model_config = parse(
        stage, [*argv, "--use_cpu", "true"], adapt
    )
    ahead = read_ahead(argv, "model_name_or_path")
    stored = folder_defaults(ahead) if ahead.stored else {}
    RuleSet(memory.admission, memory.retention)
    model = measure(model_config)
    dtype = getattr(model_config, "dtype", None) or getattr(args, "dtype", None) or "float32"
    rollout = (
        "none"
        if is_cold_start
        else getattr(args, "vllm_mode", "server")
        if args.use_vllm
        else "local"
    )
    run = Run(
        stage=stage,
        rollout=rollout,
        model=model,
        launch=launch,
        device=device,
        precision=Precision.of(
            model.dtype if dtype == "auto" else dtype, bool(args.bf16), launch, model.lora
        ),
        checkpointing=bool(args.gradient_checkpointing),
        optim=str(getattr(args.optim, "value", args.optim)),
        beta=float(getattr(args, "beta", 0.0)),
        share_prefixes=stage == "async" or bool(getattr(args, "prefix_sharing", False)),
        sleeps=rollout != "colocate" or args.vllm_enable_sleep_mode,
    )
    tokenizer, counted_by = find_tokenizer(model.name)
    environments = make_environments(environment, tokenizer)
    data = data_shape(None if is_cold_start else args.data, environments, settings)
    prompt = measure_prompt(memory, environments, args.template_kwargs)
    completion = completion_shape(args, stage, settings, model.config.model_type)
    load = estimate_workload(
        args, launch.processes, data, prompt, completion, run.share_prefixes, is_cold_start
    )
    costs = estimate_costs(run, load, settings.dry_run_utilisation)
    embedder_bytes = 0.0 if is_cold_start else _embedder_bytes(embedder, device.is_cpu)
    plan = Plan(
        run=run,
        workload=load,
        parts=estimate_memory(
            run, load, embedder=embedder_bytes or 0.0, rollout=_rollout_bytes(args, run, load)
        ),
        costs=costs,
        timelines=[] if is_cold_start else _timelines(args, run, load, costs),
        settings=trace_settings(
            [args, memory, embedder, environment, model_config, settings], argv, stored
        ),
        assumptions=[
            f"data: {data.source}",
            f"tokens: {counted_by}",
            f"completions: {completion.mean:.0f} tokens on average ({completion.source}), one further read a question",
            f"speed: {settings.dry_run_utilisation:.0%} of peak FLOPs (--dry_run_utilisation), 60% of memory bandwidth",
        ],
    )
    if embedder_bytes is None:
        plan.assumptions.append(
            f"the embedder {embedder.embedder_model} is not on this machine: its memory is left out"
        )
    plan.warnings.extend(_warnings(plan, args, memory, embedder))
    return plan


def data_shape(
    path: str | None, environments: EnvironmentFactory, settings: DryRunConfig
) -> TaskShape:
    """How long the tasks of a file are, or those that `settings` describe, for want of one."""
    reason = "traces are not read" if path is None else f"{path} is not there"
    documents, questions = settings.dry_run_documents, settings.dry_run_questions
    source = f"supposed, as {reason}: {documents} documents, {questions:g} questions (--dry_run_documents, "
    source += "--dry_run_questions, --dry_run_tasks)"
    supposed = TaskShape(source, settings.dry_run_tasks, documents, 0, 0, questions, 0, 0)
    return environments.shape(path, supposed)


def _timelines(args: Any, run: Run, load: Workload, costs: Costs) -> list[Timeline]:
    """Of the run as its settings say, then of what else its devices could do."""
    ahead = args.max_staleness if run.stage == "async" else 0
    replaced = "now" if getattr(args, "dynamic_sampling", 0) else "no"
    # An asynchronous run without servers samples from a second model beside the first process.
    samplers = len(args.vllm_server_urls) if run.rollout == "server" else int(run.stage == "async")
    devices = run.launch.processes + samplers
    own = Schedule("this run", samplers, ahead, replaced, bool(getattr(args, "carried_groups", 0)))
    return [
        simulate(schedule, costs, load, devices=devices, processes=run.launch.processes)
        for schedule in (own, *schedules(devices, ahead))
    ]


def _rollout_bytes(args: Any, run: Run, load: Workload) -> float:
    if run.rollout == "colocate":
        return float(args.vllm_gpu_memory_utilization) * run.device.memory
    if run.rollout != "local":
        return 0.0
    row = min(load.sampled_row, run.model.context)
    episodes = load.episodes * load.sharing
    at_once = min(
        episodes, getattr(args, "max_in_flight", None) or episodes, args.rollout_batch_size
    )
    return local_rollout_bytes(run, max(1, min(at_once, args.rollout_batch_tokens // row)), row)


def _embedder_bytes(config: EmbedderConfig, on_cpu: bool) -> float | None:
    """None for a model that is not known here: a run may still be able to load it."""
    if config.embedder != "sentence_transformer":
        return 0.0
    try:
        return (
            parameters_of(hub_name(config.embedder_model)[0])
            * BYTES["float32" if on_cpu else "bfloat16"]
        )
    except ConfigError:
        return None


def _warnings(plan: Plan, args: Any, memory: MemoryConfig, embedder: EmbedderConfig) -> list[str]:
    found, run = [], plan.run
    longest, context = plan.workload.longest_row, run.model.context
    if run.precision.trained < 4 and run.launch.name in ("single", "ddp") and run.stage != "sft":
        found.append(
            f"weights are kept in 16 bits: at a learning rate of {args.learning_rate:g} most updates are smaller than "
            "their rounding and are lost. Set dtype: float32 (bf16 stays on), or start with FSDP2 or DeepSpeed."
        )
    if run.launch.offload:
        found.append(
            "weights and optimizer are offloaded to the host: their memory there is not estimated."
        )
    if longest > context:
        found.append(
            f"the longest prompt and completion have {longest} tokens, the model's context is {context}: "
            "lower chunk_tokens, scratchpad_tokens, entry_tokens, retrieve_k or max_completion_length."
        )
    files = [args.data, getattr(args, "eval_data", None)] if run.stage != "sft" else []
    missing = [file for file in files if file is not None and not Path(file).is_file()]
    found += [f"{file} is not there yet: `atommem data build` makes it." for file in missing]
    if memory.dialect == "memagent" and embedder.embedder == "sentence_transformer":
        found.append(
            "the dialect memagent never asks the embedder: embedder: random saves loading one."
        )
    if not plan.fits:
        found.append(_what_to_change(plan))
    return found


def _what_to_change(plan: Plan) -> str:
    """By the largest part of the phase that needs the most."""
    phase = max(plan.phases, key=plan.phases.__getitem__)
    part = max((part for part in plan.parts if phase in part.phases), key=lambda part: part.bytes)
    return (
        f"the peak of {plan.phases[phase] / 1e9:.1f} GB ({phase}) exceeds the {plan.run.device.memory / 1e9:.0f} GB of "
        f"{plan.run.device.name}. Its largest part is {part.name} with {part.bytes / 1e9:.1f} GB: "
        f"{part.remedy}."
    )
