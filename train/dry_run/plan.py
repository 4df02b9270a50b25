"""The dry run: settings -> shapes -> workload -> memory and timeline, printed and as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rich.console import Console
from rich.table import Table
from transformers import TrainingArguments

from atommem.config import EmbedderConfig
from atommem.environment import TaskShape, make_factory
from atommem.envs.question_answering import check_golds
from atommem.errors import ConfigError
from atommem.files import write_text
from atommem.memory.rules import RuleSet
from atommem.plugins import hub_name
from atommem.policy.local import read_tokenizer
from atommem.tokens import ApproximateTokenizer
from atommem.train.devices import DEVICES, DryRunConfig
from atommem.train.dry_run import costs, shapes
from atommem.train.settings import parse

THINKING_TOKENS = 570.5  # mean completion of the paper's policy (arXiv 2601.08323, Table 6)
ASSUMED_DATA = TaskShape("20,000 tasks of 200 documents, the paper's", 20_000, 200, 0, 0, 5.5, 0, 0)
"""The paper's training data."""


@dataclass
class Plan:
    """The result of a dry run; estimates are of one process."""

    run: costs.Run
    workload: shapes.Workload
    parts: list[costs.Part]
    engine: float  # bytes that a vLLM engine needs at least; 0 without
    engine_share: float  # and those that it gets
    host: float  # bytes of a node's memory
    timelines: list[costs.Timeline]  # the run's own, then alternatives
    assumptions: list[str]
    warnings: list[str] = field(default_factory=list)

    @property
    def phases(self) -> dict[str, float]:
        return {p: sum(one.bytes for one in self.parts if p in one.phases) for p in costs.PHASES}

    @property
    def fits(self) -> bool:
        """Whether the peak is below the device's memory, and the engine in its share of it."""
        peak = max(self.phases.values())
        return peak <= self.run.device.memory and self.engine <= self.engine_share

    @property
    def hours(self) -> float:
        return self.workload.updates * self.timelines[0].seconds / 3600


def run_dry(stage: str, argv: Sequence[str], settings: DryRunConfig) -> None:
    """Check all settings of ``atommem train STAGE``, and print and write the estimates."""
    plan = make_plan(stage, argv, settings)
    if plan is None:
        print("all settings are valid; a cold start is not estimated.")
        return
    print_plan(plan)
    if settings.dry_run_json:
        parts = {part.name: part.bytes for part in plan.parts}
        memory = {"parts": parts, "phases": plan.phases, "fits": plan.fits, "host": plan.host}
        values = {**asdict(plan), "memory": memory, "hours": plan.hours}
        text = json.dumps(values, indent=2, default=str)  # a model's configuration has its own form
        write_text(settings.dry_run_json, text + "\n")


def make_plan(stage: str, argv: Sequence[str], settings: DryRunConfig) -> Plan | None:
    launch = shapes.read_launch(settings.dry_run_launcher, settings.dry_run_processes)
    device = DEVICES[settings.dry_run_device]
    # Checked here on the CPU, as for these processes on this device.
    on_gpu = dict.fromkeys(("bf16", "gradient_checkpointing"), not device.is_cpu)
    with patch.object(TrainingArguments, "world_size", launch.processes):
        found = parse(stage, argv, {"use_cpu": True, **on_gpu})
    args, memory = found.args, found.run.memory
    RuleSet(memory.admission, memory.retention)
    model = shapes.measure(found.model)
    if stage == "sft":
        return None
    dtype = model.dtype if found.model.dtype == "auto" else found.model.dtype or "float32"
    rollout = getattr(args, "vllm_mode", "server") if args.use_vllm else "local"
    run = costs.Run(
        stage=stage,
        rollout=rollout,
        model=model,
        launch=launch,
        device=device,
        precision=costs.Precision.of(dtype, bool(args.bf16), launch, model.lora),
        checkpointing=bool(args.gradient_checkpointing),
        optim=str(getattr(args.optim, "value", args.optim)),
        beta=float(args.beta),
        share_prefixes=not model.obstacle and (stage == "async" or bool(args.prefix_sharing)),
        sleeps=rollout != "colocate" or args.vllm_enable_sleep_mode,
        cast_head=bool(args.cast_lm_head_to_fp32),
    )
    is_here = Path(model.name, "tokenizer.json").is_file()
    tokenizer: Any = read_tokenizer(model.name) if is_here else ApproximateTokenizer()
    factory = make_factory(found.run.environment, tokenizer)
    data = factory.shape(args.data, ASSUMED_DATA)
    if Path(args.data).is_file():
        check_golds(factory.config, factory.read_tasks(args.data))
    options = found.run.chat_template_kwargs
    prompt = shapes.measure_prompt(memory, factory, options)
    thinks = options.get("enable_thinking", model.config.model_type.startswith("qwen3"))
    mean, source = completion_tokens(args, settings, thinks)
    load = shapes.estimate_workload(args, launch.processes, data, prompt, mean, run.share_prefixes)
    embedder, rollout_bytes = _embedder_bytes(found.run.embedder), _rollout_bytes(args, run, load)
    assumptions = [
        f"data: {data.source}",
        f"tokens: counted by {type(tokenizer).__name__}",
        f"completions: {mean:.0f} tokens on average ({source})",
        f"speed: {costs.UTILISATION:.0%} of peak FLOPs",
    ]
    if model.obstacle:
        assumptions.append(f"rows are padded: {model.obstacle}")
    if embedder is None:
        name = found.run.embedder.embedder_model
        assumptions.append(f"memory without the embedder {name}, not found here")
    parts = costs.estimate_memory(run, load, embedder=embedder or 0.0, rollout=rollout_bytes)
    lines = _timelines(args, run, load, costs.estimate_costs(run, load))
    plan = Plan(run, load, parts, *_engine(args, run), costs.host_bytes(run), lines, assumptions)
    plan.warnings = find_warnings(plan, args)
    return plan


def completion_tokens(args: Any, settings: DryRunConfig, thinks: bool) -> tuple[float, str]:
    """Return the mean completion, and why."""
    longest = float(args.max_completion_length or 1024)
    if settings.dry_run_completion_tokens:
        mean, source = float(settings.dry_run_completion_tokens), "--dry_run_completion_tokens"
    elif thinks:
        mean, source = THINKING_TOKENS, "the paper's, with thinking; an untrained policy may differ"
    else:
        mean, source = longest / 4, "a quarter of max_completion_length"
    return min(mean, longest), source


def _timelines(
    args: Any, run: costs.Run, load: shapes.Workload, seconds: costs.Costs
) -> list[costs.Timeline]:
    """Estimate the run, then its devices in other roles: the fastest split of each staleness."""
    # An asynchronous run without servers samples from a second model beside the first process.
    samplers = len(args.vllm_server_urls) if run.rollout == "server" else int(run.stage == "async")
    processes, devices = run.launch.processes, run.launch.processes + samplers

    def line(samplers: int, staleness: int, parallel: int = 1) -> costs.Timeline:
        engines = f" ({parallel} an engine)" if parallel > 1 else ""
        lag = f"{staleness} update{'s' * (staleness > 1)} behind" if staleness else "in turn"
        split = f"{samplers} sample{engines}, {devices - samplers} train, {lag}"
        name = split if samplers else "all sample, then train"
        roles = name, samplers, staleness, parallel
        return costs.estimate_timeline(seconds, load, devices, processes, *roles)

    own = line(samplers, getattr(args, "max_staleness", 0))
    name = f"this run: {own.name}" if run.rollout == "server" else "this run"
    found = [replace(own, name=name), *[line(0, 0)] * bool(samplers)]
    splits = sorted({devices * eighths // 8 for eighths in range(1, 7)} - {0})
    for staleness in (0, 1) if splits else ():
        roles = [(n, staleness, tp) for n in splits for tp in (1, 2, 4, 8) if n % tp == 0]
        found.append(min((line(*role) for role in roles), key=lambda line: line.seconds))
    return found


def _engine(args: Any, run: costs.Run) -> tuple[float, float]:
    if run.rollout == "local" or run.device.is_cpu:
        return 0.0, 0.0
    is_server = run.rollout == "server"
    share = costs.SERVER_SHARE if is_server else float(args.vllm_gpu_memory_utilization)
    context = (not is_server and args.vllm_max_model_length) or 0
    needed = costs.engine_bytes(run, context or run.model.config.max_position_embeddings)
    return needed, share * run.device.memory


def _rollout_bytes(args: Any, run: costs.Run, load: shapes.Workload) -> float:
    if run.rollout == "colocate":
        return float(args.vllm_gpu_memory_utilization) * run.device.memory
    if run.rollout == "server":
        return 0.0
    row = min(load.sampled_row, run.model.config.max_position_embeddings)
    episodes = load.episodes * load.sharing
    most = args.max_inflight_tasks if args.max_inflight_tasks > 0 else episodes
    rows = max(1, min(episodes, most, args.rollout_batch_size, args.max_batch_tokens // row))
    return costs.local_rollout_bytes(run, rows, row)


def _embedder_bytes(config: EmbedderConfig) -> float | None:
    """Return None for a model that is not known here: a run may still be able to load it."""
    if config.embedder != "sentence_transformer":
        return 0.0
    try:
        name, _ = hub_name(config.embedder_model)
        return float(shapes.parameters_of(name) * costs.BYTES["bfloat16"])
    except ConfigError:
        return None


def find_warnings(plan: Plan, args: Any) -> list[str]:
    found, run = [], plan.run
    name, memory, sizes = run.device.name, run.device.memory, plan.phases
    if (peak := max(sizes.values())) > memory:
        phase = max(sizes, key=sizes.__getitem__)
        most = max((part for part in plan.parts if phase in part.phases), key=lambda p: p.bytes)
        smaller = "" if plan.engine > plan.engine_share else " or vllm_gpu_memory_utilization"
        found.append(
            f"the peak of {peak / 1e9:.1f} GB ({phase}) exceeds the {memory / 1e9:.0f} GB of "
            f"{name}; {most.name} has most. Share the model among more processes (fsdp2), train "
            "an adapter (use_peft), set gradient_checkpointing, or lower token_budget, "
            f"max_batch_tokens{smaller}."
        )
    if plan.engine > plan.engine_share:
        mend = (
            "Start servers with --tensor-parallel-size, or a smaller --max-model-len."
            if run.rollout == "server"
            else "Raise vllm_gpu_memory_utilization, lower vllm_max_model_length, or sample on "
            "servers (vllm_mode: server) with --tensor-parallel-size."
        )
        found.append(
            f"a vLLM engine needs {plan.engine / 1e9:.1f} GB at least, and its share of {name} is "
            f"{plan.engine_share / 1e9:.1f} GB. {mend}"
        )
    found += diverging(args)
    longest, context = plan.workload.longest_row, run.model.config.max_position_embeddings
    if longest > context:
        found.append(
            f"the longest prompt and completion have {longest} tokens, the model's context "
            f"{context}. Lower chunk_tokens, scratchpad_tokens, entry_tokens, retrieve_k or "
            "max_completion_length."
        )
    return found


def diverging(args: Any) -> list[str]:
    """Return settings with which a MemAgent diverged for others (verl's uni-agent, issue 175)."""
    if args.beta or str(args.scale_rewards) == "none":
        return []
    return [
        f"beta=0 (0.001), scale_rewards={args.scale_rewards} (none): others saw training diverge "
        "with these together. In parentheses are the settings that held."
    ]


def print_plan(plan: Plan) -> None:
    console = Console(highlight=False)
    run, load, model = plan.run, plan.workload, plan.run.model
    processes = run.launch.processes // run.launch.nodes
    console.print(
        f"[bold]Dry run: {run.stage}[/] of {model.name} ({model.parameters:,} parameters, "
        f"{model.trainable:,} trained) on {run.launch.processes} x {run.device.name}, "
        f"{run.launch.name}, rollouts: {run.rollout}"
    )
    console.print(
        f"One update of one process: {load.episodes:,} episodes of {load.steps:.1f} steps, "
        f"{load.group} of a task; {load.rows:,} rows of {load.prompt_tokens:,.0f} prompt and "
        f"{load.completion_tokens:,.0f} completion tokens (at most {load.longest_row:,}); "
        f"{load.unique_tokens:,} unique tokens of {load.raw_tokens:,}, in "
        f"{load.micro_batches:,} micro-batches of about {load.micro_batch:,}"
    )
    table = Table("GB", *costs.PHASES, title="Memory, one process", title_justify="left")
    for part in plan.parts:
        gigabytes = f"{part.bytes / 1e9:,.2f}"
        cells = (gigabytes if phase in part.phases else "" for phase in costs.PHASES)
        table.add_row(part.name, *cells)
    table.add_row("total", *(f"{total / 1e9:,.2f}" for total in plan.phases.values()))
    console.print(table)
    fits = "fits" if plan.fits else "does not fit"
    peak, memory = max(plan.phases.values()) / 1e9, run.device.memory / 1e9
    console.print(f"peak {peak:,.2f} GB, {fits} the {memory:,.0f} GB of {run.device.name}")
    if plan.engine:
        needs, has = plan.engine / 1e9, plan.engine_share / 1e9
        console.print(f"a vLLM engine needs {needs:,.1f} GB at least, of its {has:,.1f} GB")
    console.print(f"host memory of a node with {processes} processes: {plan.host / 1e9:,.0f} GB")
    table = Table("seconds an update", "all", "sampling", "training", title="Timeline, estimated")
    for line in plan.timelines:
        seconds = (line.seconds, line.sampling, line.training)
        table.add_row(line.name, *(f"{value:,.0f}" for value in seconds))
    console.print(table)
    episodes, each = load.episodes * run.launch.processes, plan.timelines[0].seconds
    console.print(
        f"the run: {load.updates:,} updates ({load.epochs:.2g} epochs) of {episodes:,} episodes "
        f"and {each:,.0f} s, {plan.hours:,.1f} h"
    )
    for kind, notes in (("assumed", plan.assumptions), ("warning", plan.warnings)):
        for note in notes:
            console.print(f"{kind}: {note}", markup=False)
